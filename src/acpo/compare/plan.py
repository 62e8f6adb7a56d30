"""What a study consists of: its settings, the runs they ask for, the learning rates they choose."""

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

SWEEP, START, STUDY, MATCHED = "sweep", "start", "study", "matched"
BASELINE, CONTROL = "sapo", "global_sg_x3"
"""What every row is compared with, and what equals ACPO at w = 1."""

NOT_A_RUNS = ("try_next", "output_dir", "eval_strategy", "eval_steps")
"""Options of a recipe that no run of a study has: it measures accuracy at its own times."""

Result = Mapping[str, Any]


@dataclass(frozen=True)
class StudyRow:
    """One line of the table."""

    name: str  # what the report calls it
    method: str  # a row of `METHODS`
    options: Mapping[str, Any] = field(default_factory=dict)  # of the recipe, for this row alone
    seed_offset: int = 0  # added to every seed, to give two equal rows different ones


@dataclass(frozen=True)
class StudyTask:
    """One setting all rows are run in; its learning rates are swept here or in `sweep_of`."""

    name: str
    recipe: Path
    recipe_options: Mapping[str, Any]
    options: Mapping[str, Any]
    rows: tuple[StudyRow, ...]
    updates: int
    seeds: tuple[int, ...]
    sweep_of: str


@dataclass(frozen=True)
class Sweep:
    """How learning rates are chosen."""

    learning_rates: tuple[float, ...]  # the candidates, ascending
    seeds: tuple[int, ...]  # not among the study's
    updates: int  # of a sweep run
    share: float = 0.2  # of the training problems, for the sweep; study runs never see it
    extend: int = 0  # candidates to add beyond an end, at its spacing, while the best lies there

    @property
    def chooses(self) -> bool:
        """Whether there is more than one rate: one is everybody's, and none is tried."""
        return len(self.learning_rates) > 1


@dataclass(frozen=True)
class Study:
    """A checked study file; see `acpo.compare.study_file.KEYS`."""

    path: Path
    title: str
    options: Mapping[str, Any]
    overrides: Mapping[str, Any]
    tasks: tuple[StudyTask, ...]
    sweep: Sweep | None
    keep_models: bool = False
    threads: int = 1
    launcher: str | None = None
    matched: tuple[str, ...] = ()
    pass_at: tuple[int, int] | None = None
    least_gain: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class StudyRun:
    """One training run.

    Its phase is "sweep", "start" (the model as it comes, measured and not trained), "study", or
    "matched" (updates as long as the baseline's).
    """

    task: str
    phase: str
    row: str
    seed: int  # of prompts, rollouts and evaluation
    learning_rate: float | None  # None for a start, and for the recipe's own
    recipe: Mapping[str, Any]  # every option, as a recipe of its own
    share: float  # of the training problems, kept for sweeps
    keeps_model: bool = False
    pass_at: Sequence[int] | None = None  # problems and samples of each to measure pass@k with
    step_lengths: Sequence[float] = ()  # of each update's move; empty: as far as it does

    @property
    def name(self) -> str:
        """Its folder within the study's, and what people call it."""
        rate = "" if self.learning_rate is None else f"-lr{self.learning_rate:g}"
        return f"{self.task}/{self.phase}/{self.row}{rate}-seed{self.seed}"

    @property
    def updates(self) -> int:
        """Its length."""
        return int(self.recipe["max_steps"])

    def spec(self) -> dict[str, Any]:
        """Everything that the run is; without what older runs did not know."""
        newer = ("pass_at", "step_lengths")
        return {name: value for name, value in asdict(self).items() if value or name not in newer}


def start_runs(study: Study, task: StudyTask) -> Iterator[StudyRun]:
    """The untrained model, once per seed."""
    for seed in task.seeds:
        yield _run(study, task, START, StudyRow(START, BASELINE), seed, None, updates=1)


def sweep_runs(study: Study, task: StudyTask, results: Mapping[str, Result]) -> Iterator[StudyRun]:
    """Every row at every learning rate that its results so far ask for."""
    if task.sweep_of == task.name and study.sweep and study.sweep.chooses:
        for row in task.rows:
            for rate in _candidates(study, task, row, results):
                yield from _sweep_runs_at(study, task, row, rate)


