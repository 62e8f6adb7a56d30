"""The hand-judged pairs, and where they differ from bare math-verify."""

import pytest

from verify.equivalence import DIFFERENT, MISSED, SAME

# Where bare math-verify, given the same two boxes, judges differently from a person.
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


def pairs() -> list[tuple[str, str, bool]]:
    same = [(*pair, True) for group in SAME.values() for pair in group]
    different = [(*pair, False) for group in DIFFERENT.values() for pair in group]
    return same + different


@pytest.fixture(scope="module")
def verdicts(pool):
    jobs = [(f"So \\boxed{{{answer}}}.", gold) for gold, answer, _ in pairs()]
    return pool.verify_all(jobs)


def test_there_are_enough_pairs_and_none_twice():
    assert len(pairs()) >= 200
    assert len({pair[:2] for pair in pairs()}) == len(pairs())


def test_pairs_are_judged_as_by_hand(verdicts):
    wrong = [
        (*pair, verdict)
        for pair, verdict in zip(pairs(), verdicts, strict=True)
        if verdict.correct is not pair[2]
    ]
    print(f"\nequivalence: {len(pairs()) - len(wrong)} of {len(pairs())} as judged by hand")
    assert wrong == []


def test_missed_pairs_are_still_missed(pool):
    """When one of these is recognised after an update, it belongs into the table above."""
    missed = [pair for group in MISSED.values() for pair in group]
    found = pool.verify_all((f"\\boxed{{{answer}}}", gold) for gold, answer in missed)
    assert [verdict.reward() for verdict in found] == [0.0] * len(missed)


def test_differences_from_bare_math_verify_are_the_explained_ones():
    from math_verify import parse, verify

    differing = set()
    for gold, answer, same in pairs():
        bare = verify(parse(f"\\boxed{{{gold}}}"), parse(f"\\boxed{{{answer}}}"))
        if bare is not same:
            differing.add((gold, answer))
    print(f"\nbare math-verify: {len(pairs()) - len(differing)} of {len(pairs())}")
    assert differing == set(BARE_DIFFERS)
