"""The credit page as a file: what it holds, what it can never do, what it refuses."""

import base64
import errno
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from acpo.cli import app
from acpo.errors import ACPOError
from acpo.records import Trace, TraceWriter
from acpo.viewer.credit import credit_blocks
from acpo.viewer.payload import TracePayload, prompt_groups
from acpo.viewer.shell import packed, to_json
from commandline import refused
from viewer.traces import HOSTILE, write_trace

BLOCK = re.compile(r'<script type="application/json" id="([\w-]+)">(.*?)</script>', re.S)


def blocks(page) -> dict:
    return {name: json.loads(text) for name, text in BLOCK.findall(page.read_text())}


def array(value: dict) -> np.ndarray:
    return np.frombuffer(base64.b64decode(value["b"]), dtype=value["t"])


def test_a_page_grows_with_tokens_and_not_with_what_else_was_likely(tmp_path):
    columns = {
        "token_id": [0, 1],
        "top_ids": [list(range(300)), [1]],
        "top_logps": [[-1.0] * 300, [0.0]],
    }
    with TraceWriter(tmp_path / "trace", {}) as writer:
        writer.append([{"prompt_id": "q", "sample": 0, "tokens": 2}], columns)
    top = TracePayload(Trace.open(tmp_path / "trace")).group([0])["completions"][0]["top"]
    assert top["k"] == 10 and array(top["id"]).tolist() == [*range(10), 1, *[-1] * 9]


def test_the_policy_names_exactly_this_script_and_style(tmp_path, view):
    write_trace(tmp_path / "t")
    html = view(tmp_path / "t").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    policy = policy.replace("&#39;", "'")
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        (source,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.S)
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy and "http" not in policy


def test_hostile_text_cannot_leave_its_block(tmp_path, view):
    write_trace(
        tmp_path / "t", pieces=HOSTILE, in_order=True, header={"model": "</title><script>x"}
    )
    html = view(tmp_path / "t").read_text()
    assert html.count("<script") == html.count("</script>") == len(BLOCK.findall(html)) + 1
    for _, text in BLOCK.findall(html):
        assert not set(text) & set("<>&\u2028\u2029\x00")
    assert "<title>&lt;/title&gt;&lt;script&gt;x" in html
    assert not re.search(r"\son\w+=|href=|src=|url\(|@import|://", BLOCK.sub("", html))


def test_every_number_arrives(tmp_path, view):
    write_trace(tmp_path / "t", prompts=3, steps=2)
    trace = Trace.open(tmp_path / "t")
    page = blocks(view(tmp_path / "t"))
    assert [g["id"] for g in page["page"]["groups"]] == ["q0", "q1", "q2"]
    group = page["group-1"]
    facts = [completion["facts"] for completion in group["completions"]]
    assert [(f["step"], f["sample"]) for f in facts] == [(s, i) for s in (0, 10) for i in range(4)]
    data = trace.tokens("entropy", "token_id")
    rows = [row for row, name in enumerate(trace.rollouts["prompt_id"].to_pylist()) if name == "q1"]
    for row, completion in zip(rows, group["completions"], strict=True):
        where = slice(*trace.starts[row : row + 2])
        np.testing.assert_array_equal(
            array(completion["columns"]["entropy"]), data["entropy"][where].astype(np.float32)
        )
        pieces = [group["pieces"][i] for i in array(completion["piece"])]
        assert "".join(pieces) == trace.rollouts["completion"][row].as_py()
        assert len(array(completion["methods"]["acpo"]["update"])) == completion["length"]
        assert array(completion["top"]["id"]).shape == (completion["length"] * 5,)


def test_only_the_first_prompts(tmp_path, view):
    write_trace(tmp_path / "t", prompts=5)
    page = blocks(view(tmp_path / "t", "--prompts", "2"))
    assert set(page) == {"page", "group-0", "group-1"}
    assert page["page"]["prompts"] == 5


def test_gaps_in_a_trace_are_gaps_on_the_page(tmp_path):
    with TraceWriter(tmp_path / "t", {"model": None}) as writer:
        rows = [{"prompt_id": "q", "sample": 0, "tokens": 2, "reward": float("nan")}]
        rows += [{"prompt_id": "q", "sample": 1, "tokens": 0}]
        writer.append(
            rows,
            {
                "token_id": [1, 2],
                "piece": [None, b"x"],
                "is_mode": [None, False],
                "top_ids": [[1, 2], None],
                "top_logps": [[-0.1, None], None],
            },
        )
    trace = Trace.open(tmp_path / "t")
    (group,) = prompt_groups(trace)
    block = json.loads(to_json(TracePayload(trace).group(group)))
    first, empty = block["completions"]
    assert first["facts"]["reward"] is None and not block["prompt"]["known"]
    assert block["pieces"][0] == "⟨1⟩"
    assert array(first["columns"]["is_mode"]).tolist() == [1, 0]
    logps = array(first["top"]["logp"])
    assert logps[0] == np.float32(-0.1) and np.isnan(logps[1:]).all()
    assert empty["length"] == 0 and empty["top"] is None