def _sweep_runs_at(study: Study, task: StudyTask, row: StudyRow, rate: float) -> Iterator[StudyRun]:
    assert study.sweep is not None
    for seed in study.sweep.seeds:
        yield _run(study, task, SWEEP, row, seed, rate, updates=study.sweep.updates)


def study_runs(
    study: Study, task: StudyTask, row: StudyRow, learning_rate: float | None
) -> Iterator[StudyRun]:
    """A row's runs at its learning rate, in the order of the study's seeds."""
    for seed in task.seeds:
        seed += row.seed_offset
        yield _run(study, task, STUDY, row, seed, learning_rate, updates=task.updates)


def matched_runs(
    study: Study, task: StudyTask, row: StudyRow, results: Mapping[str, Result]
) -> Iterator[StudyRun]:
    """A row's runs with updates as long as the baseline's, where the baseline's run is there."""
    for theirs in baseline_runs(study, task, results):
        if lengths := step_lengths(results.get(theirs.name)):
            seed, rate = theirs.seed + row.seed_offset, theirs.learning_rate
            run = _run(study, task, MATCHED, row, seed, rate, updates=task.updates)
            yield replace(run, step_lengths=lengths)


def baseline_runs(study: Study, task: StudyTask, results: Mapping[str, Result]) -> list[StudyRun]:
    """SAPO's tuned runs; none before its learning rate is chosen."""
    base = next(row for row in task.rows if row.name == BASELINE)
    choice = choose(study, task, base, results)
    if not choice.finished:
        return []
    return list(study_runs(study, task, base, choice.learning_rate))


def step_lengths(result: Result | None) -> Sequence[float]:
    """What matched runs follow; none where a run failed, or FSDP hid its updates' lengths."""
    if result is None or result.get("failed"):
        return ()
    return result.get("step_lengths") or ()


def known_runs(
    study: Study, task: StudyTask, results: Mapping[str, Result]
) -> tuple[list[StudyRun], int]:
    """The runs of a task that its results so far ask for, in order, and how many are to come.

    Sweeps come first, since study runs wait for them; then starts; then study runs seed by seed,
    so that an interrupted study has whole seeds, which can be compared, rather than whole rows;
    then runs with matched updates.
    """
    choices = [(row, choose(study, task, row, results)) for row in task.rows]
    chosen = [(row, choice.learning_rate) for row, choice in choices if choice.finished]
    tuned = [study_runs(study, task, row, rate) for row, rate in chosen]
    again = [row for row in task.rows if row.name in study.matched]
    matched = [matched_runs(study, task, row, results) for row in again]
    known = [*sweep_runs(study, task, results), *start_runs(study, task)]
    for part in (tuned, matched):
        known += itertools.chain(*zip(*part, strict=True))  # seed by seed
    followed = sum(run.name in results for run in baseline_runs(study, task, results))
    untuned, unmatched = len(task.rows) - len(tuned), len(task.seeds) - followed
    return known, len(task.seeds) * untuned + len(again) * unmatched


def _run(
    study: Study,
    task: StudyTask,
    phase: str,
    row: StudyRow,
    seed: int,
    learning_rate: float | None,
    *,
    updates: int,
) -> StudyRun:
    recipe = {**task.recipe_options, **study.options, **task.options}
    recipe |= {**row.options, **study.overrides}
    recipe |= {"method": row.method, "seed": seed, "max_steps": updates}
    recipe |= {"report": False, "disable_tqdm": True}
    for key in NOT_A_RUNS:
        recipe.pop(key, None)
    if learning_rate is not None:
        recipe["learning_rate"] = learning_rate
    if phase == SWEEP:
        recipe["held_out"] = 0
    return StudyRun(
        task.name,
        phase,
        row.name,
        seed,
        learning_rate,
        recipe,
        study.sweep.share if study.sweep else 0.0,
        study.keep_models and phase == STUDY,
        None if phase == SWEEP else study.pass_at,
    )


