"""The main table from folders, and maj@k against every subset."""

import csv
import io
import itertools
import json

import pytest

from acpo.evaluate.samples import SampleFile
from acpo.evaluate.statistics import QuestionCounts, majority_probabilities
from acpo.evaluate.summary import summarise, summarise_run
from evaluate.runs import acpo


@pytest.mark.parametrize(
    ("correct", "wrong", "silent"),
    [
        (2, (1, 3), 1),
        (3, (3,), 0),
        (0, (2, 2), 1),
        (4, (1, 1, 1), 2),
        (1, (), 3),
        (2, (2, 2, 1), 1),
    ],
)
def test_majority_is_that_of_every_subset(correct, wrong, silent):
    votes = ["right"] * correct + [None] * silent
    votes += [str(i) for i, size in enumerate(wrong) for _ in range(size)]
    exact = majority_probabilities(QuestionCounts("q", correct, len(votes), wrong))
    for k in range(1, len(votes) + 1):
        shares = []
        for drawn in itertools.combinations(votes, k):
            counts = {vote: drawn.count(vote) for vote in drawn if vote is not None}
            most = [vote for vote in counts if counts[vote] == max(counts.values())]
            shares.append(most.count("right") / len(most) if most else 0.0)
        assert exact[k - 1] == pytest.approx(sum(shares) / len(shares), abs=1e-12)


def test_every_k_has_its_pass_and_majority():
    verdicts = ["correct", "incorrect", "correct", "incorrect", "incorrect"]
    samples = {
        (q, i): {"verdict": verdict, "answer": f"{i}", "completion": ""}
        for q in "ab"
        for i, verdict in enumerate(verdicts)
    }
    entry = summarise(samples, votes=True)
    assert [*entry["pass"]] == [*entry["majority_at"]] == ["1", "2", "3", "4", "5"]
    assert entry["pass"]["2"]["value"] == pytest.approx(1 - 3 / 10)
    assert entry["pass"]["4"]["value"] == 1.0
    assert entry["majority_at"]["1"]["value"] == pytest.approx(0.4)
    assert entry["majority_at"]["5"] == entry["majority"] and entry["majority"]["value"] == 1.0
    assert all(v["low"] <= v["value"] <= v["high"] for v in entry["pass"].values())


def write(folder, accuracy, *, questions=60, model="m", name="aime24", data="x", **settings):
    """Questions of which the first so many are right."""
    given = {"model": model, "data": data, **settings}
    with SampleFile(folder / f"{name}.jsonl", given) as file:
        for number in range(questions):
            verdict = "correct" if number < accuracy * questions else "incorrect"
            file.append((str(number), 0), {"completion": "", "verdict": verdict})


def table(*runs, status=0, form="markdown"):
    done = acpo("eval", "table", *runs, "--format", form)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else " ".join(done.stderr.split())


def test_bold_only_where_told_apart(tmp_path):
    for name, accuracy in (("sapo", 0.4), ("acpo", 0.8), ("grpo", 0.75)):
        write(tmp_path / name, accuracy)
        write(tmp_path / name, accuracy, name="own")
    alone = table(tmp_path / "sapo", tmp_path / "acpo")
    assert "| method | AIME24 | own | average |" in alone
    assert "| acpo | **80.0** [" in alone and "**40.0**" not in alone
    close = table(*(tmp_path / name for name in ("sapo", "acpo", "grpo")))
    assert "| acpo | 80.0 [" in close, "60 questions do not tell 80 from 75"
    assert "**" not in close


def test_runs_that_were_not_asked_alike_are_told(tmp_path):
    write(tmp_path / "sapo", 0.4, temperature=1.0, max_tokens=8192)
    write(tmp_path / "acpo", 0.8, temperature=0.6, max_tokens=8192, questions=50)
    write(tmp_path / "other", 0.8, temperature=0.2, max_tokens=8192)
    runs = [f"Q/sapo={tmp_path / 'sapo'}", f"Q/acpo={tmp_path / 'acpo'}"]
    told = "AIME24 of Q: the runs differ in questions, temperature."
    for form in ("markdown", "latex", "csv"):
        done = acpo("eval", "table", *runs, f"R/acpo={tmp_path / 'other'}", "--format", form)
        assert told in (done.stdout if form == "markdown" else done.stderr)
    assert "differ" not in table(runs[0], f"R/acpo={tmp_path / 'other'}")


