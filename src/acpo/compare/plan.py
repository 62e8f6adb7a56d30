"""From a study to its runs, and from a sweep to a learning rate."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from acpo.compare.settings import Row, Study, Task
from acpo.compare.study import read_options
from acpo.errors import ACPOError

SWEEP, START, STUDY = "sweep", "start", "study"
RESULT = "result.json"
PLACES = ("data", "held_out_data", "model_name_or_path")
"""Options that say where something lies, which may differ from machine to machine."""

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
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


def start_runs(study: Study) -> Iterator[Run]:
    """The untrained model, once per task and seed."""
    for task in study.tasks:
        for seed in task.seeds:
            yield _run(study, task, START, Row(START, "sapo"), seed, None, updates=1)


def sweep_runs(study: Study) -> Iterator[Run]:
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
    study: Study, task: Task, row: Row, learning_rate: float | None
) -> Iterator[tuple[int, Run]]:
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
    task: Task,
    phase: str,
    row: Row,
    seed: int,
    learning_rate: float | None,
    *,
    updates: int,
) -> Run:
    recipe = {**read_options(task.recipe)}
    recipe |= {**study.options, **task.options, **row.options, **study.overrides}
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
    return Run(task.name, phase, row.name, seed, learning_rate, recipe, share, keeps)


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


def choose(study: Study, task: Task, row: Row, results: Mapping[str, Result]) -> Choice | None:
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


def finished(folder: Path, run: Run) -> Result | None:
    """What a finished run found, or None.

    Raises:
        ACPOError: when the folder holds the result of a run with other settings, or something else.
    """
    path = folder / "runs" / run.name / RESULT
    if not path.is_file():
        return None
    result, spec = read_json(path), json.loads(json.dumps(run.spec()))
    made = result.get("spec")
    if not isinstance(made, dict) or not isinstance(made.get("recipe"), dict):
        raise ACPOError(f"{path} is not the result of a run; remove it to have the run done again")
    for part, old, new in (("recipe", made["recipe"], spec["recipe"]), ("spec", made, spec)):
        for key in sorted({*old, *new} - {"recipe", *PLACES}):
            if old.get(key) != new.get(key):
                raise ACPOError(
                    f"{path.parent}: {key}={old.get(key)!r} there, {new.get(key)!r} in the study "
                    f"({part}); use another --output, or remove the runs that are out of date"
                )
    return result


def read_json(path: Path) -> dict[str, Any]:
    """A file that `write_json` wrote, perhaps on another machine.

    Raises:
        ACPOError: it is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ACPOError(f"{path} is damaged ({error}); remove it") from error
    if not isinstance(content, dict):
        raise ACPOError(f"{path} is damaged (not a mapping); remove it")
    return content


def write_json(path: Path, content: Any) -> None:
    """Write a file that is either whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def read_results(folder: Path, runs: Sequence[Run]) -> dict[str, Result]:
    """The results there are, by run name."""
    found = {run.name: finished(folder, run) for run in runs}
    return {name: result for name, result in found.items() if result is not None}
