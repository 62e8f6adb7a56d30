"""A number that is still to be worked out answers no question for a number."""

import json

import pytest

from acpo.errors import ACPOError
from acpo.tasks import Task, get_task
from acpo.tasks.grading import Judges, gold_completion, vote
from acpo.tasks.questions import load_questions
from acpo.verify import verify_math
from acpo.verify.verdict import Outcome

ARITHMETIC = get_task("arithmetic")


def judged(completion, gold="1419"):
    with Judges() as judges:
        return judges.verify(ARITHMETIC, completion, {"answer": gold}).result()


@pytest.mark.parametrize(
    "answer",
    [
        *("1419", "1,419", "1{,}419", "+1419", "1419.0", "1419.", "1419 dollars", "\\$1419"),
        *("\\mathbf{1419}", "(1419)", "x = 1419", "504 + 766 + 149 = 1419", "= 1419"),
    ],
)
def test_a_number_in_digits_is_right(answer):
    assert judged(f"So \\boxed{{{answer}}}").correct


@pytest.mark.parametrize("answer", ["-835", "- 835", "\u2212835", "(-835)"])
def test_a_negative_number_too(answer):
    assert judged(f"So \\boxed{{{answer}}}", "-835").correct


@pytest.mark.parametrize(
    "answer",
    [
        *("504 + 766 + 149", "1270 + 149", "1419 + 0", "1419^1", "\\frac{1419}{1}", "2838/2"),
        *("1418=1419", "1419=504+766+149", "\\sqrt{2013561}", "1.419\\times 10^3", "--1419"),
        *("1419, 1418", "1419 or 1418", "(1419)(1)", "", "{" * 9_000, "1_419", "1419!"),
        *("\uff11\uff14\uff11\uff19", "1418", "0" * 500 + "1419", "1419\\%"),
    ],
)
def test_what_is_to_be_worked_out_is_not(answer):
    assert judged(f"So \\boxed{{{answer}}}").outcome is Outcome.INCORRECT


def test_the_math_judge_takes_the_sum_for_its_value():
    """Which is why this task is there; the day it does not, it may go."""
    assert verify_math("\\boxed{504 + 766 + 149}", "1419").correct


@pytest.mark.parametrize("gold", ["x + 1", "504 + 766", "", "7/2", None])
def test_a_gold_that_is_no_number_judges_nothing(gold):
    assert judged("\\boxed{3}", gold).outcome is Outcome.UNPARSEABLE_GOLD


def test_gold_and_votes_are_those_of_math():
    assert judged(gold_completion(ARITHMETIC, {"answer": "1419"})).correct
    assert vote(ARITHMETIC, "\\boxed{1,419}") == vote(ARITHMETIC, "\\boxed{1419}") == "1419"


def test_questions_of_ones_own_are_judged_so_in_evaluations(tmp_path):
    rows = [{"question": f"{n} + 1 =", "answer": n + 1} for n in range(4)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own.yaml").write_text("sums: {problems: sums.jsonl, grader: digits}\n")
    task = get_task(f"{tmp_path}/own.yaml:sums")
    first = load_questions(task.reference).questions[0]
    with Judges() as judges:
        answers = ("\\boxed{1}", "\\boxed{0 + 1}")
        assert [judges.verify(task, one, first.row).result().correct for one in answers] == [
            True,
            False,
        ]
    assert task.judge == "digits" and task.needs_gold
    with pytest.raises(Exception, match="'digits', or a function"):
        Task(grader="digit")


@pytest.mark.parametrize("name", ["arithmetic", "custom", "dapo_math", "math"])
def test_a_task_without_questions_asks_those_of_a_folder_and_judges_them_itself(name, tmp_path):
    row = {"problem": "1 + 1 =", "answer": "2"}
    (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    loaded = load_questions(name, tmp_path)
    assert [one.row["answer"] for one in loaded.questions] == ["2"]
    with Judges() as judges:
        verdict = judges.verify(loaded.task, "\\boxed{1 + 1}", loaded.questions[0].row).result()
    assert verdict.correct == (name != "arithmetic")
    remedy = f"as {name}.jsonl and pass it as --data-dir, .*'grader: {loaded.task.grader}'"
    with pytest.raises(ACPOError, match=remedy):
        load_questions(name)
    with pytest.raises(ACPOError, match=f"no {name}.jsonl in it"):
        load_questions(name, tmp_path / "elsewhere")
