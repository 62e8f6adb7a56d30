"""A study's results as one dictionary of numbers; reports and figures are drawn from it alone."""

import functools
import json
import math
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acpo.compare import plan
from acpo.compare.plan import (
    BASELINE,
    CONTROL,
    Choice,
    Result,
    Study,
    StudyRow,
    StudyRun,
    StudyTask,
)
from acpo.compare.statistics import (
    bootstrap,
    effect_size,
    holm,
    mean_over_seeds,
    p_value,
    ranks,
    signed_rank_p,
)
from acpo.compare.store import PLACES, verdict_counts
from acpo.evaluate.statistics import pass_probability
from acpo.intervals import LEVEL
from acpo.objectives.methods import METHODS
from acpo.tasks.registry import get_task
from acpo.yamlfile import yaml_value

CURVES = {
    "accuracy": (0.0, 1.0),
    "entropy": (0.0, math.inf),
    "length": (0.0, math.inf),
    "reversed": (0.0, 1.0),
}
"""What is drawn over updates, and the values it can have."""

ENDS = ("entropy", "length", "truncated", "positive_share")
"""What is told of the last quarter of a run."""

WINDOW = 3
"""Logged rollouts over which a run's best and its end are told."""

UNSETTLED = {True: "not settled (alone: better)", False: "not settled (alone: worse)"}
NOTHING, FAILED = "not told apart", "runs failed"
VERDICTS = ("better", "worse", *UNSETTLED.values(), NOTHING, FAILED)


def summarise(study: Study, results: Mapping[str, Result]) -> dict[str, Any]:
    """Everything a report says, as plain data; the same from the same results."""
    planned = [run for task in study.tasks for run in plan.known_runs(study, task, results)[0]]
    every = [results[name] for name in sorted(run.name for run in planned) if name in results]
    endless = (get_task(str(run.recipe.get("task", "custom"))).endless for run in planned)
    given = {name: value for name, value in study.overrides.items() if name not in PLACES}
    typed = [f"--{name} {_typed(value)}" for name, value in given.items()]
    return {
        "title": study.title,
        "note": study.note,
        "command": " ".join(["acpo", "compare", _shown(study.path), *typed]),
        "recipes": sorted({task.recipe.name for task in study.tasks}),
        "baseline": BASELINE,
        "control": CONTROL,
        "runs": len(every),
        "tokens": sum(result.get("tokens") or 0 for result in every),
        "run_seconds": round(sum(result["seconds"] for result in every), 1),
        "hardware": _distinct(result["hardware"] for result in every),
        "versions": _distinct(result["versions"] for result in every),
        "sweep": None if study.sweep is None else {**vars(study.sweep), "endless": any(endless)},
        "tasks": {task.name: _task(study, task, results) for task in study.tasks},
    }


def _typed(value: Any) -> str:
    """A value as someone types it for a shell, who wants it read as the same."""
    plain = isinstance(value, str) and yaml_value(value, value) == value
    return shlex.quote(value if plain else json.dumps(value))


def _shown(path: Path) -> str:
    """A study of ours from the repository's root, wherever the command was given; else its name."""
    parts = path.parts
    return "/".join(parts[parts.index("recipes") :]) if "recipes" in parts else path.name


