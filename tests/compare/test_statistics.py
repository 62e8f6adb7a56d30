"""Intervals and verdicts: known values, and the right rate of false alarms on simulated studies."""

import random

import pytest

from acpo.compare.statistics import (
    mean_over_seeds,
    paired_difference,
    ranks,
    simultaneous_level,
)
from acpo.compare.summary import verdict


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
        family += any(verdict(alarm) != "no difference shown" for alarm in alarms)
    assert 0.035 < single / worlds < 0.065, "5% of single intervals"
    assert family / worlds < 0.06, "at most 5% of studies say anything of equal rows"


def test_a_real_difference_is_found():
    rng = random.Random(1)
    found = 0
    for _ in range(200):
        table = simulated_study(rng, 10, seeds=8, effect=-0.1)
        wide = paired_difference(table[-1], table[0], level=simultaneous_level(9))
        found += verdict(wide) == "worse"
    assert found > 190
