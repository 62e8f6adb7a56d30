"""The file of samples survives any end, and refuses to mix settings."""

import json

import pytest

from acpo.errors import ACPOError
from acpo.evaluate.samples import SampleFile, read_samples

SETTINGS = {"model": "m", "temperature": 1.0, "stop": ("a",)}


def fill(path, count=3):
    with SampleFile(path, SETTINGS) as file:
        for index in range(count):
            file.append(("q", index), {"completion": f"é{index}"})
            file.append(("q", index), {"verdict": "correct"})


def test_cut_at_every_byte_keeps_every_whole_line(tmp_path):
    whole = tmp_path / "whole.jsonl"
    fill(whole)
    text = whole.read_bytes()
    for cut in range(len(text)):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(text[:cut])
        kept = text[:cut].count(b"\n")
        with SampleFile(path, SETTINGS) as file:
            assert sum("completion" in s for s in file.samples.values()) == kept // 2
            assert sum("verdict" in s for s in file.samples.values()) == max(kept - 1, 0) // 2
            file.append(("new", 0), {"completion": "x"})
        assert [json.loads(line) for line in path.read_bytes().splitlines()][-1][
            "question"
        ] == "new"


@pytest.mark.parametrize(
    ("key", "value"), [("temperature", 0.5), ("model", "n"), ("stop", ()), ("added", 1)]
)
def test_changed_setting_is_refused_by_name(tmp_path, key, value):
    path = tmp_path / "s.jsonl"
    fill(path)
    before = path.read_bytes()
    with pytest.raises(ACPOError, match=rf"{key}=.*this run has {key}="):
        SampleFile(path, {**SETTINGS, key: value})
    assert path.read_bytes() == before


def test_a_file_without_a_sample_takes_other_settings(tmp_path):
    path = tmp_path / "s.jsonl"
    with SampleFile(path, SETTINGS) as file:
        file.append(("q", 0), {"prompt": "?", "failed": "too long"})
    with SampleFile(path, SETTINGS) as file:
        assert file.samples[("q", 0)]["failed"] == "too long", "the same settings keep it"
    other = {**SETTINGS, "stop": ["b"]}
    with SampleFile(path, other) as file:
        assert file.samples == {}
        file.append(("q", 0), {"completion": "x"})
    assert read_samples(path) == (other, {("q", 0): {"completion": "x"}})


def test_a_line_that_is_no_sample_is_named(tmp_path):
    path = tmp_path / "s.jsonl"
    fill(path)
    text = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*text[:2], b"garbage", *text[2:]]))
    with pytest.raises(ACPOError, match=r"s.jsonl:3: not a line of samples"):
        SampleFile(path, SETTINGS)


@pytest.mark.parametrize(
    "fields",
    [
        {"verdict": "Correct"},
        {"verdict": ["correct"]},
        {"answer": {}},
        {"tokens": "9"},
        {"tokens": -1},
        {"tokens": 10**400},
    ],
)
def test_a_verdict_that_nobody_gave_is_not_counted(tmp_path, fields):
    """One of another program's counted as wrong, and other kinds ended in a TypeError."""
    path = tmp_path / "s.jsonl"
    fill(path)
    with path.open("a") as file:
        file.write(json.dumps({"question": "q", "sample": 0, **fields}) + "\n")
    with pytest.raises(ACPOError, match=r"s.jsonl:8: not a line of samples"):
        read_samples(path)


def test_another_file_is_not_taken_for_samples(tmp_path):
    path = tmp_path / "s.jsonl"
    for text in ('{"problem": "1+1"}', '{"problem": "1+1"}\n{"pro', "[]\n"):
        path.write_text(text)
        with pytest.raises(ACPOError, match=r"not a (file|line) of samples"):
            SampleFile(path, SETTINGS)
        assert path.read_text() == text


def test_two_writers_are_refused(tmp_path):
    path = tmp_path / "s.jsonl"
    with SampleFile(path, SETTINGS), pytest.raises(ACPOError, match="another process"):
        SampleFile(path, SETTINGS)


def test_compact_orders_and_merges_and_can_be_continued(tmp_path):
    path = tmp_path / "s.jsonl"
    with SampleFile(path, SETTINGS) as file:
        for key in (("b", 1), ("a", 0), ("b", 0)):
            file.append(key, {"completion": f"{key}"})
        file.append(("b", 0), {"verdict": "correct"})
        file.compact(["b", "a"])
        file.append(("a", 1), {"completion": "later"})
    rows = [json.loads(line) for line in path.read_text().splitlines()][1:]
    order = [(row["question"], row["sample"]) for row in rows]
    assert order == [("b", 0), ("b", 1), ("a", 0), ("a", 1)]
    assert rows[0]["verdict"] == "correct" and rows[0]["completion"] == "('b', 0)"
    assert set(read_samples(path)[1]) == set(order)


def test_infrastructure_failures_are_judged_again(tmp_path):
    with SampleFile(tmp_path / "s.jsonl", SETTINGS) as file:
        file.append(("q", 0), {"completion": ""})
        assert file.undecided(("q", 0))
        file.append(("q", 0), {"verdict": "infra_error"})
        assert file.undecided(("q", 0))
        file.append(("q", 0), {"verdict": "incorrect"})
        assert not file.undecided(("q", 0))
