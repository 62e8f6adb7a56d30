"""Figures "training dynamics" and "ablation": curves of several runs, seeds as bands.

A run's curves are what its folder logged, in `trainer_state.json` and `report.json`.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from acpo.diagnose.figures import close_panel, letter, look, panels, plain
from acpo.diagnose.report import Finding, Table, number
from acpo.errors import ACPOError
from acpo.jsonl import read_json
from acpo.records import RUN_STATE, run_state

CURVES = {
    "accuracy": ("held-out accuracy", re.compile("eval_rewards/.+/mean")),
    "entropy": ("entropy (nats)", re.compile("entropy")),
    "length": ("response length (tokens)", re.compile("completions/mean_length")),
    "reward": ("training reward", re.compile("reward")),
}
"""Curves, what they are called, and the logged quantity each is; of several, the first."""


@dataclass(frozen=True)
class LoggedRun:
    """One run's folder, and what is in it."""

    path: Path
    method: str  # the objective; the folder's name if the run left no report
    seed: int | None  # of the run, if it left a report
    curves: dict[str, dict[int, float]]  # value by step, for those of CURVES that it logged


def read_run(path: Path) -> LoggedRun:
    """Read a run's folder."""
    if (state := run_state(path)) is None:
        raise ACPOError(f"{path} holds no {RUN_STATE}: give the output_dir of `acpo train`")
    history = read_json(state).get("log_history")
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise ACPOError(f"{state} has no log_history: is it a trainer's state?")
    report = read_json(path / "report.json") if (path / "report.json").exists() else {}
    method, seed = report.get("method"), report.get("seed")
    curves = {name: _curve(history, pattern) for name, (_, pattern) in CURVES.items()}
    if not any(curves.values()):
        raise ACPOError(f"{state} logged none of {', '.join(CURVES)}: set logging_steps")
    return LoggedRun(
        path,
        method if isinstance(method, str) else path.resolve().name,
        seed if isinstance(seed, int) else None,
        {name: points for name, points in curves.items() if points},
    )


def _curve(history: Sequence[dict[str, Any]], pattern: re.Pattern[str]) -> dict[int, float]:
    names = [key for row in history for key in row if pattern.fullmatch(key)]
    if not names:
        return {}
    points = {}
    for row in history:
        step, value = row.get("step"), row.get(names[0], "")
        if type(step) is not int or type(value) not in (int, float):
            continue
        # JSON's integers have no end, and a picture takes the difference of its ends.
        if 0 <= step < 2**53 and abs(value) < 1e300:
            points[step] = float(value)
    return points


@dataclass(frozen=True)
class Band:
    """One quantity of one group."""

    steps: np.ndarray  # at which every run of the group logged it
    values: np.ndarray  # [runs, steps]
    last: int  # the last step at which any of them did


def dynamics(paths: Sequence[Path], *, by_run: bool = False) -> Finding:
    """Draw the runs in some folders: with `by_run` a curve each, else one of a method's seeds."""
    if not paths:
        raise ACPOError("no run was given: name the output_dir of at least one")
    groups = _groups([read_run(path) for path in paths], by_run)
    bands = {
        (group, curve): _band(group, runs, curve)
        for group, runs in groups.items()
        for curve in CURVES
    }
    figure, grid = panels(len(CURVES), columns=2, size=(4.2, 2.9))
    for axes, curve in zip(grid, CURVES, strict=True):
        _draw(axes, {group: bands[group, curve] for group in groups}, curve)
    letter(grid, [label for label, _ in CURVES.values()])
    names = ", ".join(f"{group} ({_seeds(runs)})" for group, runs in groups.items())
    return Finding(
        name="dynamics",
        title="Training dynamics",
        source=f"{len(paths)} run{'s' * (len(paths) > 1)}: {names}",
        reading=(
            "Lines are means over the runs of a group, bands reach from the lowest to the highest "
            "of them. Held-out accuracy is what the trainer's evaluations logged."
        ),
        facts=_facts(groups, bands),
        tables=[_table(groups, bands)],
        rows=[row for key, band in bands.items() if band for row in _rows(*key, band)],
        figure=figure,
    )


