"""Accuracies over repeated samples of the same questions, with intervals that respect that.

A question is the unit of chance: its samples share its difficulty, so `k` samples of it are not
`k` questions. Every interval here is clustered by question and is about the population of questions
that the benchmark was drawn from.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from acpo.intervals import Estimate, mean_interval, share_interval

_CURVES = 1 << 16
"""Different curves that are kept: more than any benchmark has questions."""


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
    return _at(counts, k, lambda entry: _pass_curve(entry.decided, entry.correct))


def _at(
    counts: Sequence[QuestionCounts], k: int, curve: Callable[[QuestionCounts], Sequence[float]]
) -> Estimate | None:
    if not counts or any(entry.decided < k for entry in counts):
        return None
    draws = sum(entry.decided for entry in counts) // k
    return share_interval([curve(entry)[k - 1] for entry in counts], draws=draws)


def pass_probability(n: int, c: int, k: int) -> float:
    """1 - C(n-c, k) / C(n, k): unbiased for pass@k from `n` samples with `c` correct.

    Chen et al., "Evaluating Large Language Models Trained on Code", equation 1.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"n={n}, c={c}, k={k}: need 0 <= c <= n and 1 <= k <= n")
    return _pass_curve(n, c)[k - 1]


@functools.lru_cache(maxsize=_CURVES)
def _pass_curve(n: int, c: int) -> tuple[float, ...]:
    """pass@1 to pass@n: the chance of no correct sample shrinks with every one drawn."""
    misses = (max(n - c - drawn, 0) / (n - drawn) for drawn in range(n))
    return tuple(1.0 - missed for missed in itertools.accumulate(misses, operator.mul))


def majority_at(counts: Sequence[QuestionCounts], k: int) -> Estimate | None:
    """maj@k: the chance that the most frequent answer of `k` samples is correct, over questions.

    None where a question has fewer than `k` decided samples, as with `pass_at`.
    """
    return _at(counts, k, majority_probabilities)


def majority_probabilities(entry: QuestionCounts) -> tuple[float, ...]:
    """maj@1 to maj@n of one question: exact, over all ways to draw k of its n samples.

    Correct samples agree however they are written; ties count by their share; samples without an
    answer do not vote, and when none has one the vote is wrong.
    """
    return _majority_curve(entry.decided, entry.correct, tuple(sorted(entry.wrong_votes)))


@functools.lru_cache(maxsize=_CURVES)
def _majority_curve(n: int, correct: int, wrong: tuple[int, ...]) -> tuple[float, ...]:
    """For each winning count j, the chance that of k samples j are correct and no wrong answer has
    more. Answers of fewer than j samples cannot, and are drawn together with silent samples."""
    logs = np.array([math.lgamma(i + 1) for i in range(n + 1)])
    total = np.zeros(n + 1)
    least = 1
    for most in sorted({min(size, correct) for size in wrong} | {correct}):
        rivals = [size for size in wrong if size >= least]
        seen = correct + sum(rivals)
        wins = np.zeros(seen + 1)
        for j in range(least, most + 1):
            share = _wins(logs, correct, rivals, j)
            wins[: len(share)] += share
        for drawn in np.flatnonzero(wins):
            weights = _weights(logs, seen, drawn, n - seen, np.arange(n - seen + 1))
            total[drawn : drawn + n - seen + 1] += wins[drawn] * weights
        least = most + 1
    # Logarithms leave 1 - 1e-15 of a certainty.
    return tuple(min(1.0, round(float(value), 12)) for value in total[1:])


def _wins(logs: Any, correct: int, rivals: Sequence[int], j: int) -> Any:
    """The chance, by samples drawn of the correct ones and all rivals, that j correct ones win.

    Rivals come in one after the other. `ways` has a row for every number of samples drawn and a
    column for every number of ties, and holds chances: the numbers of ways outgrow a float.
    """
    ways = np.zeros((j + 1, 1))
    ways[j, 0] = 1.0
    seen = correct
    for size in rivals:
        rows, ties = ways.shape
        grown = np.zeros((rows + j, ties + 1))
        filled = np.flatnonzero(ways.any(axis=1))
        if len(filled) <= j:  # the shorter loop of two that do the same
            for drawn in filled:
                weights = _weights(logs, seen, drawn, size, np.arange(j + 1))[:, None]
                grown[drawn : drawn + j, :ties] += weights[:j] * ways[drawn]
                grown[drawn + j, 1:] += weights[j] * ways[drawn]
        else:
            for votes in range(j + 1):
                weights = _weights(logs, seen, np.arange(rows), size, votes)[:, None]
                tied = int(votes == j)
                grown[votes : votes + rows, tied : tied + ties] += weights * ways
        seen += size
        ways = grown
    return ways @ (1.0 / np.arange(1, ways.shape[1] + 1))


def _weights(logs: Any, n: int, drawn: Any, m: int, more: Any) -> Any:
    """C(n, drawn) C(m, more) / C(n + m, drawn + more), of the logarithms of factorials."""
    ways = logs[n] - logs[drawn] - logs[n - drawn] + logs[m] - logs[more] - logs[m - more]
    both = drawn + more
    return np.exp(ways - logs[n + m] + logs[both] + logs[n + m - both])


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
