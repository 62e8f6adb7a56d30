"""Effects over prompts: a sign-flip test and intervals that resample whole prompts.

Pairs of one prompt share completions, so they are no independent observations. A prompt is one:
its pairs are averaged, prompts count equally, and only prompts are flipped or drawn again.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

EXACT_UP_TO = 16
"""Prompts up to which every assignment of signs is tried."""
FLIPS = 100_000
RESAMPLES = 10_000
_CHUNK = 1_000


class Effect(NamedTuple):
    """A mean over prompts, with 95% intervals by the percentiles of a bootstrap over prompts."""

    pairs: int  # it is made from
    prompts: int  # they are of
    mean: float
    low: float
    high: float
    size: float  # mean over standard deviation between prompts (Cohen's d_z)
    size_low: float
    size_high: float
    p_value: float  # two-sided, by flipping the signs of prompts
    exact: bool  # whether every assignment of signs was tried


def effect(values: np.ndarray, prompts: Sequence[str]) -> Effect:
    """The effect that `values`, `[pairs]` with NaN for none, show over the pairs' prompts."""
    means = cluster_means(values, prompts)
    p_value, exact = sign_flip(means)
    drawn = [_sizes(again) for again in _drawn_again(means)]
    size = _sizes(means[None])[1] if len(means) > 1 else means[:0]
    return Effect(
        int(np.isfinite(values).sum()),
        len(means),
        float(means.mean()) if len(means) else np.nan,
        *_percentiles([mean for mean, _ in drawn]),
        float(size[0]) if len(size) else np.nan,
        *_percentiles([size for _, size in drawn]),
        p_value,
        exact,
    )


def cluster_means(values: np.ndarray, prompts: Sequence[str]) -> np.ndarray:
    """The mean of each prompt's values, prompts without any left out."""
    _, at = np.unique(np.asarray(prompts), return_inverse=True)
    known = np.isfinite(values)
    count = np.bincount(at[known], minlength=at.max(initial=-1) + 1)
    total = np.bincount(at[known], weights=values[known], minlength=len(count))
    return total[count > 0] / count[count > 0]


def sign_flip(means: np.ndarray) -> tuple[float, bool]:
    """The two-sided p-value of a mean of 0, and whether it is exact.

    Under the null each prompt's mean is as likely to have the other sign.
    """
    means = means[means != 0]  # their sign changes nothing
    if not len(means):
        return 1.0, True
    # Less what rounding makes of sums that are equal: it grows with the terms, not with their sum.
    reached = abs(means.sum()) - 1e-12 * np.abs(means).sum()
    if len(means) <= EXACT_UP_TO:
        numbers = np.arange(2 ** len(means))[:, None]
        signs = 1 - 2 * (numbers >> np.arange(len(means)) & 1)
        return float(np.mean(np.abs(signs @ means) >= reached)), True
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(FLIPS // _CHUNK):
        signs = 1 - 2 * rng.integers(0, 2, (_CHUNK, len(means)), dtype=np.int8)
        hits += int(np.sum(np.abs(signs @ means) >= reached))
    return (hits + 1) / (FLIPS + 1), False


def interval(values: np.ndarray, prompts: Sequence[str]) -> tuple[float, float]:
    """The 95% interval of the mean over prompts."""
    drawn = _drawn_again(cluster_means(values, prompts))
    return _percentiles([means.mean(axis=1) for means in drawn])


def _drawn_again(means: np.ndarray) -> Iterator[np.ndarray]:
    """`[_CHUNK, prompts]` means of prompts drawn with replacement; nothing for fewer than two."""
    rng, n = np.random.default_rng(0), len(means)
    for _ in range(RESAMPLES // _CHUNK if n > 1 else 0):
        yield means[rng.integers(0, n, (_CHUNK, n))]


def _sizes(means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of `[n, prompts]`, and those of them with a spread, in standard deviations.

    What rounding makes of equal means is no spread: among few prompts one is often drawn alone.
    """
    mean = means.mean(axis=1)
    spreads = np.ptp(means, axis=1) > 1e-12 * np.abs(means).max(axis=1)
    return mean, mean[spreads] / means[spreads].std(axis=1, ddof=1)


def _percentiles(draws: Sequence[np.ndarray]) -> tuple[float, float]:
    if not draws or not (joined := np.concatenate(draws)).size:
        return np.nan, np.nan
    low, high = np.percentile(joined, [2.5, 97.5])
    return float(low), float(high)
