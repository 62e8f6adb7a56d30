"""From settings and the benefit of a row in each: one threshold on one predictor, or none.

A rule says to use a row where a predictor is below (or above) a threshold, and SAPO elsewhere. Its
value is the mean benefit over settings of doing so; it has to beat the better of always and never.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from acpo.compare.statistics import SeedEstimate, mean_over_seeds

PREDICTORS = {
    "positive_share": "positive share",
    "delta": "mean delta",
    "entropy": "entropy",
    "accuracy": "accuracy",
    "score_variation": "CV of n^(1/2)",
}
"""As runs keep them, in the protocol's order."""

DRAWS = 2000
LEAST_SETTINGS, LEAST_STARTS = 6, 4


@dataclass(frozen=True)
class Setting:
    """One start policy at one number of updates per rollout.

    Attributes:
        study: its size or task, as the study's folder is called.
        start: which of the study's start policies.
        ratio: updates per rollout, as the study calls them.
        predictors: over the first ten updates of SAPO's runs; those that were logged.
        tuned: by row and seed, accuracy minus SAPO's, each at its own rate.
        matched: the same at SAPO's update lengths.
        failed: rows with a run that failed; they have no benefit here.
    """

    study: str
    start: str
    ratio: str
    predictors: Mapping[str, float]
    tuned: Mapping[str, Mapping[int, float]]
    matched: Mapping[str, Mapping[int, float]]
    failed: frozenset[str]

    def benefit(self, row: str) -> float | None:
        """Mean over seeds; None where the row has no runs, or one that failed."""
        seeds = {} if row in self.failed else self.tuned.get(row, {})
        return math.fsum(seeds.values()) / len(seeds) if seeds else None


class Rule(NamedTuple):
    """Use the row where `predictor` is below, or above, `threshold`; SAPO elsewhere."""

    predictor: str
    below: bool
    threshold: float

    def applies(self, setting: Setting) -> bool:
        value = setting.predictors[self.predictor]
        return value < self.threshold if self.below else value > self.threshold

    def __str__(self) -> str:
        side = "below" if self.below else "above"
        return f"{PREDICTORS[self.predictor]} {side} {self.threshold:.3g}"


class Fit(NamedTuple):
    """What the fit found.

    Attributes:
        rule: of the highest value; None where nothing can be fitted.
        gain: its value over the better of always and never, as a share.
        p: how often starts dealt out anew within their study gain as much.
        always: whether always is better than never.
        settings: how many there were.
    """

    rule: Rule | None
    gain: float
    p: float
    always: bool
    settings: int

    @property
    def offered(self) -> bool:
        """Whether chance seldom fits as well."""
        return self.rule is not None and self.p <= 0.05


def complete(settings: Sequence[Setting], row: str) -> list[Setting]:
    """Settings with a benefit of the row, of ratios that all starts of their study have."""
    there = [one for one in settings if one.benefit(row) is not None]
    starts: dict[str, set[str]] = defaultdict(set)
    of_ratio: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in there:
        starts[one.study].add(one.start)
        of_ratio[one.study, one.ratio].add(one.start)
    return [one for one in there if of_ratio[one.study, one.ratio] == starts[one.study]]


def known_predictors(settings: Sequence[Setting]) -> list[str]:
    """Those that every setting has."""
    return [name for name in PREDICTORS if all(name in one.predictors for one in settings)]


def fit_rule(settings: Sequence[Setting], row: str) -> Fit:
    """The best rule for a row, and whether chance does as well.

    Settings of one start are alike, so not settings but whole starts are dealt out anew.
    """
    used = complete(settings, row)
    names = known_predictors(used)
    starts = {(one.study, one.start) for one in used}
    if len(used) < LEAST_SETTINGS or len(starts) < LEAST_STARTS or not names:
        return Fit(None, 0.0, 1.0, False, len(used))
    benefits = np.array([one.benefit(row) for one in used])
    columns = {name: np.array([one.predictors[name] for one in used]) for name in names}
    always = bool(benefits.mean() > 0)
    best: tuple[float, Rule] | None = None
    for name, column in columns.items():
        for below in (True, False):
            values, cuts = rule_values(benefits[None], column, below=below)
            if len(cuts) and (best is None or values[0].max() > best[0] + 1e-12):
                place = int(values[0].argmax())
                best = float(values[0].max()), Rule(name, below, cuts[place])
    if best is None:
        return Fit(None, 0.0, 1.0, always, len(used))
    gain = best[0] - max(float(benefits.mean()), 0.0)
    dealt = benefits[deal_starts(used)]
    found = np.max(
        [
            rule_values(dealt, column, below=below)[0].max(1)
            for column in columns.values()
            for below in (True, False)
            if len(np.unique(column)) > 1
        ],
        axis=0,
    )
    gains = found - np.maximum(dealt.mean(1), 0.0)
    p = (1 + int((gains >= gain - 1e-12).sum())) / (1 + DRAWS)
    return Fit(best[1], gain, p, always, len(used))


