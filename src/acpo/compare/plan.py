"""What a study consists of: its settings, the runs they ask for, the learning rates they choose."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

SWEEP, START, STUDY = "sweep", "start", "study"

Result = Mapping[str, Any]


@dataclass(frozen=True)
class StudyRow:
    """One line of the table.

    Attributes:
        name: what the report calls it.
        method: a row of `METHODS`.
        options: options of the recipe for this row alone.
        seed_offset: added to every seed, to give two equal rows different ones.
    """

    name: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    seed_offset: int = 0


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
    """How learning rates are chosen.

    Attributes:
        learning_rates: the candidates.
        seeds: not among the study's.
        updates: length of a sweep run.
        share: the part of the training problems kept for the sweep; study runs never see it.
    """

    learning_rates: tuple[float, ...]
    seeds: tuple[int, ...]
    updates: int
    share: float = 0.2


@dataclass(frozen=True)
class WarmStart:
    """Settings of the supervised training.

    Attributes:
        solution_columns: where worked solutions may stand, tried in order.
        epochs: passes over the training problems.
        learning_rate: at its peak; a linear rise over 5% of the steps, then a linear fall.
        batch_size: solutions per step.
        max_tokens: longer examples are left out.
        seed: of the order.
    """

    solution_columns: tuple[str, ...] = ("solution", "answer")
    epochs: int = 2
    learning_rate: float = 1e-4
    batch_size: int = 32
    max_tokens: int = 512
    seed: int = 0


@dataclass(frozen=True)
class Study:
    """A checked study file; see `acpo.compare.study_file.KEYS`."""

    path: Path
    title: str
    options: Mapping[str, Any]
    overrides: Mapping[str, Any]
    tasks: tuple[StudyTask, ...]
    sweep: Sweep | None
    warm_start: WarmStart | None = None
    keep_models: bool = False
    threads: int = 1
    launcher: str | None = None
    note: str = ""


@dataclass(frozen=True)
class StudyRun:
    """One training run.

    Attributes:
        task: its task's name.
        phase: "sweep", "start" (the model as it comes, measured and not trained) or "study".
        row: the row's name.
        seed: of prompts, rollouts and evaluation.
        learning_rate: None for a start, and for the recipe's own.
        recipe: every option, as a recipe of its own.
        share: the part of the training problems kept for sweeps.
        keeps_model: whether to leave the trained model behind.
    """

    task: str
    phase: str
    row: str
    seed: int
    learning_rate: float | None
    recipe: Mapping[str, Any]
    share: float
    keeps_model: bool = False

    @property
    def name(self) -> str:
        """Its folder within the study's, and what people call it."""
        rate = "" if self.learning_rate is None else f"-lr{self.learning_rate:g}"
        return f"{self.task}/{self.phase}/{self.row}{rate}-seed{self.seed}"

    def spec(self) -> dict[str, Any]:
        """Everything that decides what the run does."""
        return {
            "task": self.task,
            "phase": self.phase,
            "row": self.row,
            "seed": self.seed,
            "learning_rate": self.learning_rate,
            "share": self.share,
            "keeps_model": self.keeps_model,
            "recipe": dict(self.recipe),
        }


def start_runs(study: Study) -> Iterator[StudyRun]:
    """The untrained model, once per task and seed."""
    for task in study.tasks:
        for seed in task.seeds:
            yield _run(study, task, START, StudyRow(START, "sapo"), seed, None, updates=1)


def sweep_runs(study: Study) -> Iterator[StudyRun]:
    """Every row at every learning rate."""
    if study.sweep is None:
        return
    for task in study.tasks:
        if task.sweep_of != task.name:
            continue
        for row in task.rows:
            for rate in study.sweep.learning_rates:
                for seed in study.sweep.seeds:
                    yield _run(study, task, SWEEP, row, seed, rate, updates=study.sweep.updates)


def study_runs(
    study: Study, task: StudyTask, row: StudyRow, learning_rate: float | None
) -> Iterator[tuple[int, StudyRun]]:
    """A row's runs at its learning rate, each with the place of its seed in the list."""
    for place, seed in enumerate(task.seeds):
        yield (
            place,
            _run(
                study,
                task,
                STUDY,
                row,
                seed + row.seed_offset,
                learning_rate,
                updates=task.updates,
            ),
        )


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
    recipe = {
        **task.recipe_options,
        **study.options,
        **task.options,
        **row.options,
        **study.overrides,
    }
    recipe |= {"method": row.method, "seed": seed, "max_steps": updates}
    recipe |= {"report": False, "disable_tqdm": True}
    recipe.pop("try_next", None)
    recipe.pop("output_dir", None)
    if learning_rate is not None:
        recipe["learning_rate"] = learning_rate
    if phase == SWEEP:
        recipe["held_out"] = 0
    share = study.sweep.share if study.sweep else 0.0
    keeps = study.keep_models and phase == STUDY
    return StudyRun(task.name, phase, row.name, seed, learning_rate, recipe, share, keeps)


class Choice(NamedTuple):
    """A row's learning rate and how it was found.

    Attributes:
        learning_rate: the one with the highest mean score; the smaller of equal ones.
        scores: mean score by learning rate; None where every seed failed.
        at_edge: whether it is the smallest or largest candidate.
    """

    learning_rate: float | None
    scores: dict[float, float | None]
    at_edge: bool


def choose(
    study: Study, task: StudyTask, row: StudyRow, results: Mapping[str, Result]
) -> Choice | None:
    """A row's learning rate from its finished sweep; None while runs are missing."""
    if study.sweep is None:
        return Choice(None, {}, False)
    scores: dict[float, float | None] = {}
    for rate in study.sweep.learning_rates:
        found = []
        for seed in study.sweep.seeds:
            task_of = next(t for t in study.tasks if t.name == task.sweep_of)
            run = _run(study, task_of, SWEEP, row, seed, rate, updates=study.sweep.updates)
            if run.name not in results:
                return None
            found.append(sweep_score(results[run.name]))
        scores[rate] = (
            None if None in found else statistics.fmean(x for x in found if x is not None)
        )
    usable = {rate: score for rate, score in scores.items() if score is not None}
    if not usable:
        return Choice(min(scores), scores, True)
    best = max(usable, key=lambda rate: (usable[rate], -rate))
    return Choice(best, scores, len(scores) > 1 and best in (min(scores), max(scores)))


def sweep_score(result: Result) -> float | None:
    """Accuracy of the rollouts in the last quarter of a run; None for a run that failed.

    Rollouts answer problems the policy has not been trained on, and sweeps have problems of their
    own, so this needs no held-out set.
    """
    if result.get("failed"):
        return None
    points = [row["accuracy"] for row in result["curve"] if row.get("accuracy") is not None]
    return statistics.fmean(points[-max(1, len(points) // 4) :]) if points else None