def _distinct(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _task(study: Study, task: StudyTask, results: Mapping[str, Result]) -> dict[str, Any]:
    known, _ = plan.known_runs(study, task, results)
    found = [(run, results[run.name]) for run in known if run.name in results]
    starts = {run.seed: result for run, result in found if run.phase == plan.START}
    tuned: dict[str, dict[int, Result]] = {row.name: {} for row in task.rows}
    matched: dict[str, dict[int, Result]] = {row.name: {} for row in task.rows}
    offsets = {row.name: row.seed_offset for row in task.rows}
    for run, result in found:
        by_row = {plan.STUDY: tuned, plan.MATCHED: matched}.get(run.phase)
        if by_row is not None:
            by_row[run.row][run.seed - offsets[run.row]] = result
    matched[BASELINE] = tuned[BASELINE]
    choices = {row.name: plan.choose(study, task, row, results) for row in task.rows}
    with_matched = [row for row in task.rows if row.name in (*study.matched, BASELINE)]
    rows = _rows(task, task.rows, choices, tuned, starts)
    again = _rows(task, with_matched, {}, matched, starts) if study.matched else []
    unlearnt = _unlearnt(rows, study.least_gain)
    for line in (*rows, *again):
        if unlearnt and line["verdict"] != FAILED:
            line["verdict"] = ""
    return {
        "seeds": list(task.seeds),
        "updates": task.updates,
        "sweep_of": task.sweep_of,
        "options": dict(task.options),
        "start": _mean_accuracy(_accuracies(starts).values()),
        **_kinds(found),
        "comparisons": sum(row["p_holm"] is not None for row in rows),
        "family": _family(rows),
        "unlearnt": unlearnt,
        "least_gain": study.least_gain,
        "rows": rows,
        "matched": again,
        "unmatched": [
            run.seed
            for run in plan.baseline_runs(study, task, results)
            if study.matched and run.name in results and not plan.step_lengths(results[run.name])
        ],
    }


def _kinds(found: Sequence[tuple[StudyRun, Result]]) -> dict[str, Any]:
    """What runs must have in common to be compared: all it was among those of a task."""
    asked: dict[int, list[Any]] = {}
    for run, result in found:
        if run.phase in (plan.STUDY, plan.MATCHED) and "problems" in result:
            asked.setdefault(run.seed, []).append(result["problems"])
    return {
        "start_models": _distinct(r["start_model"] for _, r in found if r.get("start_model")),
        "held_out_sets": _distinct(r["held_out"] for _, r in found if r.get("held_out")),
        "mixed_seeds": sorted(seed for seed, sets in asked.items() if len(_distinct(sets)) > 1),
    }


def _unlearnt(rows: Sequence[Mapping[str, Any]], least: float) -> list[str]:
    """Which of the rows that everyone knows did not gain as much as a study that can tell needs."""
    found = []
    for row in rows:
        gain = row["gain"] or {"value": -1.0, "low": None}
        learnt = gain["value"] >= least and (gain["low"] or 0.0) > 0
        if least and row["name"] in (BASELINE, "grpo") and not learnt:
            found.append(row["title"])
    return found


def _rows(
    task: StudyTask,
    rows: Iterable[StudyRow],
    choices: Mapping[str, Choice | None],
    found: Mapping[str, Mapping[int, Result]],
    starts: Mapping[int, Result],
) -> list[dict[str, Any]]:
    """The lines of a table: each row by itself, then what depends on the others."""
    lines = [_row(row, choices.get(row.name), found, starts, len(task.seeds)) for row in rows]
    placed = ranks({line["name"]: line["accuracy"]["value"] for line in lines if line["accuracy"]})
    tested = {line["name"]: line["difference"] for line in lines if line["difference"]}
    adjusted = holm({name: found["p_value"] for name, found in tested.items()}, _family(lines))
    for line in lines:
        line["rank"] = placed.get(line["name"])
        line["p_holm"] = adjusted.get(line["name"])
        line["verdict"] = FAILED if line["failed"] else verdict(line["difference"], line["p_holm"])
    return lines


def _family(lines: Sequence[Mapping[str, Any]]) -> int:
    """The comparisons that Holm's p allows for: every row's, whether it has runs or not."""
    return sum(line["name"] != BASELINE for line in lines)


def _row(
    row: StudyRow,
    choice: Choice | None,
    found: Mapping[str, Mapping[int, Result]],
    starts: Mapping[int, Result],
    planned: int,
) -> dict[str, Any]:
    runs = found[row.name]
    values = _accuracies(runs)
    whole = [result for result in runs.values() if not result.get("failed")]
    controlled = row.name in ("acpo", "acpo_no_routing") and CONTROL in found
    return {
        "name": row.name,
        "title": METHODS[row.method].title if row.name == row.method else row.name,
        "learning_rate": choice.learning_rate if choice else None,
        "sweep": {f"{rate:g}": score for rate, score in choice.scores.items()} if choice else {},
        "at_edge": bool(choice and choice.at_edge),
        "seeds": sorted(values),
        "missing": planned - len(runs),
        "failed": len(runs) - len(whole),
        "collapsed": sum(collapsed(result) for result in whole),
        "values": {str(seed): value for seed, value in sorted(values.items())},
        "accuracy": _mean_accuracy(values.values()),
        "gain": _mean_difference(_pairs(runs, starts)),
        "difference": difference(runs, found[BASELINE]) if row.name != BASELINE else None,
        "to_control": _mean_difference(_pairs(runs, found[CONTROL])) if controlled else None,
        "area": _mean_accuracy([a for r in whole if (a := area(r)) is not None]),
        "pass_at": pass_at_each(whole),
        "ends": {name: _end(whole, name) for name in ENDS},
        "curves": {name: band(whole, name) for name in CURVES},
    }


def _accuracies(runs: Mapping[int, Result]) -> dict[int, float]:
    return {
        seed: result["accuracy"]["value"]
        for seed, result in runs.items()
        if result.get("accuracy") and not result.get("failed")
    }


Pairs = Mapping[int, tuple[Result, Result]]


def _pairs(ours: Mapping[int, Result], theirs: Mapping[int, Result]) -> Pairs:
    """By seed, of the runs that started from the same weights."""
    a, b = _accuracies(ours), _accuracies(theirs)
    return {
        seed: (ours[seed], theirs[seed])
        for seed in a
        if seed in b and _alike(ours[seed], theirs[seed])
    }


def _mean_difference(pairs: Pairs) -> dict[str, Any] | None:
    return _apart(seed_differences(pairs)) if pairs else None


def seed_differences(pairs: Pairs) -> list[float]:
    """Ours minus theirs. Rounded: else equal ones differ, and 0 is not."""
    return [round(a["accuracy"]["value"] - b["accuracy"]["value"], 12) for a, b in pairs.values()]


def _apart(values: Sequence[float]) -> dict[str, Any]:
    """The mean of differences of shares."""
    return mean_over_seeds(values).within(-1.0, 1.0)._asdict()


def difference(ours: Mapping[int, Result], theirs: Mapping[int, Result]) -> dict[str, Any] | None:
    """Ours minus theirs, paired by seed, among runs that started from the same weights."""
    pairs = _pairs(ours, theirs)
    if not pairs:
        return None
    values = seed_differences(pairs)
    areas = [(area(x), area(y)) for x, y in pairs.values()]
    known = [x - y for x, y in areas if x is not None and y is not None]
    solved = [[_pass_at(one.get("pass_at") or {}) for one in pair] for pair in pairs.values()]
    apart = [{k: x[k] - y[k] for k in x if k in y} for x, y in solved]
    return {
        **_apart(values),
        "p_value": p_value(values),
        "signed_rank_p": signed_rank_p(values),
        "won": sum(value > 0 for value in values),
        "effect_size": effect_size(values),
        "bootstrap": _bootstrap(list(pairs.values())),
        "area": _apart(known) if known else None,
        "pass_at": {k: _apart(own) for k, own in _in_all(apart).items()},
    }


def _alike(a: Result, b: Result) -> bool:
    """Whether two runs started from one model and, as far as is known, read the same problems."""
    keys = ["held_out"]
    specs = [one.get("spec", {}) for one in (a, b)]
    trained = all(spec.get("phase") != plan.START for spec in specs)
    if trained and specs[0].get("seed") == specs[1].get("seed"):
        keys.append("problems")  # which the seed may choose
    known = [key for key in keys if key in a and key in b]
    return all(a.get(key) == b.get(key) for key in ("start_model", *known))


def _bootstrap(pairs: Sequence[tuple[Result, Result]]) -> dict[str, Any] | None:
    """Over seeds and problems, where every run kept its verdicts on the same problems."""
    table = []
    for pair in pairs:
        ours, theirs = (_shares(result["accuracy"].get("verdicts")) for result in pair)
        if not len(ours) or len(ours) != len(theirs):
            return None
        table.append(ours - theirs)
    if len(table) < 2 or len({len(line) for line in table}) > 1:
        return None
    return bootstrap(table)._asdict()


@functools.lru_cache(maxsize=4096)  # a run stands beside several others
def _shares(packed: str | None) -> np.ndarray:
    """Of each problem; none where they are not known, or a problem has no verdict."""
    counts = verdict_counts(packed) if packed is not None else ()
    whole = all(samples for samples, _ in counts)
    return np.array([right / samples for samples, right in counts] if whole else [])


def area(result: Result) -> float | None:
    """Mean accuracy of a run's rollouts, first to last; None for a run without any."""
    points = plan.curve_of(result, "accuracy")
    return math.fsum(points) / len(points) if points else None


def collapsed(result: Result) -> bool:
    """Whether the last rollouts of a run are less than half as good as its best ones."""
    points = plan.curve_of(result, "accuracy")
    means = [math.fsum(points[i : i + WINDOW]) for i in range(len(points) - WINDOW + 1)]
    return bool(means) and means[-1] < max(means) / 2


def _end(runs: Sequence[Result], name: str) -> dict[str, Any] | None:
    """A logged quantity over the last quarter of each run."""
    values = [end for run in runs if (end := plan.end_of_curve(run, name)) is not None]
    return mean_over_seeds(values)._asdict() if values else None


def pass_at_each(runs: Sequence[Result]) -> dict[str, Any]:
    """pass@k for k = 1, 2, 4, ... (unbiased), mean over seeds."""
    each = [_pass_at(result.get("pass_at") or result.get("accuracy") or {}) for result in runs]
    return {k: _mean_accuracy(values) for k, values in _in_all(each).items()}


def _pass_at(measured: Result) -> dict[str, float]:
    packed = measured.get("verdicts")
    counts = [one for one in verdict_counts(packed) if one[0]] if packed is not None else []
    ks = [1 << power for power in range(min((n for n, _ in counts), default=0).bit_length())]
    chances = {(one, k): pass_probability(*one, k) for one in set(counts) for k in ks}
    return {str(k): math.fsum(chances[one, k] for one in counts) / len(counts) for k in ks}


def _in_all(each: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """By key, the values of every mapping that all of them have."""
    return {
        key: [values[key] for values in each]
        for key in (each[0] if each else ())
        if all(key in values for values in each)
    }


def _mean_accuracy(values: Collection[float]) -> dict[str, Any] | None:
    return mean_over_seeds(list(values)).within(0.0, 1.0)._asdict() if values else None


def verdict(difference: Mapping[str, Any] | None, p_holm: float | None) -> str:
    """What the test that allows for all rows says, or what only one alone would."""
    if difference is None or p_holm is None or difference["low"] is None:
        return ""
    better = difference["value"] > 0
    if p_holm <= 1 - LEVEL:
        return "better" if better else "worse"
    return UNSETTLED[better] if difference["p_value"] <= 1 - LEVEL else NOTHING


def band(runs: Sequence[Result], name: str) -> list[dict[str, float]]:
    """A logged quantity over updates: mean and 95% interval over the seeds that logged it."""
    points: dict[int, list[float]] = {}
    for result in runs:
        for step, value in plan.points_of(result, name):
            points.setdefault(step, []).append(value)
    rows = []
    for step, values in sorted(points.items()):
        value, *ends, _ = mean_over_seeds(values).within(*CURVES[name])
        low, high = (value if end is None else end for end in ends)
        rows.append({"step": step, "value": value, "low": low, "high": high})
    return rows
