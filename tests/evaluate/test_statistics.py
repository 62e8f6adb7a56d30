"""Closed forms, edges, and coverage measured on simulated models."""

import itertools
import math

import numpy as np
import pytest

from acpo.evaluate import statistics
from acpo.evaluate.statistics import (
    QuestionCounts,
    average,
    compare,
    majority_at,
    majority_probabilities,
    mean_accuracy,
    pass_at,
    pass_probability,
    sign_test,
)
from acpo.intervals import Estimate, student_quantile


def counts(correct, decided) -> list[QuestionCounts]:
    pairs = zip(correct, decided, strict=True)
    return [QuestionCounts(str(i), int(c), int(n)) for i, (c, n) in enumerate(pairs)]


@pytest.mark.parametrize(("n", "c", "k"), [(8, 3, 1), (8, 3, 4), (6, 0, 2), (6, 6, 6), (7, 2, 6)])
def test_pass_probability_equals_enumeration(n, c, k):
    outcomes = [True] * c + [False] * (n - c)
    subsets = list(itertools.combinations(outcomes, k))
    assert pass_probability(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize("n", [64, 1030, 2000])
def test_curves_of_many_samples(n):
    """The numbers of ways to draw them are beyond a float."""
    c = n // 3
    for k in (1, 2, 7, n // 2, n - c, n):
        exact = 1 - math.comb(n - c, k) / math.comb(n, k)
        assert pass_probability(n, c, k) == pytest.approx(exact, abs=1e-12)
    # One wrong answer: a hypergeometric distribution says who has more.
    curve = majority_probabilities(QuestionCounts("q", c, n, (n - c,)))
    for k in (1, 2, 3, 8, n):
        exact = sum(
            math.comb(c, j) * math.comb(n - c, k - j) / math.comb(n, k) * (1 if 2 * j > k else 0.5)
            for j in range((k + 1) // 2, min(c, k) + 1)
        )
        assert curve[k - 1] == pytest.approx(exact, abs=1e-9)


def test_curves_are_computed_once():
    """Whatever the number of questions, and however they are called."""
    entries = [QuestionCounts(str(i), 3, 8, (2, 1)) for i in range(5000)]
    statistics._majority_curve.cache_clear()
    for k in range(1, 9):
        assert majority_at(entries, k) is not None
    assert statistics._majority_curve.cache_info().misses == 1


def test_pass_at_is_unbiased_by_monte_carlo():
    rng = np.random.default_rng(1)
    p, n, k = 0.3, 8, 4
    drawn = [pass_probability(n, c, k) for c in rng.binomial(n, p, 40_000)]
    error = np.std(drawn) / math.sqrt(len(drawn))
    assert abs(np.mean(drawn) - (1 - (1 - p) ** k)) < 4 * error


def test_pass_one_is_the_mean():
    entries = counts([0, 3, 8, 5], [8, 8, 8, 8])
    assert pass_at(entries, 1).value == pytest.approx(mean_accuracy(entries).value) == 0.5


def test_one_vote_is_the_mean_and_as_sure():
    """Eight samples of a question are eight votes of one."""
    entries = [QuestionCounts(str(i), 3 + i % 3, 8, (2, 1)) for i in range(30)]
    assert majority_at(entries, 1) == pytest.approx(mean_accuracy(entries))


@pytest.mark.parametrize("bad", [(3, 4, 1), (3, 1, 4), (3, 1, 0), (3, -1, 1)])
def test_pass_probability_refuses(bad):
    with pytest.raises(ValueError, match="need 0 <= c <= n"):
        pass_probability(*bad)


def test_more_samples_wanted_than_drawn_have_no_estimate():
    assert pass_at(counts([1, 2], [4, 8]), 8) is None
    assert pass_at(counts([1, 2], [4, 8]), 4) is not None


def test_zero_samples():
    assert mean_accuracy([]) is None
    assert mean_accuracy(counts([0, 0], [0, 0])) is None
    assert pass_at([], 1) is None
    assert majority_at(counts([1], [1]), 2) is None
    assert compare([], []) is None


def test_undecided_questions_leave_the_mean():
    assert mean_accuracy(counts([4, 0], [8, 0])).value == 0.5


def test_one_question_says_little():
    estimate = mean_accuracy(counts([8], [8]))
    assert estimate.value == 1.0 and estimate.high == 1.0 and estimate.low < 0.25


@pytest.mark.parametrize("questions", [5, 30, 500])
def test_all_right_and_all_wrong_keep_room(questions):
    right = mean_accuracy(counts([8] * questions, [8] * questions))
    wrong = mean_accuracy(counts([0] * questions, [8] * questions))
    assert right.value == right.high == 1.0 and wrong.value == wrong.low == 0.0
    assert right.low == pytest.approx(1 - wrong.high)
    z = student_quantile(questions - 1)
    assert right.low == pytest.approx(questions / (questions + z * z)), "Wilson at p = 1"


def test_interval_equals_wilson_by_hand():
    # One sample per question: the textbook Wilson interval, with n - 1 as the effective size.
    p, n, z = 0.3, 99, student_quantile(99)
    estimate = mean_accuracy(counts([1] * 30 + [0] * 70, [1] * 100))
    for bound in (estimate.low, estimate.high):
        assert (p - bound) ** 2 == pytest.approx(z * z * bound * (1 - bound) / n)


def test_repeating_samples_of_a_question_adds_no_evidence():
    once = mean_accuracy(counts([1, 0, 1, 0, 0, 1], [1] * 6))
    eight = mean_accuracy(counts([8, 0, 8, 0, 0, 8], [8] * 6))
    assert once == eight


@pytest.mark.parametrize(("questions", "k"), [(30, 8), (100, 8), (164, 1), (500, 8)])
def test_coverage_of_the_paired_difference(questions, k):
    rng = np.random.default_rng(8)
    hits = 0
    for _ in range(1000):
        hard = rng.beta(0.6, 1.0, questions)
        easier = 0.9 * hard + 0.1
        a = counts(rng.binomial(k, easier), [k] * questions)
        b = counts(rng.binomial(k, hard), [k] * questions)
        low, high = compare(a, b).difference[1:]
        hits += low <= 0.1 * (1 - 0.6 / 1.6) <= high
    assert 0.92 <= hits / 1000 <= 0.98


def test_pairing_beats_not_pairing():
    a, b = counts([8, 4, 7, 1], [8] * 4), counts([6, 2, 5, 0], [8] * 4)
    paired = compare(a, b).difference
    assert paired.low > 0
    assert mean_accuracy(b).high > mean_accuracy(a).low


@pytest.mark.parametrize(
    ("better", "worse", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 2 / 32), (8, 1, 20 / 512), (3, 3, 1.0)],
)
def test_sign_test_by_hand(better, worse, p):
    assert sign_test(better, worse) == pytest.approx(p)
    assert sign_test(worse, better) == pytest.approx(p)


def test_compare_pairs_by_question_only():
    a = [QuestionCounts("x", 1, 1), QuestionCounts("y", 0, 1), QuestionCounts("only a", 1, 1)]
    b = [QuestionCounts("y", 1, 1), QuestionCounts("x", 1, 1), QuestionCounts("only b", 0, 1)]
    result = compare(a, b)
    assert (result.questions, result.better, result.worse) == (2, 0, 1)
    assert result.difference.value == -0.5


def test_no_difference_anywhere_is_not_certainty():
    result = compare(counts([1] * 30, [1] * 30), counts([1] * 30, [1] * 30))
    assert result.difference.value == 0 and result.p_value == 1
    assert result.difference.high == pytest.approx(1 - 0.025 ** (1 / 30)) == -result.difference.low


def test_what_differs_by_rounding_alone_agrees():
    """Tenths subtracted from tenths, and the mean of ten times 62/63, are off by an ulp."""
    ours, theirs = counts([3, 8, 5, 2, 1], [10] * 5), counts([2, 7, 4, 1, 0], [10] * 5)
    difference = compare(ours, theirs).difference
    assert difference.value - difference.low == pytest.approx(1.1 * (1 - 0.025 ** (1 / 5)))
    alike = mean_accuracy(counts([62] * 10, [63] * 10))
    assert alike.low < 0.75, "one draw per question, not 630"


def test_average_adds_variances():
    combined = average([Estimate(0.5, 0.4, 0.6), Estimate(0.3, 0.2, 0.5)])
    assert combined.value == pytest.approx(0.4)
    assert combined.value - combined.low == pytest.approx(math.hypot(0.1, 0.1) / 2)
    assert combined.high - combined.value == pytest.approx(math.hypot(0.1, 0.2) / 2)
