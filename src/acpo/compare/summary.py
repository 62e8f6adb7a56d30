"""A study's results as one dictionary of numbers; reports and figures are drawn from it alone."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from acpo.compare import plan
from acpo.compare.plan import Choice, Result, Study, StudyRow, StudyTask
from acpo.compare.statistics import (
    SeedEstimate,
    mean_over_seeds,
    paired_difference,
    ranks,
    simultaneous_level,
)
from acpo.compare.study_file import BASELINE, CONTROL
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


class Printed(NamedTuple):
    """One row's numbers in the ACPO paper, in percent; None where it has none. Not measured by us.

    Main table (mean@8; pass@1 on HumanEval Pro; average of the six) and ablation table (mean@8 on
    AIME24, Qwen3-8B-Base). `docs/method.md` says what in them does not add up.

    Attributes:
        aime24: AIME24, Qwen3-8B-Base (main and ablation tables).
        qwen3: average of six benchmarks, Qwen3-8B-Base.
        qwen25: average of six benchmarks, Qwen2.5-Math-7B.
    """

    aime24: float
    qwen3: float | None = None
    qwen25: float | None = None


COLUMNS = {
    "aime24": "AIME24, Qwen3-8B-Base",
    "qwen3": "average of six, Qwen3-8B-Base",
    "qwen25": "average of six, Qwen2.5-Math-7B",
}

PAPER: dict[str, Printed] = {
    "grpo": Printed(22.60, 27.27, 27.76),
    "dapo": Printed(24.89, 30.42, 29.44),
    "8020": Printed(26.02, 30.97, 29.81),
    "gtpo": Printed(27.21, 32.37, 31.89),
    "sapo": Printed(29.06, 33.49, 31.53),
    "acpo_no_routing": Printed(30.31, 35.31, 34.04),
    "acpo": Printed(34.28, 36.40, 35.15),
    "fixed": Printed(26.12),
    "positive_only": Printed(28.58),
    "nonpositive_only": Printed(27.65),
    "shannon": Printed(26.68),
    "shannon_offset": Printed(25.19),
    "global_sg": Printed(27.30),
    "global_sg_offset": Printed(24.75),
}


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


def _task(study: Study, task: StudyTask, results: Mapping[str, Result]) -> dict[str, Any]:
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
    row: StudyRow,
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
) -> SeedEstimate | None:
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


def verdict(simultaneous: SeedEstimate | None, single: SeedEstimate | None) -> str:
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


def _plain(estimate: SeedEstimate | None) -> dict[str, Any] | None:
    """As data; accuracies differ by 1 at most."""
    return None if estimate is None else estimate.within(-1.0, 1.0)._asdict()
