"""Student's quantile, and 95% intervals for shares and differences of one per question.

A question is the unit of chance: its samples share its difficulty, so `k` samples of it are not
`k` questions. Everything that reports an accuracy takes its interval from here.
"""

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

LEVEL = 0.95
NO_WIDTH = 1e-9
"""Shares come in steps: values this close are the same one, and no measure of chance."""


class Estimate(NamedTuple):
    """A number and its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1%} [{self.low:.1%}, {self.high:.1%}]"


def share_interval(shares: Sequence[float], *, draws: int) -> Estimate | None:
    """The mean of one share per question, with a Wilson interval at the effective sample size.

    The variance between questions gives the standard error; `p(1-p) / se^2` is the number of
    independent draws worth as much. It enters Wilson's interval, which stays inside [0, 1] and
    covers where a normal interval does not: near 0 and 1, and over few questions. When all
    questions agree the variance says nothing, and one draw per question is assumed.

    Args:
        shares: One value in [0, 1] per question.
        draws: Samples behind them: the most the effective sample size can be.
    """
    questions = len(shares)
    if questions == 0:
        return None
    mean, variance = _mean_and_variance(shares)
    effective = float(questions)
    if variance > 0:
        effective = min(mean * (1 - mean) * questions / variance, float(max(draws, questions)))
        effective = max(effective, 1.0)
    low, high = _wilson(mean, effective, student_quantile(questions - 1))
    return Estimate(mean, low, high)


def _wilson(p: float, n: float, z: float) -> tuple[float, float]:
    scale = 1 + z * z / n
    centre = (p + z * z / (2 * n)) / scale
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / scale
    # Exact at the ends, where rounding would leave 1e-17.
    return (0.0 if p == 0 else max(0.0, centre - half), 1.0 if p == 1 else min(1.0, centre + half))


def mean_interval(values: Sequence[float]) -> Estimate:
    """The mean of one difference in [-1, 1] per question, with Student's interval.

    When all questions agree the spread says nothing: at each end of the interval the others, as
    many as could with 2.5% chance leave none of them in the sample, are at that end of [-1, 1].
    """
    mean, half = mean_and_half_width(values)
    if half:
        return Estimate(mean, max(-1.0, mean - half), min(1.0, mean + half))
    others = 1 - ((1 - LEVEL) / 2) ** (1 / len(values))
    return Estimate(mean, mean - others * (mean + 1), mean + others * (1 - mean))


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of Student's interval for it: 0 where all values agree."""
    mean, variance = _mean_and_variance(values)
    count = len(values)
    return mean, student_quantile(count - 1) * math.sqrt(variance / count)


def _mean_and_variance(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    if max(values) - min(values) <= NO_WIDTH:
        return mean, 0.0
    return mean, math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


@functools.lru_cache(maxsize=4096)
def student_quantile(freedom: int, level: float = LEVEL) -> float:
    """t such that P(|T| < t) = level; the normal's for 0 degrees, which have no t."""
    if freedom < 0 or not 0 < level < 1:
        raise ValueError(f"freedom={freedom}, level={level}: need freedom >= 0 and 0 < level < 1")
    if freedom == 0 or freedom > 10_000:
        return NormalDist().inv_cdf((1 + level) / 2)
    low, high = 0.0, 1.0
    while student_probability(high, freedom) < level:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if student_probability(middle, freedom) < level:
            low = middle
        else:
            high = middle
    return high


def student_probability(t: float, freedom: int) -> float:
    """P(|T| < t), by the finite series for whole degrees (Abramowitz & Stegun 26.7.3, 26.7.4)."""
    theta = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(theta)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for step in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    if odd:
        return 2 / math.pi * (theta + math.sin(theta) * total)
    return math.sin(theta) * total