def _groups(runs: list[LoggedRun], by_run: bool) -> dict[str, list[LoggedRun]]:
    groups: dict[str, list[LoggedRun]] = defaultdict(list)
    for run in runs:
        name = str(run.path) if by_run else run.method
        for other in groups[name]:
            if other.seed == run.seed:
                raise ACPOError(
                    f"{other.path} and {run.path} are both {name} with seed {run.seed}: "
                    "leave one out, or use --group-by run"
                )
        groups[name].append(run)
    return dict(groups)


def _seeds(runs: Sequence[LoggedRun] | np.ndarray) -> str:
    return f"{len(runs)} {'seed' if len(runs) == 1 else 'seeds'}"


def _band(group: str, runs: Sequence[LoggedRun], curve: str) -> Band | None:
    """None if no run logged it."""
    logged = [run.curves[curve] for run in runs if curve in run.curves]
    if not logged:
        return None
    steps = sorted(set.intersection(*(set(points) for points in logged)))
    if not steps:
        raise ACPOError(f"the runs of {group} logged {curve} at no common step: draw them apart")
    values = [[points[step] for step in steps] for points in logged]
    return Band(np.array(steps), np.array(values), max(max(points) for points in logged))


def _draw(axes: Axes, bands: dict[str, Band | None], curve: str) -> None:
    for i, (group, band) in enumerate(bands.items()):
        if band is None:
            continue
        axes.plot(
            band.steps,
            band.values.mean(0),
            **look(i).marked,
            markevery=max(1, len(band.steps) // 8),
            linewidth=1.5 if len(band.steps) > 2 else 0,  # two points are no course
            markersize=3.5,
            label=f"{plain(group)} ({_seeds(band.values)})",
        )
        if len(band.values) > 1:
            low, high = band.values.min(0), band.values.max(0)
            axes.fill_between(band.steps, low, high, color=look(i).color, alpha=0.2, linewidth=0)
    axes.set(xlabel="update", ylabel=CURVES[curve][0])
    if curve == "length":
        axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
    close_panel(axes, empty="not logged")


def _rows(group: str, curve: str, band: Band) -> list[dict[str, Any]]:
    rows = []
    for step, values in zip(band.steps, band.values.T, strict=True):
        of_runs = {"mean": float(values.mean()), "min": values.min(), "max": values.max()}
        rows.append({"group": group, "curve": curve, "step": int(step), **of_runs})
        rows[-1]["runs"] = len(values)
    return rows


def _facts(
    groups: dict[str, list[LoggedRun]], bands: dict[tuple[str, str], Band | None]
) -> list[str]:
    facts = []
    for group, runs in groups.items():
        parts = []
        for curve in CURVES:
            band = bands[group, curve]
            if band and len(band.steps) > 1:
                first, last = band.values[:, 0].mean(), band.values[:, -1].mean()
                parts.append(
                    f"{CURVES[curve][0]} {number(first)} to {number(last)}{_of(band, runs)}"
                )
        if parts:
            facts.append(f"{group} ({_seeds(runs)}), first to last logged: {'; '.join(parts)}.")
        held_out = bands[group, "accuracy"]
        if held_out is not None and len(held_out.steps) < 3:
            facts.append(
                f"{group}: held-out accuracy was logged at {len(held_out.steps)} steps only, which "
                "are points and no curve: train with eval_strategy: steps and eval_steps."
            )
        for curve in CURVES:
            band = bands[group, curve]
            if band and band.last > band.steps[-1]:
                facts.append(
                    f"{group}: {CURVES[curve][0]} was logged up to step {band.last}, but by all "
                    f"runs up to step {band.steps[-1]} only; the rest is not shown."
                )
    return facts


def _of(band: Band, runs: Sequence[LoggedRun]) -> str:
    """How many runs logged it, where not all did."""
    return f" ({_seeds(band.values)} only)" if len(band.values) < len(runs) else ""


def _table(groups: dict[str, list[LoggedRun]], bands: dict[tuple[str, str], Band | None]) -> Table:
    rows = []
    for group, runs in groups.items():
        cells = []
        for curve in CURVES:
            band = bands[group, curve]
            if band is None:
                cells.append("-")
                continue
            last = band.values[:, -1]
            span = f" [{number(last.min())}, {number(last.max())}]" if len(last) > 1 else ""
            cells.append(number(last.mean()) + span + _of(band, runs))
        rows.append([group, str(len(runs)), *cells])
    head = ["group", "runs", *(label for label, _ in CURVES.values())]
    return Table("Last logged value, mean over runs [lowest, highest]", head, rows)
