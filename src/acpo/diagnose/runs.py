"""What a training run logged: `trainer_state.json` and `report.json` of its folder."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acpo.errors import ACPOError

STATE = "trainer_state.json"
CURVES = {
    "accuracy": re.compile("eval_rewards/.+/mean"),
    "entropy": re.compile("entropy"),
    "length": re.compile("completions/mean_length"),
    "reward": re.compile("reward"),
}
"""Curves, and the logged quantity each is. Of several that match, the first is taken."""


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        path: its folder.
        method: the objective; the folder's name if the run left no report.
        seed: of the run, if it left a report.
        curves: value by step, for each of CURVES; without those it did not log.
    """

    path: Path
    method: str
    seed: int | None
    curves: dict[str, dict[int, float]]


def read_run(path: Path) -> Run:
    """Read a run's folder.

    Raises:
        ACPOError: There is no log, or it is not one.
    """
    state = _state_file(path)
    history = _json(state).get("log_history")
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise ACPOError(f"{state} has no log_history: is it a trainer's state?")
    report = _json(path / "report.json") if (path / "report.json").exists() else {}
    method, seed = report.get("method"), report.get("seed")
    curves = {name: _curve(history, pattern) for name, pattern in CURVES.items()}
    if not any(curves.values()):
        raise ACPOError(f"{state} logged none of {', '.join(CURVES)}: set logging_steps")
    return Run(
        path,
        method if isinstance(method, str) else path.resolve().name,
        seed if isinstance(seed, int) else None,
        {name: points for name, points in curves.items() if points},
    )


def _state_file(path: Path) -> Path:
    """The finished run's state, or that of its newest checkpoint."""
    checkpoints = [
        (int(folder.name.removeprefix("checkpoint-")), folder)
        for folder in path.glob("checkpoint-*")
        if folder.name.removeprefix("checkpoint-").isdigit()
    ]
    for folder in (path, *(folder for _, folder in sorted(checkpoints, reverse=True))):
        if (folder / STATE).is_file():
            return folder / STATE
    raise ACPOError(f"{path} holds no {STATE}: give the output_dir of `acpo train`")


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ACPOError(f"{file} cannot be read ({error}): the run is damaged") from error
    if not isinstance(content, dict):
        raise ACPOError(f"{file} holds no JSON object: the run is damaged")
    return content


def _number(value: Any) -> float | None:
    try:
        number = float(value) if type(value) in (int, float) else math.nan
    except OverflowError:  # JSON's integers have no end
        return None
    return number if math.isfinite(number) else None


def _curve(history: Sequence[dict[str, Any]], pattern: re.Pattern[str]) -> dict[int, float]:
    names = [key for row in history for key in row if pattern.fullmatch(key)]
    if not names:
        return {}
    points = {}
    for row in history:
        step, value = row.get("step"), row.get(names[0])
        number = _number(value)
        if type(step) is int and number is not None:
            points[step] = number
    return points
