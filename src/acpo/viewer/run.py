"""What a training run left in its folder, or has left so far: curves, warnings, latest rollouts."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from acpo.jsonl import json_object
from acpo.records import HEADER, RUN_LOG, RUN_TRACE, Trace, has_begun

CURVES = {
    "reward": "reward",
    "eval_reward": "held-out reward",
    "entropy": "entropy, nats",
    "delta": "δ",
    "update/positive_share": "positive share",
    "completions/mean_length": "length, tokens",
    "step_time": "seconds per step",
    "update/tokens_per_second": "update, tokens/s",
}
"""Logged quantities that are drawn, and what they are called."""
MOST_POINTS = 1000
"""Of a curve; the page is a few hundred pixels wide."""


def run_facts(folder: Path) -> dict[str, Any]:
    """Curves, warnings and dashboards of a run, as the page shows them."""
    rows = list(_rows(folder))
    curves = []
    for key, label in CURVES.items():
        points = {_step(row): float(row[key]) for row in rows if _is_number(row.get(key))}
        if points:
            curves.append({"label": label, "points": thinned(sorted(points.items()))})
    warnings = [
        {"step": _step(row), "words": str(words)}
        for row in rows
        if isinstance(row.get("warnings"), list)
        for words in row["warnings"]
    ]
    reports: dict[Any, Any] = next(
        (row["reports"] for row in rows if isinstance(row.get("reports"), dict)), {}
    )
    return {
        "name": folder.resolve().name,
        "step": max((_step(row) for row in rows), default=0),
        "curves": curves,
        "warnings": warnings,
        "reports": {str(name): str(where) for name, where in reports.items()},
    }


def is_run(folder: Path) -> bool:
    """Whether a folder is one that training writes to, and no trace."""
    names = (RUN_LOG, f"{RUN_TRACE}/{HEADER}")
    return not (folder / HEADER).exists() and any((folder / name).exists() for name in names)


def recorded(folder: Path) -> Trace | None:
    """The rollouts that were recorded; None where none were."""
    trace = Trace.open(folder / RUN_TRACE) if has_begun(folder / RUN_TRACE) else None
    return trace if trace and len(trace) else None


def newest_part(folder: Path) -> tuple[int, int]:
    """Step and number of what was recorded last; (-1, -1) before anything was."""
    trace = recorded(folder)
    parts = [part for part in trace.parts if part["tokens"]] if trace else []
    return max(((part["step"], part["part"]) for part in parts), default=(-1, -1))


def thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """About `MOST_POINTS`: the last, and of neighbours the lowest and the highest: spikes stay."""
    size = math.ceil(2 * len(points) / MOST_POINTS)
    if size <= 2:
        return points
    kept: list[tuple[int, float]] = []
    for first in range(0, len(points), size):
        near = points[first : first + size]
        ends = {min(near, key=lambda point: point[1]), max(near, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def _rows(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Log entries; what is none is passed over: the last line may be half written."""
    try:
        lines = (folder / RUN_LOG).read_bytes().split(b"\n")[:-1]
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError):
            yield json_object(line)


def _step(row: Mapping[str, Any]) -> int:
    step = row.get("step")
    return step if type(step) is int and 0 <= step < 2**53 else 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300
