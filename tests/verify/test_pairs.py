"""The answers of pairs.txt, judged by hand in classes before the verifier was written for them."""

from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

# Right answers that are not recognised, with the reason.
MISSED = {
    "The answer is $\\boxed{0.333...}$.": "how the dots go on is not said",
    "The answer is $\\boxed{_5C_2}$.": "one of a dozen ways to write a binomial",
    "The answer is $\\boxed{5\\;\\mathrm{kg\\cdot m/s}}$.": "a unit with a sign of maths in it",
    "So $\\boxed 5$.": "TeX boxes the 5 of \\boxed 57 alone: without braces there is no answer",
}


class Pair(NamedTuple):
    kind: str
    text: str
    gold: str
    right: bool


@cache
def pairs() -> list[Pair]:
    found, kind = [], ""
    lines = Path(__file__).with_name("pairs.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith("["):
            kind = line.strip("[]")
        elif line[:2] in ("+ ", "- "):
            answer, gold = line[2:].split(" ::: ")
            text = f"The answer is $\\boxed{{{answer}}}$."
            if answer.startswith("@"):
                text = answer[1:].replace("\u23ce", "\n")
            found.append(Pair(kind, text, gold, line[0] == "+"))
    return found


@pytest.fixture(scope="module")
def misjudged(pool) -> list[Pair]:
    verdicts = pool.verify_all((pair.text, pair.gold) for pair in pairs())
    return [p for p, v in zip(pairs(), verdicts, strict=True) if v.correct is not p.right]


def test_there_are_enough_pairs_and_none_twice():
    assert len(pairs()) >= 300
    assert len({(pair.text, pair.gold) for pair in pairs()}) == len(pairs())
    assert min(Counter(pair.right for pair in pairs()).values()) >= 150


def test_no_wrong_answer_is_accepted(misjudged):
    assert [pair for pair in misjudged if not pair.right] == []


def test_right_answers_are_recognised(misjudged):
    missed = {pair.text for pair in misjudged if pair.right}
    print(f"\npairs: {len(pairs()) - len(misjudged)} of {len(pairs())} as judged by hand")
    assert missed == set(MISSED)
