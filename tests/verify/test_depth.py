"""Answers that are long or deep end in a verdict, however much of the stack is used already."""

import inspect
import sys

import pytest

from acpo.verify import Outcome, verify_math
from acpo.verify.math import MathJob, decide_without_algebra
from acpo.verify.normalise import oversized

CHAINS = {
    "sum": "1" + "+1" * 500,
    "difference": "1" + "-1" * 900,
    "product": "2" + "\\cdot 1" * 250,
    "quotient": "7" + "/1" * 900,
    "powers": "1" + "^1" * 900,
    "factors": "7" + "(1)" * 600,
    "roots": "\\sqrt" * 390 + "7",
    "factorials": "1" + "!^1" * 600,
    "angles": "\\langle " * 100 + "7,1" + "\\rangle " * 100,
    "angle signs": "\u27e8" * 900 + "7,1" + "\u27e9" * 900,
    "bars": "|" * 900 + "7" + "|" * 900,
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_judged(name):
    outcome = verify_math(f"\\boxed{{{CHAINS[name]}}}", "5").outcome
    assert outcome in (Outcome.INCORRECT, Outcome.LIMIT)


def test_a_long_sum_is_worth_what_it_adds_up_to():
    assert verify_math(f"\\boxed{{{CHAINS['sum']}}}", "501").correct
    assert verify_math("\\boxed{501}", CHAINS["sum"]).correct


def below(frames: int, call):
    """What `call` returns where only so many frames are left of the stack."""
    depth = sys.getrecursionlimit() - frames - len(inspect.stack())

    def down(steps):
        return call() if steps <= 0 else down(steps - 1)

    return down(depth)


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("(" * 39 + "7,1" + ")" * 39, "(7,1)", True),
        ("(" * 39 + "7,2" + ")" * 39, "(7,1)", False),
        ("1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1", "22", True),
        ("1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1", "23", False),
    ],
)
def test_a_deep_caller_gets_the_same_verdict(pool, answer, gold, right):
    decided = below(40, lambda: decide_without_algebra(f"\\boxed{{{answer}}}", gold))
    if isinstance(decided, MathJob):
        decided = pool.submit(decided).result()
    assert decided.correct is right


def test_sizes_count_what_signs_stand_for():
    assert oversized("\u00bd" * 180) is None
    assert "2000" in oversized("\u00bd" * 190)
    assert "40" in oversized("\u27e8" * 41)
    half = decide_without_algebra("\\boxed{%s}" % ("\u00bd" * 1000), "5")
    assert half.outcome is Outcome.LIMIT
    angles = decide_without_algebra(f"\\boxed{{{CHAINS['angles']}}}", "5")
    assert angles.outcome is Outcome.LIMIT
    assert decide_without_algebra("\\boxed{5}", CHAINS["angles"]).outcome is (
        Outcome.UNPARSEABLE_GOLD
    )