def test_numbers_beyond_all_bounds_are_gaps(tmp_path, view):
    with TraceWriter(tmp_path / "t", {}) as writer:
        for sample, reward in enumerate((1e308, -1e308)):
            row = {"prompt_id": "q", "sample": sample, "tokens": 1, "reward": reward}
            writer.append([row], {"token_id": [1]})
    view(tmp_path / "t", "--methods", "")


def test_half_a_character_in_a_name_and_a_full_disk(tmp_path, view, monkeypatch):
    with TraceWriter(tmp_path / "t", {"model": "half \ud800"}) as writer:
        writer.append([{"prompt_id": "q", "sample": 0, "tokens": 1}], {"token_id": [1]})
    page = tmp_path / "page.html"
    view(tmp_path / "t", "-o", page)
    before = page.read_text()
    assert "<title>half ? · token credit</title>" in before
    monkeypatch.setattr(Path, "write_bytes", full_disk)
    assert "cannot be written" in refused("view", tmp_path / "t", "-o", page)
    assert page.read_text() == before


def full_disk(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content[: len(content) // 2])
    raise OSError(errno.ENOSPC, "No space left on device")


def test_packed_arrays_are_little_endian():
    assert array(packed(np.array([1.5, np.nan], dtype=">f4")))[0] == 1.5
    with pytest.raises(KeyError):
        packed(np.array([1.5]))


def refusal(*arguments: object) -> str:
    said = refused("view", *arguments)
    assert "Traceback" not in said
    return said


def test_bad_input_is_refused_in_one_line(tmp_path):
    assert "not a trace" in refusal(tmp_path / "nothing")
    with TraceWriter(tmp_path / "empty", {}):
        pass
    assert "holds no token" in refusal(tmp_path / "empty")
    assert "not a trace" in refusal("/")
    write_trace(tmp_path / "t")
    trace = tmp_path / "t"
    assert "did you mean 'acpo'" in refusal(trace, "--methods", "acop")
    assert "name another file" in refusal(trace, "-o", tmp_path)
    write_trace(tmp_path / "bare", drop=("entropy",))
    assert "has no entropy" in refusal(tmp_path / "bare", "--methods", "acpo")
    assert "has steps 0" in refusal(trace, "--step", "3")


def test_a_page_overwrites_pages_alone(tmp_path):
    write_trace(tmp_path / "t")
    header = (tmp_path / "t" / "header.jsonl").read_bytes()
    assert "there is something else in it" in refusal(
        tmp_path / "t", "-o", tmp_path / "t" / "header.jsonl"
    )
    assert (tmp_path / "t" / "header.jsonl").read_bytes() == header
    for _ in range(2):
        done = CliRunner().invoke(app, ["view", str(tmp_path / "t"), "-o", str(tmp_path / "p")])
        assert done.exit_code == 0


def test_pages_no_browser_could_open_are_refused(tmp_path):
    with TraceWriter(tmp_path / "t", {}) as writer:
        row = {"prompt_id": "a", "sample": 0, "tokens": 500_001}
        writer.append([row], {"token_id": np.zeros(500_001, dtype=np.int32)})
    assert "holds 500,001 tokens, and a page at most 500,000" in refusal(tmp_path / "t")


def test_a_trace_without_its_tokens_is_refused(tmp_path):
    write_trace(tmp_path / "t", prompts=1)
    file = tmp_path / "t" / "tokens-00000.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["token_id"]), file)
    with pytest.raises(ACPOError, match="has no token_id"):
        credit_blocks(Trace.open(tmp_path / "t"), name="t", methods="")


def test_a_page_shows_the_most_prompts_that_fit(tmp_path, view):
    """Fewer prompts are others: six of these hold as many long ones as all eight."""
    with TraceWriter(tmp_path / "t", {}) as writer:
        for number, tokens in enumerate((130_000, 10) * 4):
            row = {"prompt_id": f"q{number}", "sample": 0, "tokens": tokens}
            writer.append([row], {"token_id": np.zeros(tokens, dtype=np.int32)})
    page = blocks(view(tmp_path / "t"))["page"]
    assert [group["id"] for group in page["groups"]] == ["q0", "q1", "q3", "q4", "q6"]
    assert page["prompts"] == 8
