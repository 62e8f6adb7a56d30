"""Intervals and verdicts: known values, and the right rate of false alarms on simulated studies."""

import random

import pytest

from acpo.compare.statistics import (
    SeedEstimate,
    mean_over_seeds,
    paired_difference,
    ranks,
    simultaneous_level,
)
from acpo.compare.summary import band, verdict


def test_interval_by_hand():
    found = mean_over_seeds([1.0, 2.0, 3.0])
    half = 4.30265 / 3**0.5
    assert found == pytest.approx((2.0, 2 - half, 2 + half, 3), abs=1e-4)
    assert mean_over_seeds([0.3]) == (0.3, None, None, 1)
    assert not mean_over_seeds([0.3]).excludes_zero


def test_differences_are_paired_by_seed():
    ours, theirs = {0: 0.5, 1: 0.9, 2: 0.1}, {1: 0.8, 0: 0.4, 3: 0.0}
    found = paired_difference(ours, theirs)
    assert found.value == pytest.approx(0.1) and found.seeds == 2
    assert found.high - found.low == pytest.approx(0.0, abs=1e-12)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def test_ranks_share_places():
    assert ranks({"a": 0.1, "b": 0.3, "c": 0.3}) == {"a": 3, "b": 1, "c": 1}


def simulated_study(rng, rows, seeds, effect=0.0):
    """Accuracies of equal rows: what seeds share, and noise of their own. The last may differ."""
    shared = [rng.gauss(0.7, 0.05) for _ in range(seeds)]
    noise = [[rng.gauss(0, 0.02) for _ in range(seeds)] for _ in range(rows)]
    table = [{s: shared[s] + own[s] for s in range(seeds)} for own in noise]
    table[-1] = {s: value + effect for s, value in table[-1].items()}
    return table


def test_equal_rows_differ_at_the_nominal_rate():
    rng = random.Random(0)
    single = family = 0
    worlds, rows = 1500, 10
    for _ in range(worlds):
        table = simulated_study(rng, rows, seeds=6)
        wide = simultaneous_level(rows - 1)
        single += paired_difference(table[1], table[0]).excludes_zero
        alarms = [paired_difference(row, table[0], level=wide) for row in table[1:]]
        family += any(verdict(alarm, alarm) in ("better", "worse") for alarm in alarms)
    assert 0.035 < single / worlds < 0.065, "5% of single intervals"
    assert family / worlds < 0.06, "at most 5% of studies say anything of equal rows"


def test_a_real_difference_is_found():
    rng = random.Random(1)
    found = 0
    for _ in range(200):
        table = simulated_study(rng, 10, seeds=8, effect=-0.1)
        wide = paired_difference(table[-1], table[0], level=simultaneous_level(9))
        found += verdict(wide, paired_difference(table[-1], table[0])) == "worse"
    assert found > 190


def test_what_one_interval_shows_and_the_family_does_not_is_not_settled():
    inside, above, below = (SeedEstimate(v, v - 0.2, v + 0.2, 5) for v in (0.1, 0.3, -0.3))
    assert verdict(above, above) == "better" and verdict(below, below) == "worse"
    assert verdict(inside, above) == "not settled (alone: better)"
    assert verdict(inside._replace(value=-0.1), below) == "not settled (alone: worse)"
    assert verdict(inside, inside) == "no difference shown"
    assert verdict(None, None) == verdict(SeedEstimate(0.1, None, None, 1), above) == ""


def test_equal_differences_of_a_few_seeds_show_nothing():
    found = paired_difference({0: 0.5, 1: 0.8}, {0: 0.4, 1: 0.7})
    assert not found.excludes_zero, "accuracies come in steps"
    assert mean_over_seeds([0.1, 0.1001]).excludes_zero


def test_intervals_of_shares_stay_within_what_is_possible():
    found = mean_over_seeds([0.9, 1.0]).within(0.0, 1.0)
    assert found.high == 1.0 and 0 <= found.low < 0.95
    assert mean_over_seeds([0.9]).within(0.0, 1.0) == (0.9, None, None, 1)
    entries = [[{"step": 4, "reversed": share, "entropy": 90 * share}] for share in (0.0, 0.01)]
    for name, most in (("reversed", 1.0), ("entropy", 10.0)):
        (point,) = band([{"curve": curve} for curve in entries], name)
        assert point["low"] == 0.0 < point["value"] < point["high"] < most
