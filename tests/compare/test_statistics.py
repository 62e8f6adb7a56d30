"""Intervals and verdicts: known values, and the right rate of false alarms on simulated studies."""

import math
import random

import pytest

from acpo.compare.plan import end_of_curve
from acpo.compare.statistics import (
    bootstrap,
    effect_size,
    holm,
    mean_over_seeds,
    p_value,
    ranks,
    signed_rank_p,
)
from acpo.compare.store import pack_verdicts
from acpo.compare.summary import area, band, collapsed, difference, pass_at_each, verdict


def test_interval_by_hand():
    found = mean_over_seeds([1.0, 2.0, 3.0])
    half = 4.30265 / 3**0.5
    assert found == pytest.approx((2.0, 2 - half, 2 + half, 3), abs=1e-4)
    assert mean_over_seeds([0.3]) == (0.3, None, None, 1)


def runs(accuracies):
    return {seed: {"accuracy": {"value": value}} for seed, value in accuracies.items()}


def test_differences_are_paired_by_seed():
    ours, theirs = {0: 0.5, 1: 0.9, 2: 0.1}, {1: 0.8, 0: 0.4, 3: 0.0}
    found = difference(runs(ours), runs(theirs))
    assert found["value"] == pytest.approx(0.1) and found["seeds"] == found["won"] == 2
    assert found["high"] - found["low"] == pytest.approx(0.0, abs=1e-12)
    assert difference(runs({0: 1.0}), runs({1: 1.0})) is None


def test_equal_differences_are_equal_and_none_is_none():
    """0.55 - 0.50 and 0.60 - 0.55 are not, as they stand; nor is 0.1 + 0.2 - 0.3 nothing."""
    ours = runs(dict(enumerate([0.55, 0.60, 0.65, 0.50, 0.70, 0.60])))
    theirs = runs(dict(enumerate([0.50, 0.55, 0.60, 0.55, 0.65, 0.65])))
    assert difference(ours, theirs)["signed_rank_p"] == 44 / 64
    nothing = difference(runs({0: 0.1 + 0.2}), runs({0: 0.3}))
    assert (nothing["won"], nothing["signed_rank_p"]) == (0, 1.0)


def test_ranks_share_places():
    assert ranks({"a": 0.1, "b": 0.3, "c": 0.3}) == {"a": 3, "b": 1, "c": 1}


def simulated_study(rng, rows, seeds, effect=0.0):
    """Accuracies of equal rows: what seeds share, and noise of their own. The last may differ."""
    shared = [rng.gauss(0.7, 0.05) for _ in range(seeds)]
    noise = [[rng.gauss(0, 0.02) for _ in range(seeds)] for _ in range(rows)]
    table = [{s: shared[s] + own[s] for s in range(seeds)} for own in noise]
    table[-1] = {s: value + effect for s, value in table[-1].items()}
    return table


def compared(row, base):
    return difference(runs(row), runs(base))


def verdicts(table):
    """Of all rows against the first."""
    found = {str(i): compared(row, table[0]) for i, row in enumerate(table) if i}
    adjusted = holm({name: one["p_value"] for name, one in found.items()}, len(found))
    return [verdict(found[name], adjusted[name]) for name in found]


def test_equal_rows_differ_at_the_nominal_rate():
    rng = random.Random(0)
    single = family = 0
    worlds, rows = 1000, 10
    for _ in range(worlds):
        table = simulated_study(rng, rows, seeds=6)
        single += compared(table[1], table[0])["p_value"] <= 0.05
        family += any(word in ("better", "worse") for word in verdicts(table))
    assert 0.035 < single / worlds < 0.065, "5% of single tests"
    assert family / worlds < 0.06, "at most 5% of studies say anything of equal rows"


def test_a_real_difference_is_found():
    rng = random.Random(1)
    tables = [simulated_study(rng, 10, seeds=8, effect=-0.1) for _ in range(200)]
    assert sum(verdicts(table)[-1] == "worse" for table in tables) > 190


