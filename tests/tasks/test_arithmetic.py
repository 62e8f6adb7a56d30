"""A number that is still to be worked out answers no question for a number."""

import pytest

from acpo.tasks import get_task
from acpo.tasks.grading import Judges, vote
from acpo.verify import verify_math
from acpo.verify.verdict import Outcome

ROW = {"problem": "What is 504 + 766 + 149?", "answer": "1419"}
ARITHMETIC = get_task("arithmetic")


def judged(completion, row=ROW):
    with Judges() as judges:
        return judges.verify(ARITHMETIC, completion, row).result()


@pytest.mark.parametrize(
    "answer",
    [
        "1419",
        "1,419",
        "1{,}419",
        "+1419",
        "1419.0",
        "1419.",
        "1419 dollars",
        "\\$1419",
        "\\mathbf{1419}",
    ],
)
def test_a_number_in_digits_is_right(answer):
    assert judged(f"So \\boxed{{{answer}}}").correct


@pytest.mark.parametrize(
    "answer",
    [
        *("504 + 766 + 149", "1270 + 149", "1419 + 0", "1419^1", "\\frac{1419}{1}", "2838/2"),
        *("504+766+149=1419", "1418=1419", "\\sqrt{2013561}", "1.419\\times 10^3", "--1419"),
        *("1419, 1418", "1419 or 1418", "x", "", "1419" * 200, "{" * 9_000, "nan", "1_419"),
    ],
)
def test_what_is_to_be_worked_out_is_not(answer):
    assert judged(f"So \\boxed{{{answer}}}").outcome is Outcome.INCORRECT


def test_the_math_judge_takes_the_sum_for_its_value():
    """Which is why this task is there; the day it does not, it may go."""
    assert verify_math("\\boxed{504 + 766 + 149}", "1419").correct


@pytest.mark.parametrize("gold", ["x + 1", "504 + 766", "", "7/2", None])
def test_a_gold_that_is_no_number_judges_nothing(gold):
    assert judged("\\boxed{3}", {"answer": gold}).outcome is Outcome.UNPARSEABLE_GOLD
    assert judged("\\boxed{3}", {}).outcome is Outcome.UNPARSEABLE_GOLD


def test_equal_numbers_vote_alike():
    assert vote(ARITHMETIC, "\\boxed{1,419.0}") == vote(ARITHMETIC, "\\boxed{1419}") == "1419"
    assert vote(ARITHMETIC, "\\boxed{504 + 766}") is None
