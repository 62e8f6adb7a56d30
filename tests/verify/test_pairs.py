"""Answers judged by hand (pairs.txt before the verifier was written for them), class by class."""

from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

# Right answers that are not recognised, with the reason.
MISSED = {
    "0.333...": "how the dots go on is not said",
    "_5C_2": "one of a dozen ways to write a binomial",
    "5\\;\\mathrm{kg\\cdot m/s}": "a unit with a sign of maths in it",
    "@So $\\boxed 5$.": "TeX boxes the 5 of \\boxed 57 alone: without braces there is no answer",
    "dcba": "four bare letters are a word, whose letters do not commute",
}
# (gold, answer) where bare math-verify, given the two boxes, judges differently from a person.
BARE_DIFFERS = {
    ("5", "5."): "a full stop after the number is punctuation",
    ("10000", "10\\,000"): "a thin space groups digits",
    ("7/2", "3 1/2"): "a mixed number without \\frac",
    ("12.5\\%", "12.5"): "math-verify drops the percent sign of integers only",
    ("33\\frac{1}{3}\\%", "\\frac{1}{3}"): "a mixed number in percent",
    ("\\text{Tuesday}", "Tuesday."): "a full stop after the word is punctuation",
    ("listen", "silent"): "letters are factors to math-verify, and factors commute",
    ("1011_2", "1011_3"): "math-verify drops the base",
    ("-1", "i^2"): "math-verify reads i as a symbol in a power",
    ("1000", "1e3"): "the notation of programs is 1 times e times 3 in LaTeX",
    ("(5,\\infty)", "x>5"): "math-verify takes an interval for an inequality, not the other way",
}


class Pair(NamedTuple):
    kind: str
    answer: str
    gold: str
    right: bool

    @property
    def text(self) -> str:
        if self.answer.startswith("@"):
            return self.answer[1:].replace("\u23ce", "\n")
        return f"The answer is $\\boxed{{{self.answer}}}$."


def read(name: str) -> list[Pair]:
    found, kind = [], ""
    for line in Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            kind = line.strip("[]")
        elif line[:2] in ("+ ", "- "):
            found.append(Pair(kind, *line[2:].split(" ::: "), line[0] == "+"))
    return found


@cache
def pairs() -> list[Pair]:
    return read("pairs.txt") + read("equivalence.txt") + read("forms.txt")


@pytest.fixture(scope="module")
def misjudged(pool) -> list[Pair]:
    verdicts = pool.verify_all((pair.text, pair.gold) for pair in pairs())
    return [p for p, v in zip(pairs(), verdicts, strict=True) if v.correct is not p.right]


def test_there_are_enough_pairs_and_none_twice():
    assert len({(pair.text, pair.gold) for pair in pairs()}) == len(pairs()) >= 1300
    assert min(Counter(pair.right for pair in pairs()).values()) >= 600


def test_no_wrong_answer_is_accepted(misjudged):
    assert [pair for pair in misjudged if not pair.right] == []


def test_right_answers_are_recognised(misjudged):
    """A missed one that is recognised after an update leaves the list above."""
    missed = {pair.answer for pair in misjudged if pair.right}
    print(f"\npairs: {len(pairs()) - len(misjudged)} of {len(pairs())} as judged by hand")
    assert missed == set(MISSED)


def test_differences_from_bare_math_verify_are_the_explained_ones():
    from math_verify import parse, verify

    held = [pair for pair in read("equivalence.txt") if pair.answer not in MISSED]
    held += [pair for pair in read("pairs.txt") if (pair.gold, pair.answer) in BARE_DIFFERS]
    differing = set()
    for _, answer, gold, right in held:
        if verify(parse(f"\\boxed{{{gold}}}"), parse(f"\\boxed{{{answer}}}")) is not right:
            differing.add((gold, answer))
    print(f"\nbare math-verify: {len(held) - len(differing)} of {len(held)}")
    assert differing == set(BARE_DIFFERS)