def test_what_one_test_shows_and_the_family_does_not_is_not_settled():
    above = {"value": 0.3, "low": 0.1, "p_value": 0.02}
    below = {**above, "value": -0.3}
    assert verdict(above, 0.04) == "better" and verdict(below, 0.04) == "worse"
    assert verdict(above, 0.2) == "not settled (alone: better)"
    assert verdict(below, 0.2) == "not settled (alone: worse)"
    assert verdict({**above, "p_value": 0.2}, 0.2) == "not told apart"
    assert verdict(None, None) == verdict({**above, "low": None}, 0.2) == ""


def test_equal_differences_of_a_few_seeds_show_nothing():
    assert compared({0: 0.5, 1: 0.8}, {0: 0.4, 1: 0.7})["p_value"] == 1.0, "it comes in steps"
    assert p_value([0.1, 0.1001]) < 0.05
    assert p_value([0.3]) == 1.0 and effect_size([0.1, 0.1, 0.1]) is None


def test_tests_by_hand():
    assert p_value([1.0, 2.0, 3.0]) == pytest.approx(0.07418, abs=1e-5)  # t = 3.4641, 2 degrees
    assert effect_size([1.0, 2.0, 3.0]) == pytest.approx(2.0 * (1 - 3 / 7))
    found = {"a": 0.01, "b": 0.04, "c": 0.03}
    assert holm(found, 3) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm(found, 7) == pytest.approx({"a": 0.07, "c": 0.18, "b": 0.2}), "four are to come"
    assert signed_rank_p([0.1, 0.2, 0.3, 0.4]) == 2 / 16
    assert signed_rank_p([-0.1, 0.2, 0.3, 0.4]) == 4 / 16  # 9 of 10: 0, 1, 9 and 10
    assert signed_rank_p([0.1, 0.1, 0.0]) == 2 / 4 and signed_rank_p([0.0]) == 1.0


def test_the_bootstrap_covers_seeds_and_problems():
    rng = random.Random(2)
    covered = 0
    for _ in range(200):
        seeds = [rng.gauss(0.0, 0.05) for _ in range(12)]
        problems = [rng.gauss(0.0, 0.3) for _ in range(60)]
        found = bootstrap(
            [[0.1 + s + p + rng.gauss(0, 0.2) for p in problems] for s in seeds], draws=400
        )
        covered += found.low < 0.1 < found.high
    assert 0.88 < covered / 200 < 0.99
    assert bootstrap([[0.5, 0.5], [0.5, 0.5]])[:3] == (0.5, 0.5, 0.5)


def test_pass_at_k_is_unbiased_and_needs_all_seeds():
    kept = {"verdicts": pack_verdicts([[True, False, False, False], [True] * 4])}
    found = pass_at_each([{"accuracy": kept}, {"pass_at": kept, "accuracy": {}}])
    assert {k: one["value"] for k, one in found.items()} == {"1": 0.625, "2": 0.75, "4": 1.0}
    assert pass_at_each([{"accuracy": kept}, {"accuracy": {"value": 0.5}}]) == {}


def test_a_collapse_is_told_from_a_bad_rollout():
    def run(*points):
        return {"curve": [{"step": i, "accuracy": point} for i, point in enumerate(points)]}

    assert collapsed(run(0.1, 0.4, 0.5, 0.5, 0.2, 0.1, 0.1))
    assert not collapsed(run(0.1, 0.4, 0.5, 0.5, 0.4, 0.5, 0.1)) and not collapsed({})
    assert area(run(0.1, 0.3)) == pytest.approx(0.2) and area({}) is None
    silent = run(0.1, 0.3, math.nan)  # a last rollout without a verdict
    assert area(silent) == pytest.approx(0.2) and end_of_curve(silent, "accuracy") == 0.3
    assert [point["step"] for point in band([silent], "accuracy")] == [0, 1]


def test_intervals_of_shares_stay_within_what_is_possible():
    found = mean_over_seeds([0.9, 1.0]).within(0.0, 1.0)
    assert found.high == 1.0 and 0 <= found.low < 0.95
    assert mean_over_seeds([0.9]).within(0.0, 1.0) == (0.9, None, None, 1)
    entries = [[{"step": 4, "reversed": share, "entropy": 90 * share}] for share in (0.0, 0.01)]
    for name, most in (("reversed", 1.0), ("entropy", 10.0)):
        (point,) = band([{"curve": curve} for curve in entries], name)
        assert point["low"] == 0.0 < point["value"] < point["high"] < most
