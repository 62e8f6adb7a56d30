"""The first-error analysis on traces whose answer is known."""

import csv
import importlib.metadata
import json
from dataclasses import replace

import numpy as np
import pytest

from acpo import __version__
from acpo.annotate.annotators import ArithmeticAnnotator, ExactAnnotator
from acpo.annotate.pairs import select
from acpo.diagnose.error_alignment import Aligned, compared, measure, representative, smoothed
from acpo.diagnose.first_error import ProfileSettings, first_error
from acpo.diagnose.report import html
from acpo.errors import ACPOError
from acpo.records import Trace, TraceWriter
from acpo.tasks.chain import ChainProblem, chain_problems
from annotate.traces import annotated, chain_rows, text_rows, write_texts
from commandline import acpo, refused


def case(tmp_path, *, rise, problems=12, seed=0, noise=0.05, longer=0):
    """Entropies of a flat 0.5 with noise; `rise` more after the first error of wrong ones."""
    rng = np.random.default_rng(seed)

    def entropy(row, count):
        values = 0.5 + rng.normal(0, noise, count)
        if not row["reward"]:
            problem = ChainProblem.parse(row["prompt"])
            pairs = zip(problem.solution, row["completion"], strict=True)
            error = next(i for i, (a, b) in enumerate(pairs) if a != b)
            values[error + 1 :] += rise
        return values

    chosen = chain_problems(problems, seed=9)
    if longer:
        chosen += chain_problems(longer, steps=9, seed=1)
    rows = chain_rows(chosen, wrong=3)
    trace = Trace.open(write_texts(tmp_path / "trace", rows, entropy=entropy))
    return trace, annotated(tmp_path / "a.jsonl", select(trace), ExactAnnotator())


def effects_of(finding):
    return {(row["quantity"], row["effect"]): row for row in finding.extra["effects"]}


CHANGE = ("entropy", "after minus before, wrong minus right")


def test_a_planted_rise_is_found_with_its_size(tmp_path):
    around, _ = first_error(*case(tmp_path, rise=0.3), settings=ProfileSettings(window=8))
    found = effects_of(around)
    assert found[CHANGE]["mean"] == pytest.approx(0.3, abs=0.03)
    assert found[CHANGE]["low"] < 0.3 < found[CHANGE]["high"]
    assert found[CHANGE]["p_value"] < 0.001
    assert found["delta", CHANGE[1]]["mean"] == pytest.approx(0.15, abs=0.015)
    before = found["entropy", "before, wrong minus right"]
    assert before["low"] < 0 < before["high"]
    assert any("entropy: it rises after the error" in fact for fact in around.facts)
    assert found["entropy", "after minus before, right"]["mean"] == pytest.approx(0, abs=0.03)