def rule_values(
    benefits: np.ndarray, column: np.ndarray, *, below: bool
) -> tuple[np.ndarray, list[float]]:
    """`[draws, cuts]`: the value of a rule at every cut between two neighbours, and the cuts."""
    order = np.argsort(column, kind="stable")
    ordered = column[order]
    edges = np.flatnonzero(np.diff(ordered) > 0)
    sums = benefits[:, order].cumsum(1)
    kept = sums[:, edges] if below else sums[:, -1:] - sums[:, edges]
    cuts = [_between(ordered[edge], ordered[edge + 1]) for edge in edges]
    return kept / len(column), cuts


def _between(low: float, high: float) -> float:
    """The middle, to three digits where that is still between."""
    middle = (low + high) / 2
    short = float(f"{middle:.3g}")
    return short if low < short < high else float(middle)


def deal_starts(settings: Sequence[Setting]) -> np.ndarray:
    """`[DRAWS, settings]`: whose benefit each gets when starts of a study are dealt out anew."""
    rng = np.random.default_rng(0)
    place = {(one.study, one.start, one.ratio): index for index, one in enumerate(settings)}
    starts: dict[str, list[str]] = defaultdict(list)
    for one in settings:
        if one.start not in starts[one.study]:
            starts[one.study].append(one.start)
    dealt = {
        study: rng.permuted(np.tile(np.arange(len(names)), (DRAWS, 1)), axis=1)
        for study, names in starts.items()
    }
    columns = []
    for one in settings:
        names = starts[one.study]
        sources = np.array([place[one.study, name, one.ratio] for name in names])
        columns.append(sources[dealt[one.study][:, names.index(one.start)]])
    return np.stack(columns, 1)


def pooled(settings: Sequence[Setting], row: str) -> SeedEstimate | None:
    """Mean benefit over settings of always using a row, over seeds."""
    there = [one for one in settings if one.benefit(row) is not None]
    return _over_seeds(there, row, lambda one: 1) if there else None


def _over_seeds(
    settings: Sequence[Setting], row: str, use: Callable[[Setting], int]
) -> SeedEstimate | None:
    """Mean over settings of so many times the benefit, over the seeds that all of a study have.

    Studies are independent and may differ in seeds: their half-widths add as squares.
    """
    of_study: dict[str, list[Setting]] = defaultdict(list)
    for one in settings:
        of_study[one.study].append(one)
    parts = []
    for own in of_study.values():
        seeds = sorted(set.intersection(*(set(one.tuned[row]) for one in own)))
        if not seeds:
            return None
        sums = [math.fsum(use(one) * one.tuned[row][seed] for one in own) for seed in seeds]
        parts.append(mean_over_seeds([total / len(settings) for total in sums]))
    value, count = math.fsum(part.value for part in parts), sum(part.seeds for part in parts)
    if any(part.low is None for part in parts):
        return SeedEstimate(value, None, None, count)
    half = math.hypot(*(part.value - (part.low or 0.0) for part in parts))
    return SeedEstimate(value, value - half, value + half, count)


def tested(settings: Sequence[Setting], row: str, fit: Fit) -> tuple[str, SeedEstimate | None]:
    """What other settings say of a rule: its gain there over what was best where it was fitted."""
    there = [one for one in settings if one.benefit(row) is not None]
    rule = fit.rule
    if rule is None or not there:
        return "no runs yet", None
    if any(rule.predictor not in one.predictors for one in there):
        return "predictor not logged", None
    estimate = _over_seeds(there, row, lambda one: rule.applies(one) - fit.always)
    if estimate is None:
        return "no seed common to all", None
    if all(rule.applies(one) == fit.always for one in there):
        return "says the same everywhere", estimate
    return told(estimate, above="holds", below="fails"), estimate


def told(estimate: SeedEstimate, *, above: str, below: str) -> str:
    """On which side of 0 an interval lies."""
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return "not told apart"
    return above if estimate.low > 0 else below if estimate.high < 0 else "not told apart"


def rank_correlation(settings: Sequence[Setting], row: str, predictor: str) -> tuple[float, float]:
    """Spearman's, over complete settings, and the one-sided p of starts dealt out anew."""
    used = [one for one in complete(settings, row) if predictor in one.predictors]
    x = _ranks(np.array([one.predictors[predictor] for one in used]))
    y = _ranks(np.array([one.benefit(row) for one in used]))
    if len(used) < LEAST_SETTINGS or x.std() == 0 or y.std() == 0:
        return float("nan"), 1.0
    x, y = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()
    found = float((x * y).mean())
    dealt = (y[deal_starts(used)] * x).mean(1)
    return found, (1 + int((dealt >= found - 1e-12).sum())) / (1 + DRAWS)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Equal values share their mean rank."""
    return np.array([(values < one).sum() + ((values == one).sum() - 1) / 2 for one in values])