class Choice(NamedTuple):
    """A row's learning rate and how it was found.

    Attributes:
        learning_rate: the one with the highest mean score, the smaller of equal ones; None where
            nothing is swept, or is not yet.
        scores: mean score by learning rate, as far as runs go; None where a seed failed.
        at_edge: whether it is the smallest or largest candidate.
        finished: whether no run of the sweep is missing.
    """

    learning_rate: float | None
    scores: dict[float, float | None]
    at_edge: bool = False
    finished: bool = True


def choose(study: Study, task: StudyTask, row: StudyRow, results: Mapping[str, Result]) -> Choice:
    """A row's learning rate from its sweep."""
    if study.sweep is None:
        return Choice(None, {})
    if not study.sweep.chooses:
        return Choice(study.sweep.learning_rates[0], {})
    task_of = next(t for t in study.tasks if t.name == task.sweep_of)
    rates = _candidates(study, task_of, row, results)
    scores = _scores(study, task_of, row, rates, results)
    if len(scores) < len(rates):
        return Choice(None, scores, finished=False)
    best = _best(scores)
    return Choice(best, scores, len(scores) > 1 and best in (min(scores), max(scores)))


def _candidates(
    study: Study, task: StudyTask, row: StudyRow, results: Mapping[str, Result]
) -> list[float]:
    """A row's learning rates: the study's, and some beyond an end where the best lay there."""
    sweep = study.sweep
    if sweep is None:
        return []
    rates = list(sweep.learning_rates)
    below = above = sweep.extend
    while len(scores := _scores(study, task, row, rates, results)) == len(rates):
        best = _best(scores)
        # To two digits, near rates have none beyond.
        if best == rates[0] and below and (rate := _beyond(rates[0], rates[1])) < rates[0]:
            rates.insert(0, rate)
            below -= 1
        elif best == rates[-1] and above and (rate := _beyond(rates[-1], rates[-2])) > rates[-1]:
            rates.append(rate)
            above -= 1
        else:
            break
    return rates


def _beyond(end: float, neighbour: float) -> float:
    """The next candidate outside, at the spacing of the last two, to two digits."""
    return float(f"{end * end / neighbour:.2g}")


def _scores(
    study: Study,
    task: StudyTask,
    row: StudyRow,
    rates: Sequence[float],
    results: Mapping[str, Result],
) -> dict[float, float | None]:
    """Mean score by learning rate, None for one that failed; without those that miss a run."""
    scores: dict[float, float | None] = {}
    for rate in rates:
        names = [run.name for run in _sweep_runs_at(study, task, row, rate)]
        if not all(name in results for name in names):
            continue
        found = [sweep_score(results[name]) for name in names]
        known = [score for score in found if score is not None]
        scores[rate] = statistics.fmean(known) if len(known) == len(found) else None
    return scores


def _best(scores: Mapping[float, float | None]) -> float:
    """The rate with the highest score; the smaller of equal ones, and of failures."""
    known = {rate: -1.0 if score is None else score for rate, score in scores.items()}
    return max(sorted(known), key=known.__getitem__)


def sweep_score(result: Result) -> float | None:
    """Accuracy of the rollouts in the last quarter of a run; None for a run that failed.

    Rollouts answer problems the policy has not been trained on, and sweeps have problems of their
    own, so this needs no held-out set.
    """
    if result.get("failed"):
        return None
    return end_of_curve(result, "accuracy")


def points_of(result: Result, name: str) -> list[tuple[int, float]]:
    """Step and value of a logged quantity of a run, wherever it is a number.

    The accuracy of a rollout without a verdict is none: NaN.
    """
    curve = result.get("curve") or []
    return [(e["step"], e[name]) for e in curve if abs(e.get(name, math.nan)) < math.inf]


def curve_of(result: Result, name: str) -> list[float]:
    """The values alone."""
    return [value for _, value in points_of(result, name)]


def end_of_curve(result: Result, name: str) -> float | None:
    """Its mean over the last quarter of a run; None where it was not logged."""
    points = curve_of(result, name)
    return statistics.fmean(points[-max(1, len(points) // 4) :]) if points else None
