"""What may be said about rows from a handful of seeds each.

The seed is the unit of chance: one number per row and seed. Rows are compared seed by seed, since
runs of one seed share prompts, rollout randomness and evaluation problems.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from acpo.intervals import LEVEL, student_quantile

NO_WIDTH = 1e-9


class SeedEstimate(NamedTuple):
    """A mean over seeds with an interval; no interval from one seed."""

    value: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of 0.

        An interval of no width does not: accuracies come in steps, and that two seeds fell on the
        same one is no measure of chance.
        """
        if self.low is None or self.high is None:
            return False
        return self.low * self.high > 0 and self.high - self.low > NO_WIDTH

    def within(self, least: float, most: float) -> "SeedEstimate":
        """The interval cut to what is possible, which costs it no coverage."""
        if self.low is None or self.high is None:
            return self
        return self._replace(low=max(self.low, least), high=min(self.high, most))


def mean_over_seeds(values: Sequence[float], *, level: float = LEVEL) -> SeedEstimate:
    """The mean with Student's interval; of equal values, an interval of width 0."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return SeedEstimate(mean, None, None, count)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = student_quantile(count - 1, level) * math.sqrt(variance / count)
    return SeedEstimate(mean, mean - half, mean + half, count)


def paired_difference(
    ours: Mapping[int, float], theirs: Mapping[int, float], *, level: float = LEVEL
) -> SeedEstimate | None:
    """Mean of ours minus theirs over the seeds both have; None when there are none."""
    shared = [seed for seed in ours if seed in theirs]
    if not shared:
        return None
    return mean_over_seeds([ours[seed] - theirs[seed] for seed in shared], level=level)


def simultaneous_level(comparisons: int) -> float:
    """Bonferroni: the level at which all intervals together hold with 95%."""
    return 1 - (1 - LEVEL) / max(1, comparisons)


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """1 for the highest; equal values share a rank."""
    return {
        name: 1 + sum(other > value for other in values.values()) for name, value in values.items()
    }