def test_no_rise_is_not_found_and_a_fall_is(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    flat, _ = first_error(*case(tmp_path / "a", rise=0.0), settings=ProfileSettings(window=8))
    assert effects_of(flat)[CHANGE]["p_value"] > 0.05
    assert any("no rise after the error is shown" in fact for fact in flat.facts)
    fallen, _ = first_error(*case(tmp_path / "b", rise=-0.2), settings=ProfileSettings(window=8))
    assert any("entropy: it falls after the error" in fact for fact in fallen.facts)


def test_a_window_beyond_every_completion_costs_nothing(tmp_path):
    trace, annotations = case(tmp_path, rise=0.3, problems=3)
    whole, _ = first_error(trace, annotations, settings=ProfileSettings(window=30, profiles=1))
    wide = ProfileSettings(window=10**11, profiles=1)
    endless, _ = first_error(trace, annotations, settings=wide)
    assert [row["t"] for row in endless.rows] == [row["t"] for row in whole.rows]
    assert effects_of(endless) == effects_of(whole)


def test_the_units_are_stated(tmp_path):
    around, profiles = first_error(*case(tmp_path, rise=0.3), settings=ProfileSettings(profiles=3))
    assert around.facts[0].startswith(
        "72 pairs of 36 (36 different) wrong and 24 (12 different) right completions, from 12"
    )
    assert "places of 72 pairs: 72 computed by the task's checker" in around.source
    assert len({row["prompt_id"] for row in profiles.rows}) == 3


def test_effects_of_one_pair_by_hand():
    nan = np.nan
    wrong = np.array([[nan, 1.0, 2.0, 8.0, 9.0, 7.0, 4.0]])
    right = np.array([[5.0, 0.5, 1.0, 6.0, 1.0, 2.0, nan]])
    aligned = Aligned(np.arange(-3, 4), wrong, right)
    found = {name: float(values[0]) for name, values in measure(aligned).items()}
    assert found["before"] == pytest.approx((0.5 + 1.0) / 2)
    assert found["at"] == 2.0
    assert found["after"] == pytest.approx((8.0 + 5.0) / 2)
    assert found["change"] == pytest.approx(6.5 - 0.75)
    assert found["wrong"] == pytest.approx(8.0 - 1.5)
    assert found["right"] == pytest.approx(1.5 - 0.75)
    assert compared(aligned).sum() == 5


def test_a_pair_without_tokens_after_the_error_is_left_out():
    values = np.array([[1.0, 2.0, np.nan], [1.0, 2.0, 3.0]])
    change = measure(Aligned(np.arange(-1, 2), values, values))["change"]
    assert np.isnan(change[0]) and change[1] == 0


def test_the_pair_in_the_middle():
    assert representative(np.array([5.0, np.nan, 1.0, 3.0])) == 3
    assert representative(np.array([2.0, 1.0, 1.0, 0.0])) == 1, "the first of those that tie"


def test_smoothing_looks_back_and_not_across_the_error():
    np.testing.assert_allclose(smoothed(np.full(9, 2.0), 4, 5), 2.0)
    np.testing.assert_allclose(smoothed(np.array([0.0, 3.0, 0.0]), 3, 0), [0.0, 1.5, 1.0])
    np.testing.assert_allclose(smoothed(np.array([1.0, 2.0]), 1, 0), [1.0, 2.0])
    np.testing.assert_allclose(smoothed(np.array([4.0, 2.0, 9.0, 5.0]), 3, 2), [4, 3, 9, 7])
    assert len(smoothed(np.array([1.0, 2.0]), 16, 0)) == 2
    assert len(smoothed(np.empty(0), 16, 0)) == 0


def test_curves_part_where_their_values_do(tmp_path):
    """Entropies that are the same before the error are drawn the same before it."""
    _, profiles = first_error(
        *case(tmp_path, rise=0.3, noise=0.0), settings=ProfileSettings(profiles=20)
    )
    sides = {}
    for row in profiles.rows:
        key = row["quantity"], row["prompt_id"], row["token"] - row["error"]
        sides.setdefault(key, {})[row["side"]] = row
    before = [both for (_, _, t), both in sides.items() if t < 0 and len(both) == 2]
    assert len(before) > 20
    for both in before:
        raw = both["wrong"]["value"] - both["right"]["value"]
        assert raw == 0 and both["wrong"]["smoothed"] == both["right"]["smoothed"]
    later = [b for (_, _, t), b in sides.items() if t > 0 and len(b) == 2]
    assert any(b["wrong"]["smoothed"] > b["right"]["smoothed"] + 0.1 for b in later)


def test_offsets_that_few_prompts_have_are_counted_and_not_drawn(tmp_path):
    made = case(tmp_path, rise=0.3, longer=2)
    around, _ = first_error(*made, settings=ProfileSettings(window=60))
    for row in around.rows:
        assert bool(row["shown"]) == (row["prompts"] >= 5)
    assert {row["shown"] for row in around.rows} == {0, 1}
    axes = [axes for axes in around.figure.axes if axes.get_ylabel() == "prompts"]
    drawn = {round(bar.get_x() + bar.get_width() / 2) for bar in axes[0].patches}
    own = [row for row in around.rows if row["quantity"] == "entropy"]
    assert drawn == {row["t"] for row in own if row["shown"]}
    assert "agree by construction" in around.reading.replace("\n", " ")
    assert any("the same text up to the error" in fact for fact in around.facts)


def test_the_command_writes_its_files(tmp_path):
    case(tmp_path, rise=0.3)
    arguments = ["diagnose", "first-error", tmp_path / "trace", "--window", 8, "--profiles", 1]
    arguments += ["--annotations", tmp_path / "a.jsonl", "--output", tmp_path / "out"]
    assert "it rises after the error" in acpo(*arguments)
    for name in ("first-error", "first-error-profiles"):
        for kind in ("csv", "png", "pdf", "md"):
            assert (tmp_path / "out" / f"{name}.{kind}").stat().st_size > 0
    with (tmp_path / "out" / "first-error.csv").open() as file:
        rows = list(csv.DictReader(file))
    after = [float(r["difference"]) for r in rows if r["quantity"] == "entropy" and r["t"] == "4"]
    assert after == [pytest.approx(0.3, abs=0.05)]
    assert {int(row["t"]) for row in rows} == set(range(-8, 9))
    arguments.append("--verified-only")
    assert "no pair counts" in refused(*arguments)
    assert "exclude each other" in refused(*arguments, "--all-proposals")


def test_another_trace_and_empty_windows_are_refused(tmp_path):
    _, annotations = case(tmp_path, rise=0.0)
    rows = chain_rows(chain_problems(3, seed=10))
    other = Trace.open(write_texts(tmp_path / "other", rows))
    with pytest.raises(ACPOError, match="another trace"):
        first_error(other, annotations)
    trace = Trace.open(tmp_path / "trace")
    assert first_error(trace, annotations, settings=ProfileSettings(10**21, smooth=10**21))
    texts = text_rows(("1+1=2", 1.0), ("1+1=3", 0.0))  # an error without a token behind it
    last = Trace.open(write_texts(tmp_path / "last", texts))
    found = annotated(tmp_path / "last.jsonl", select(last), ArithmeticAnnotator())
    with pytest.raises(ACPOError, match="last: no pair has tokens on both sides"):
        first_error(last, found)


def test_proposals_of_models_are_named_as_such(tmp_path, no_pdf):
    trace, _ = case(tmp_path, rise=0.0, problems=3)
    path = tmp_path / "a.jsonl"
    text = path.read_text().replace('"annotator": "exact"', '"annotator": "m"')
    model = {"kind": "annotator", "name": "m", "settings": {"kind": "model"}}
    lines = text.splitlines()
    path.write_text("\n".join([lines[0], json.dumps(model), *lines[2:], ""]))
    arguments = ["diagnose", "first-error", trace.path, "--annotations", path]
    arguments += ["--output", tmp_path / "out", "--profiles", 1, "--window", 4]
    assert "pass --all-proposals" in refused(*arguments)
    acpo(*arguments, "--all-proposals")
    summary = (tmp_path / "out" / "first-error.md").read_text()
    assert "18 proposed by a model and verified by NOBODY" in summary


def add_step(trace, step):
    """The same completions once more, as of another step."""
    rows = trace.rollouts.to_pylist()
    header = {key: trace.header[key] for key in trace.header.keys() - {"format", "version"}}
    with TraceWriter(trace.path, header) as writer:
        columns = trace.table(*trace.columns).to_pydict()
        writer.append(rows, columns, step=step)
    return Trace.open(trace.path)


def test_one_step_of_several_is_not_called_pooled(tmp_path):
    trace, annotations = case(tmp_path, rise=0.3, problems=3)
    alone, _ = first_error(trace, annotations, settings=ProfileSettings(profiles=1))
    both = add_step(trace, 7)
    around, _ = first_error(both, annotations, settings=ProfileSettings(profiles=1))
    assert around.source == alone.source and "pooled" not in around.source
    assert effects_of(around) == effects_of(alone)


def test_annotations_of_another_step_lose_no_other_analysis(tmp_path, no_pdf):
    add_step(case(tmp_path, rise=0.3, problems=3)[0], 7)
    arguments = ["diagnose", "all", tmp_path / "trace", "--step", 7]
    acpo(*arguments, "--annotations", tmp_path / "a.jsonl", "--output", tmp_path / "out")
    report = (tmp_path / "out" / "report.html").read_text()
    assert report.count("the annotations are of step 0") == 2


def test_smoothing_passes_over_what_is_not_finite():
    values = np.array([1.0, np.nan, 3.0, np.inf, 5.0, 7.0])
    np.testing.assert_allclose(smoothed(values, 2, 0), [1, 1, 3, 3, 5, 6])
    np.testing.assert_allclose(smoothed(values, 2, 3), [1, 1, 3, np.nan, 5, 6])


def test_names_are_escaped_in_markdown_and_nowhere_else(tmp_path):
    around, _ = first_error(
        *case(tmp_path, rise=0.3, problems=3), settings=ProfileSettings(profiles=1)
    )
    name = r"a\_b\*c"
    around = replace(around, reading=f"(prompt {name}, wrong 1)")
    assert f"(prompt {name}, wrong 1)" in around.markdown()
    page = html([around], [], source="", command="")
    assert page.count("(prompt a_b*c, wrong 1)") == 2 and name not in page


def test_a_page_needs_no_installed_package(monkeypatch):
    def not_installed(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata.Distribution, "from_name", not_installed)
    assert f"acpo {__version__}" in html([], [], source="", command="")
