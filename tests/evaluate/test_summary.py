"""Numbers and reports from samples written by hand."""

import json

import pytest

from acpo.errors import ACPOError
from acpo.evaluate.report import comparison_latex, draw_curves, markdown, write_reports
from acpo.evaluate.samples import SampleFile
from acpo.evaluate.statistics import majority_probabilities
from acpo.evaluate.summary import compare_runs, question_counts, summarise, summarise_run
from acpo.tasks import PAPER


def sample(verdict: str, answer: str | None = "1", finish: str = "stop", tokens: int = 10) -> dict:
    return {"verdict": verdict, "answer": answer, "finish": finish, "tokens": tokens}


def write(folder, name, samples, **settings):
    settings = {"model": "a_b%", "judge": "math", "data": "x", **settings}
    with SampleFile(folder / f"{name}.jsonl", settings) as file:
        for key, fields in samples.items():
            file.append(key, {"completion": "", **fields})


FOUR = {
    ("q", 0): sample("correct"),
    ("q", 1): sample("incorrect", "2", finish="length", tokens=30),
    ("r", 0): sample("incorrect", None),
    ("r", 1): sample("infra_error", "9"),
}


def test_summary_by_hand():
    summary = summarise(FOUR, votes=True)
    assert (summary["questions"], summary["samples"], summary["k"]) == (2, 4, 2)
    assert summary["mean"]["value"] == 0.25, "the failed verification is left out"
    assert summary["pass"]["1"]["value"] == 0.25
    assert summary["pass"]["2"] is None, "one question has a single decided sample"
    assert summary["majority"] is None, "one question has a single decided sample"
    assert summary["majority_at"]["1"]["value"] == 0.25, "no vote counts nothing"
    whole = {key: FOUR[key] for key in FOUR if key[0] == "q"}
    assert summarise(whole, votes=True)["majority"]["value"] == 0.5, "a tie counts half"
    assert summary["truncated"] == 0.25 and summary["tokens"] == 15
    assert summary["verdicts"]["infra_error"] == 0.25
    assert summary["per_question"][1] == {"id": "r", "correct": 0, "decided": 1}


@pytest.mark.parametrize(
    ("votes", "share"),
    [
        ([("correct", "1/2"), ("correct", "0.5"), ("incorrect", "7"), ("incorrect", "7")], 0.5),
        ([("correct", "1/2"), ("correct", "0.5"), ("incorrect", "7")], 1.0),
        ([("incorrect", "7"), ("incorrect", "7"), ("correct", "1")], 0.0),
        ([("correct", "1"), ("incorrect", None), ("incorrect", None)], 1.0),
        ([("timeout", None)], 0.0),
    ],
)
def test_majority(votes, share):
    (counts,) = question_counts({("q", i): sample(*vote) for i, vote in enumerate(votes)})
    assert majority_probabilities(counts)[-1] == pytest.approx(share)
    assert question_counts({}) == []


def test_no_samples_at_all(tmp_path):
    write(tmp_path, "empty", {})
    summary = summarise_run(tmp_path)
    assert summary["average"] is None and summary["benchmarks"]["empty"]["mean"] is None
    write_reports(summary, tmp_path)
    assert "no decided samples" in (tmp_path / "report.md").read_text()


def test_reports(tmp_path):
    for name in PAPER:
        write(tmp_path, name, FOUR, judge="code" if name == "humaneval_pro" else "math")
    summary = summarise_run(tmp_path)
    write_reports(summary, tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert (tmp_path / "intervals.png").read_bytes().startswith(b"\x89PNG")
    assert "| AIME24 | 2 | 2 | 25.0 [" in markdown(summary)
    assert summary["benchmarks"]["humaneval_pro"]["majority"] is None


def test_an_average_is_over_all_benchmarks(tmp_path):
    """Where nothing of one could be judged, it was silently that of the others."""
    write(tmp_path, "aime24", FOUR)
    assert summarise_run(tmp_path)["average"]["value"] == 0.25
    write(tmp_path, "aime25", {("q", 0): sample("unparseable_gold")})
    assert summarise_run(tmp_path)["average"] is None


def test_a_folder_of_two_models_has_no_average(tmp_path):
    write(tmp_path, "aime24", FOUR, model="a")
    write(tmp_path, "aime25", FOUR, model="b")
    with pytest.raises(ACPOError, match=r"aime24 has model='a', aime25 has model='b'"):
        summarise_run(tmp_path)


def test_compare_reports_what_else_differs(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    write(a, "aime24", FOUR, temperature=1.0)
    write(
        b, "aime24", {("q", 0): sample("incorrect"), ("r", 0): sample("incorrect")}, temperature=0
    )
    result = compare_runs(a, b)
    entry = result["benchmarks"]["aime24"]
    assert entry["difference"]["value"] == 0.25 and entry["settings_that_differ"] == ["temperature"]
    assert "$+25.00$ [" in comparison_latex(result)


def test_a_comparison_in_latex_has_every_benchmark(tmp_path):
    """It had the paper's six alone: of others it was a row of dashes."""
    write(tmp_path / "a", "own", {("q", 0): sample("correct")})
    write(tmp_path / "b", "own", {("q", 0): sample("incorrect")})
    shown = comparison_latex(compare_runs(tmp_path / "a", tmp_path / "b"))
    assert r"\textbf{own} & \textbf{Average}" in shown and shown.count("$+100.00$ [") == 2


def test_compare_refuses_other_questions(tmp_path):
    write(tmp_path / "a", "aime24", FOUR)
    write(tmp_path / "b", "aime24", FOUR, data="other")
    with pytest.raises(ACPOError, match="different questions"):
        compare_runs(tmp_path / "a", tmp_path / "b")
    write(tmp_path / "c", "aime25", FOUR)
    with pytest.raises(ACPOError, match="share no benchmark"):
        compare_runs(tmp_path / "a", tmp_path / "c")


def test_curves_are_named_whichever_benchmark_has_them(tmp_path, recwarn):
    known = {"value": 0.5, "low": 0.4, "high": 0.6}
    unread = {"k": 2, "pass": {"1": None, "2": None}, "majority_at": {"2": None}}
    read = {"k": 2, "pass": {"1": known, "2": known}, "majority_at": {"2": known}}
    draw_curves({"benchmarks": {"a": unread}}, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
    draw_curves({"benchmarks": {"a": unread, "b": read}}, tmp_path / "one.png")
    assert (tmp_path / "one.png").exists() and not recwarn.list
