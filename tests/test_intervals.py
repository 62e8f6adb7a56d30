"""Intervals: printed tables, and coverage measured on simulated models."""

from statistics import NormalDist

import numpy as np
import pytest

from acpo.intervals import mean_interval, share_interval, student_quantile


# Printed tables of Student's t, two-sided 5%.
@pytest.mark.parametrize(
    ("freedom", "table"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (29, 2.045), (120, 1.980)],
)
def test_student_quantile_equals_the_printed_table(freedom, table):
    assert student_quantile(freedom) == pytest.approx(table, abs=6e-4)


@pytest.mark.parametrize(
    ("freedom", "level", "table"),
    [(7, 0.99, 3.499), (30, 0.999, 3.646), (1, 0.999, 636.619), (2, 0.5, 0.816)],
)
def test_student_quantile_at_other_levels(freedom, level, table):
    assert student_quantile(freedom, level) == pytest.approx(table, abs=6e-4)


def test_student_quantile_refuses_what_has_none():
    for freedom, level in ((-1, 0.95), (3, 0.0), (3, 1.0)):
        with pytest.raises(ValueError, match="freedom="):
            student_quantile(freedom, level)


def test_student_quantile_tends_to_the_normal():
    normal = NormalDist().inv_cdf(0.975)
    assert student_quantile(9_999) == pytest.approx(normal, abs=3e-4)
    assert student_quantile(10_001) == pytest.approx(normal, abs=1e-12)


@pytest.mark.parametrize("questions", [1, 2, 5, 30])
def test_coverage_where_all_differences_seen_agree(questions):
    """Worlds of +1 and -1, of which the sample shows +1 alone: exact, without a simulation."""
    low, high = mean_interval([1.0] * questions)[1:]
    assert low > -1 and high == 1
    for wrong in np.linspace(0, 1, 1001):
        missed = not low <= 1 - 2 * wrong <= high
        assert not missed or (1 - wrong) ** questions <= 0.0251


# (questions, samples, Beta of the questions' difficulty): from "every question its own" to
# "all alike", from hard to easy.
MODELS = [
    (30, 8, 0.3, 3.0),
    (30, 8, 0.5, 0.5),
    (30, 8, 5.0, 0.3),
    (30, 1, 0.5, 0.5),
    (100, 8, 0.2, 4.0),
    (100, 1, 2.0, 2.0),
    (164, 1, 0.8, 1.0),
    (500, 8, 2.0, 0.5),
    (500, 8, 50.0, 50.0),
]


@pytest.mark.parametrize(("questions", "k", "a", "b"), MODELS)
def test_coverage_of_the_mean(questions, k, a, b):
    rng = np.random.default_rng(7)
    # The least covered of these models is at 93.3%; its simulation error has to be well below 1%.
    worlds = max(1500, 300_000 // questions)
    hits = 0
    for _ in range(worlds):
        drawn = rng.binomial(k, rng.beta(a, b, questions)) / k
        estimate = share_interval(drawn.tolist(), draws=k * questions)
        hits += estimate.low <= a / (a + b) <= estimate.high
    assert 0.92 <= hits / worlds <= 0.98
