"""Accuracies over repeated samples of the same questions, with intervals that respect that.

A question is the unit of chance: its samples share its difficulty, so `k` samples of it are not
`k` questions. Every interval here is clustered by question and is about the population of questions
that the benchmark was drawn from.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from acpo.intervals import Estimate, mean_interval, share_interval


@dataclass(frozen=True)
class QuestionCounts:
    """Samples of one question that were correct, and that were judged at all: one that nothing
    could judge says nothing of the model. `wrong_votes` counts those behind each wrong answer."""

    id: str
    correct: int
    decided: int
    wrong_votes: tuple[int, ...] = ()


class Comparison(NamedTuple):
    """A minus B over the questions both answered, on how many of which A is better and worse, and
    the two-sided exact sign test over those."""

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


def majority_at(counts: Sequence[QuestionCounts], k: int) -> Estimate | None:
    """maj@k: the chance that the most frequent answer of `k` samples is correct, over questions.

    None where a question has fewer than `k` decided samples, as with `pass_at`.
    """
    if not counts or any(entry.decided < k for entry in counts):
        return None
    values = [majority_probabilities(entry)[k - 1] for entry in counts]
    return share_interval(values, draws=len(values))


@functools.lru_cache(maxsize=4096)
def majority_probabilities(entry: QuestionCounts) -> list[float]:
    """maj@1 to maj@n of one question: exact, over all ways to draw k of its n samples.

    Correct samples agree however they are written; ties count by their share; samples without an
    answer do not vote, and when none has one the vote is wrong. For a winning count j, the draws in
    which every wrong answer has fewer than j votes, or as many and ties, are the coefficients of a
    product of polynomials, one per answer, in the number of samples drawn and the number of ties.
    """
    import numpy as np

    n = entry.decided
    silent = n - entry.correct - sum(entry.wrong_votes)
    total = np.zeros(n + 1)
    for j in range(1, entry.correct + 1):
        ties = n // j
        ways = np.zeros((n + 1, ties + 1))
        ways[j, 0] = math.comb(entry.correct, j)
        for size in entry.wrong_votes:
            below = [math.comb(size, drawn) for drawn in range(min(size, j - 1) + 1)]
            grown = _shifted_sum(ways, below)
            if size >= j:
                grown[j:, 1:] += math.comb(size, j) * ways[: n + 1 - j, :-1]
            ways = grown
        ways = _shifted_sum(ways, [math.comb(silent, drawn) for drawn in range(silent + 1)])
        total += ways @ (1.0 / np.arange(1, ties + 2))
    return [float(total[k] / math.comb(n, k)) for k in range(1, n + 1)]


def _shifted_sum(ways: Any, factors: Sequence[int]) -> Any:
    grown = factors[0] * ways
    for drawn, factor in enumerate(factors[1:], 1):
        grown[drawn:] += factor * ways[: len(ways) - drawn]
    return grown


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
    tail = sum(math.comb(trials, wins) for wins in range(min(better, worse) + 1))
    return min(1.0, 2 * tail / 2**trials)