def test_a_run_that_is_not_whole_is_told(tmp_path):
    write(tmp_path / "whole", 0.4)
    write(tmp_path / "part", 0.8)
    with SampleFile(tmp_path / "part" / "aime24.jsonl", {"model": "m", "data": "x"}) as file:
        file.append(("0", 1), {"completion": "", "verdict": "correct"})
        file.append(("7", 1), {"failed": "status 400"})
        file.append(("8", 1), {"completion": "cut by a signal"})
    said = "1 samples that could not be drawn, 1 samples without a verdict, 57 questions with fewer"
    runs = [f"Q/sapo={tmp_path / 'whole'}", f"Q/acpo={tmp_path / 'part'}"]
    assert f"AIME24 of Q acpo: {said} than 2 samples." in table(*runs)
    assert "Q sapo:" not in table(*runs)
    done = acpo("eval", "compare", tmp_path / "whole", tmp_path / "part")
    assert f"AIME24, B: {said}" in " ".join(done.stdout.split())


def test_samples_that_could_not_be_judged_are_told(tmp_path):
    write(tmp_path / "acpo", 1.0, questions=5)
    with SampleFile(tmp_path / "acpo" / "aime24.jsonl", {"model": "m", "data": "x"}) as file:
        for number in range(45):
            file.append((f"lost{number}", 0), {"completion": "", "verdict": "infra_error"})
    said = "45 of 50 samples could not be judged (infra_error 45) and are left out"
    for form in ("markdown", "latex", "csv"):
        done = acpo("eval", "table", f"Q/acpo={tmp_path / 'acpo'}", "--format", form)
        assert f"AIME24 of Q acpo: {said}." in (done.stdout if form == "markdown" else done.stderr)
    (entry,) = summarise_run(tmp_path / "acpo")["benchmarks"].values()
    assert entry["undecided"] == {"infra_error": 45} and entry["mean"]["value"] == 1.0
    write(tmp_path / "judged", 0.5)
    assert "judged (" not in table(tmp_path / "judged")


def test_models_methods_and_forms(tmp_path):
    for name, accuracy in (("a", 0.2), ("b", 0.9)):
        write(tmp_path / name, accuracy)
    write(tmp_path / "b", 0.5, name="aime25")
    runs = [f"M_1/SAPO={tmp_path / 'a'}", f"M_1/ACPO={tmp_path / 'b'}", f"N/SAPO={tmp_path / 'a'}"]
    rows = list(csv.DictReader(io.StringIO(table(*runs, form="csv"))))
    assert len(rows) == 9
    best = [(row["model"], row["method"], row["benchmark"]) for row in rows if row["best"] == "1"]
    assert best == [("M_1", "ACPO", "aime24")], "alone on AIME25 there is nobody to be better than"
    latex = table(*runs, form="latex")
    assert r"M\_1 & SAPO & $20.0$ {\scriptsize $[" in latex and r"\mathbf{90.0}" in latex
    assert latex.count(r"\midrule") == 2 and "& --" in latex
    assert "are both 'M_1', 'SAPO'" in table(runs[0], runs[0], status=2)
    write(tmp_path / "c", 0.2, data="other")
    assert "different questions" in table(runs[0], tmp_path / "c", status=2)
    assert "no such folder" in table(tmp_path / "none", status=2)


def test_folders_with_an_equals_sign(tmp_path):
    write(tmp_path / "lr=1e-6", 0.5)
    assert "| lr=1e-6 | 50.0 [" in table(tmp_path / "lr=1e-6")
    assert "| Q | SAPO | 50.0 [" in table(f"Q/SAPO={tmp_path / 'lr=1e-6'}")
    assert f"{tmp_path / 'none'}: no such folder" in table(f"SAPO={tmp_path / 'none'}", status=2)


def test_trained_models_bring_their_names(tmp_path):
    model = tmp_path / "runs" / "x"
    model.mkdir(parents=True)
    (model / "report.json").write_text(json.dumps({"model": "Qwen/Q", "method": "gtpo"}))
    write(tmp_path / "e", 0.5, model=str(model))
    assert "| Qwen/Q | gtpo | 50.0 [" in table(tmp_path / "e")


def test_what_a_checkpoint_calls_itself_is_no_markup(tmp_path):
    model = tmp_path / "runs" / "x"
    model.mkdir(parents=True)
    named = {"model": "M|x\n\n# hi <img src=x>", "method": "a|b"}
    (model / "report.json").write_text(json.dumps(named))
    write(tmp_path / "e", 0.5, model=str(model))
    assert r"| M\|x # hi &lt;img src=x&gt; | a\|b | 50.0 [" in table(tmp_path / "e")


def test_what_a_checkpoint_calls_itself_is_no_formula(tmp_path):
    model = tmp_path / "runs" / "x"
    model.mkdir(parents=True)
    (model / "report.json").write_text(json.dumps({"model": "=1+1", "method": "@a\nb"}))
    write(tmp_path / "e", 0.5, model=str(model))
    for row in csv.reader(io.StringIO(table(tmp_path / "e", form="csv")).readlines()[1:]):
        assert row[:2] == ["'=1+1", "'@a b"]
