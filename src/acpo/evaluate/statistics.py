"""Accuracies over repeated samples of the same questions, with intervals that respect that.

A question is the unit of chance: its samples share its difficulty, so `k` samples of it are not
`k` questions. Every interval here is clustered by question and is about the population of questions
that the benchmark was drawn from.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

LEVEL = 0.95


@dataclass(frozen=True)
class QuestionCounts:
    """What became of the samples of one question.

    Attributes:
        id: The question.
        correct: Samples judged correct.
        decided: Samples judged at all; one that nothing could judge says nothing of the model.
        majority: The share of the most frequent answers that is correct; None without a vote.
    """

    id: str
    correct: int
    decided: int
    majority: float | None = None


class Estimate(NamedTuple):
    """A number and its 95% interval."""

    value: float
    low: float
    high: float


class Comparison(NamedTuple):
    """A minus B over the questions both answered.

    Attributes:
        difference: Mean difference of accuracy with its interval.
        questions: Questions both have decided samples of.
        better: Questions on which A is better.
        worse: Questions on which B is better.
        p_value: Two-sided exact sign test over the questions that differ.
    """

    difference: Estimate
    questions: int
    better: int
    worse: int
    p_value: float


def mean_accuracy(counts: Sequence[QuestionCounts]) -> Estimate | None:
    """mean@k: the accuracy of one sample, averaged over questions. None without samples."""
    decided = [entry for entry in counts if entry.decided]
    shares = [entry.correct / entry.decided for entry in decided]
    return share_interval(shares, draws=sum(entry.decided for entry in decided))


def pass_at(counts: Sequence[QuestionCounts], k: int) -> Estimate | None:
    """pass@k: the chance that one of `k` samples is correct, averaged over questions.

    None where a question has fewer than `k` decided samples: no unbiased estimate exists, and
    leaving those questions out would bias the rest.
    """
    if not counts or any(entry.decided < k for entry in counts):
        return None
    values = [pass_probability(entry.decided, entry.correct, k) for entry in counts]
    return share_interval(values, draws=sum(entry.decided for entry in counts) // k)


def pass_probability(n: int, c: int, k: int) -> float:
    """1 - C(n-c, k) / C(n, k): unbiased for pass@k from `n` samples with `c` correct.

    Chen et al., "Evaluating Large Language Models Trained on Code", equation 1.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"n={n}, c={c}, k={k}: need 0 <= c <= n and 1 <= k <= n")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def majority_accuracy(counts: Sequence[QuestionCounts]) -> Estimate | None:
    """majority@k: how often the most frequent answer is correct; ties count by their share."""
    values = [entry.majority for entry in counts if entry.majority is not None]
    return share_interval(values, draws=len(values))


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
    mean = math.fsum(shares) / questions
    effective = float(questions)
    if questions > 1:
        variance = math.fsum((share - mean) ** 2 for share in shares) / (questions - 1)
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


def compare(a: Sequence[QuestionCounts], b: Sequence[QuestionCounts]) -> Comparison | None:
    """A minus B, paired by question. None when no question has samples of both."""
    theirs = {entry.id: entry for entry in b if entry.decided}
    pairs = [(entry, theirs[entry.id]) for entry in a if entry.decided and entry.id in theirs]
    if not pairs:
        return None
    differences = [ours.correct / ours.decided - its.correct / its.decided for ours, its in pairs]
    better = sum(value > 0 for value in differences)
    worse = sum(value < 0 for value in differences)
    return Comparison(
        mean_interval(differences), len(pairs), better, worse, sign_test(better, worse)
    )


def mean_interval(values: Sequence[float]) -> Estimate:
    """The mean of one difference in [-1, 1] per question, with Student's interval.

    When all questions agree the spread says nothing: the half-width is then the largest share of
    questions that could differ and still, with 2.5% chance, leave none of them in the sample.
    """
    count = len(values)
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / max(count - 1, 1)
    if variance > 0:
        half = student_quantile(count - 1) * math.sqrt(variance / count)
    else:
        half = 1 - ((1 - LEVEL) / 2) ** (1 / count)
    return Estimate(mean, max(-1.0, mean - half), min(1.0, mean + half))


def average(estimates: Sequence[Estimate]) -> Estimate:
    """The unweighted mean over benchmarks, whose questions are independent of each other."""
    count = len(estimates)
    value = math.fsum(entry.value for entry in estimates) / count
    below = math.hypot(*(entry.value - entry.low for entry in estimates)) / count
    above = math.hypot(*(entry.high - entry.value for entry in estimates)) / count
    return Estimate(value, value - below, value + above)


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact binomial p-value of `better` against `worse`; questions that tie are out."""
    trials = better + worse
    tail = term = 1
    for i in range(min(better, worse)):
        term = term * (trials - i) // (i + 1)
        tail += term
    return min(1.0, 2 * tail / 2**trials)


@functools.lru_cache(maxsize=1024)
def student_quantile(freedom: int) -> float:
    """The 97.5% quantile of Student's t; the normal's for 0 degrees, which have no t."""
    if freedom < 1 or freedom > 10_000:
        return 1.959963984540054
    low, high = 0.0, 20.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        if _central_probability(middle, freedom) < LEVEL:
            low = middle
        else:
            high = middle
    return high


def _central_probability(t: float, freedom: int) -> float:
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
