"""Tests and intervals over prompts, against hand computation and by simulation."""

import itertools

import numpy as np
import pytest

from acpo.diagnose.clusters import EXACT_UP_TO, cluster_means, effect, interval, sign_flip


def test_means_of_prompts_by_hand():
    values = np.array([1.0, 3.0, np.nan, 10.0, np.nan])
    means = cluster_means(values, ["a", "a", "a", "b", "c"])
    np.testing.assert_array_equal(means, [2.0, 10.0])


@pytest.mark.parametrize(
    ("means", "p_value"),
    [
        ([1.0, 1.0, 1.0], 2 / 8),
        ([1.0, 2.0, 3.0], 2 / 8),
        ([1.0, -1.0], 1.0),
        ([3.0, -1.0], 1.0),  # |2| is reached by ±2 and by ±4
        ([5.0, 1.0, -1.0], 6 / 8),
        ([0.0, 0.0], 1.0),
        ([0.0, 0.0, 1.0, 1.0, 1.0, 1.0], 2 / 16),
        ([], 1.0),
        ([0.1, 0.2, -0.3, 1e-14], 1.0),  # 0.1 + 0.2 - 0.3 is rounding, and no evidence
    ],
)
def test_exact_sign_flips_by_hand(means, p_value):
    assert sign_flip(np.array(means)) == (pytest.approx(p_value), True)


def test_exact_sign_flips_by_enumeration():
    means = np.random.default_rng(0).normal(0.4, 1, 9)
    sums = [abs(np.dot(signs, means)) for signs in itertools.product((1, -1), repeat=9)]
    expected = np.mean(np.array(sums) >= abs(means.sum()) - 1e-9)
    assert sign_flip(means)[0] == pytest.approx(expected)


def test_random_sign_flips_agree_with_the_exact_ones(monkeypatch):
    means = np.random.default_rng(1).normal(0.5, 1, EXACT_UP_TO)
    exact, is_exact = sign_flip(means)
    monkeypatch.setattr("acpo.diagnose.clusters.EXACT_UP_TO", 0)
    drawn, is_drawn_exact = sign_flip(means)
    assert is_exact and not is_drawn_exact
    assert drawn == pytest.approx(exact, abs=0.005)


def test_pairs_of_one_prompt_are_not_evidence_on_their_own():
    """A hundred pairs of three prompts can never be more than three prompts say."""
    values = np.repeat([0.5, 0.6, 0.7], 100)
    found = effect(values, np.repeat(["a", "b", "c"], 100))
    assert (found.pairs, found.prompts, found.p_value, found.exact) == (300, 3, 0.25, True)
    assert found.mean == pytest.approx(0.6)
    assert found.size == pytest.approx(0.6 / 0.1)
    assert (found.low, found.high) == (pytest.approx(0.5), pytest.approx(0.7))


def test_under_the_null_the_test_rejects_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr("acpo.diagnose.clusters.EXACT_UP_TO", 10)
    rng = np.random.default_rng(2)
    rejected = [sign_flip(rng.standard_t(3, 10))[0] <= 0.05 for _ in range(600)]
    assert 0.02 < np.mean(rejected) < 0.08


def test_intervals_cover():
    rng = np.random.default_rng(3)
    covered = []
    for _ in range(60):
        prompts = np.repeat(np.arange(40), 3)
        values = np.repeat(rng.normal(1, 1, 40), 3) + rng.normal(0, 0.5, 120)
        low, high = interval(values, prompts)
        covered.append(low <= 1 <= high)
    assert np.mean(covered) > 0.8


def test_one_prompt_has_no_interval():
    found = effect(np.array([1.0, 2.0]), ["a", "a"])
    assert found.mean == 1.5 and found.p_value == 1.0
    assert np.isnan([found.low, found.high, found.size]).all()


def test_what_rounding_makes_of_equal_means_is_no_spread():
    """(0.1 + 0.1 + 0.1) / 3 is not 0.1: over that rounding a size would be 6e15."""
    found = effect(np.array([0.1, 0.3, 0.7]), ["a", "b", "c"])
    assert 0 < found.size_low < found.size < found.size_high < 10
    assert np.isnan(effect(np.array([0.1, 0.1, 0.1]), ["a", "b", "c"]).size)
