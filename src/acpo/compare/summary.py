"""A study's results as one dictionary of numbers; reports and figures are drawn from it alone."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acpo.compare import plan
from acpo.compare.paper import PAPER
from acpo.compare.plan import Choice, Result
from acpo.compare.settings import Row, Study, Task
from acpo.compare.statistics import (
    Estimate,
    mean_over_seeds,
    paired_difference,
    ranks,
    simultaneous_level,
)
from acpo.compare.study import BASELINE, CONTROL
from acpo.errors import ACPOError
from acpo.jsonl import read_jsonl
from acpo.objectives.methods import METHODS

CURVES = {
    "accuracy": (0.0, 1.0),
    "entropy": (0.0, math.inf),
    "length": (0.0, math.inf),
    "reversed": (0.0, 1.0),
}
"""What is drawn over updates, and the values it can have."""

UNSETTLED = {True: "not settled (alone: better)", False: "not settled (alone: worse)"}
NOTHING, FAILED = "no difference shown", "runs failed"
VERDICTS = ("better", "worse", *UNSETTLED.values(), NOTHING, FAILED)


def summarise(study: Study, results: Mapping[str, Result], *, command: str) -> dict[str, Any]:
    """Everything a report says, as plain data."""
    every = list(results.values())
    return {
        "title": study.title,
        "note": study.note,
        "command": command,
        "study": study.path.name,
        "recipes": sorted({task.recipe.name for task in study.tasks}),
        "baseline": BASELINE,
        "control": CONTROL,
        "runs": len(every),
        "tokens": sum(result.get("tokens") or 0 for result in every),
        "run_seconds": round(sum(result["seconds"] for result in every), 1),
        "hardware": _distinct(result["hardware"] for result in every),
        "versions": _distinct(result["versions"] for result in every),
        "sweep": None if study.sweep is None else _sweep_settings(study),
        "tasks": {task.name: _task(study, task, results) for task in study.tasks},
    }


def _sweep_settings(study: Study) -> dict[str, Any]:
    assert study.sweep is not None
    return {**vars(study.sweep)}


def _distinct(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _task(study: Study, task: Task, results: Mapping[str, Result]) -> dict[str, Any]:
    starts = {
        run.seed: results[run.name]["accuracy"]["value"]
        for run in plan.start_runs(study)
        if run.task == task.name and results.get(run.name, {}).get("accuracy")
    }
    found: dict[str, dict[int, Result]] = {}
    choices: dict[str, Choice | None] = {}
    for row in task.rows:
        choice = choices[row.name] = plan.choose(study, task, row, results)
        runs = [] if choice is None else plan.study_runs(study, task, row, choice.learning_rate)
        found[row.name] = {
            run.seed - row.seed_offset: results[run.name] for _, run in runs if run.name in results
        }
    level = simultaneous_level(len(task.rows) - 1)
    rows = [
        _row(row, choices[row.name], found, starts, level, planned=len(task.seeds))
        for row in task.rows
    ]
    placed = ranks({line["name"]: line["accuracy"]["value"] for line in rows if line["accuracy"]})
    for line in rows:
        line["rank"] = placed.get(line["name"])
    return {
        "seeds": list(task.seeds),
        "updates": task.updates,
        "options": dict(task.options),
        "start": _mean_accuracy(starts),
        "start_models": _distinct(
            result["start_model"]
            for runs in found.values()
            for result in runs.values()
            if result.get("start_model")
        ),
        "simultaneous_level": level,
        "comparisons": len(task.rows) - 1,
        "rows": rows,
    }


def _row(
    row: Row,
    choice: Choice | None,
    found: Mapping[str, Mapping[int, Result]],
    starts: Mapping[int, float],
    level: float,
    *,
    planned: int,
) -> dict[str, Any]:
    runs = found[row.name]
    values = _accuracies(runs)
    method = METHODS[row.method]
    difference = _difference(runs, found[BASELINE], row.name != BASELINE)
    wide = _difference(runs, found[BASELINE], row.name != BASELINE, level=level)
    printed = PAPER.get(row.name)
    failed = sum(1 for result in runs.values() if result.get("failed"))
    return {
        "name": row.name,
        "method": row.method,
        "title": method.title if row.name == row.method else row.name,
        "learning_rate": choice.learning_rate if choice else None,
        "sweep": {f"{rate:g}": score for rate, score in choice.scores.items()} if choice else {},
        "at_edge": bool(choice and choice.at_edge),
        "seeds": sorted(values),
        "missing": planned - len(runs),
        "failed": failed,
        "values": {str(seed): value for seed, value in sorted(values.items())},
        "accuracy": _mean_accuracy(values),
        "gain": _plain(paired_difference(values, starts)),
        "difference": _plain(difference),
        "difference_simultaneous": _plain(wide),
        "to_control": _plain(
            _difference(runs, found[CONTROL], row.name in ("acpo", "acpo_no_routing"))
        ),
        "verdict": FAILED if failed else verdict(wide, difference),
        "tokens": sum(result.get("tokens") or 0 for result in runs.values()),
        "curves": {name: band(list(runs.values()), name) for name in CURVES},
        "paper": printed._asdict() if printed else None,
    }


def _accuracies(runs: Mapping[int, Result]) -> dict[int, float]:
    return {
        seed: result["accuracy"]["value"]
        for seed, result in runs.items()
        if result.get("accuracy") and not result.get("failed")
    }


def _difference(
    ours: Mapping[int, Result], theirs: Mapping[int, Result], wanted: bool, **options: Any
) -> Estimate | None:
    """Paired by seed, among runs that started from the same weights."""
    if not wanted:
        return None
    same = {
        seed
        for seed in ours
        if seed in theirs and ours[seed].get("start_model") == theirs[seed].get("start_model")
    }
    a, b = _accuracies(ours), _accuracies(theirs)
    return paired_difference({seed: a[seed] for seed in same if seed in a}, b, **options)


def _mean_accuracy(values: Mapping[int, float]) -> dict[str, Any] | None:
    return _plain(mean_over_seeds(list(values.values())).within(0.0, 1.0)) if values else None


def verdict(simultaneous: Estimate | None, single: Estimate | None) -> str:
    """What the interval that allows for all comparisons says, or what only one alone would."""
    if simultaneous is None or single is None or simultaneous.low is None:
        return ""
    if simultaneous.excludes_zero:
        return "better" if simultaneous.value > 0 else "worse"
    return UNSETTLED[single.value > 0] if single.excludes_zero else NOTHING


def band(runs: Sequence[Result], name: str) -> list[dict[str, float]]:
    """A logged quantity over updates: mean and 95% interval over the seeds that logged it."""
    points: dict[int, list[float]] = {}
    for result in runs:
        for entry in result.get("curve") or []:
            if entry.get(name) is not None:
                points.setdefault(entry["step"], []).append(entry[name])
    rows = []
    for step, values in sorted(points.items()):
        estimate = mean_over_seeds(values).within(*CURVES[name])
        low = estimate.low if estimate.low is not None else estimate.value
        high = estimate.high if estimate.high is not None else estimate.value
        rows.append({"step": step, "value": estimate.value, "low": low, "high": high})
    return rows


def _plain(estimate: Estimate | None) -> dict[str, Any] | None:
    """As data; accuracies differ by 1 at most."""
    return None if estimate is None else estimate.within(-1.0, 1.0)._asdict()


def write_raw(results: Mapping[str, Result], path: Path) -> None:
    """Every run's result, one per line."""
    lines = [json.dumps({"run": name, **results[name]}) for name in sorted(results)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_raw(path: Path) -> dict[str, Result]:
    """What `write_raw` wrote: a study's results without its folders.

    Raises:
        ACPOError: a line is damaged.
    """
    rows = read_jsonl(path)
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get("run"), str) or not isinstance(row.get("spec"), dict):
            raise ACPOError(f"{path}:{number}: not the result of a run")
    return {row["run"]: {k: v for k, v in row.items() if k != "run"} for row in rows}
