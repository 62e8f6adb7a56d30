"""What a run leaves behind: curves.png, report.json, and a summary for the terminal."""

import itertools
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from acpo.intervals import Estimate
from acpo.jsonl import read_if_json
from acpo.linefile import write_png, write_whole
from acpo.tasks.chain import ChainProblem
from acpo.train.accuracy import Sample

REPORT = "report.json"
CURVES = {
    "reward": "mean reward of the samples",
    "aligned": "share of mode-aligned tokens",
    "entropy": "entropy per token (nats)",
    "completions/mean_length": "completion length (tokens)",
}
"""Logged quantities that are drawn, and what the axis says."""


@dataclass(frozen=True)
class Report:
    """The outcome of a run."""

    recipe: str  # the recipe's path
    model: str  # what was trained, as the recipe names it
    method: str  # the objective
    seed: int  # of the run
    updates: int  # optimizer steps taken
    timed_updates: int  # how many of them were made since the run was last resumed
    train_seconds: float  # wall-clock time of those alone, without measuring accuracy
    train_cpu_seconds: float  # CPU time of the same, summed over threads
    # Held-out accuracy of the model as it came, the share of completions whose first reward is 1
    # or more; None when nothing was held out or judged, or when a resumed run holds out other
    # problems than the run began with.
    before: Estimate | None = None
    after: Estimate | None = None  # held-out accuracy of the trained model
    problems: int = 0  # held-out problems
    skipped_updates: int = 0  # of `updates`, those left out because a number was not finite

    @classmethod
    def read(cls, folder: Path) -> "Report | None":
        """What `write` left in a folder; None if there is no such thing."""
        content = read_if_json(folder / REPORT) or {}
        try:
            for name in ("before", "after"):
                content[name] = Estimate(**content[name]) if content[name] else None
            return cls(**content)
        except (TypeError, KeyError):
            return None

    def write(self, folder: Path) -> Path:
        """Write report.json."""
        content = asdict(self)
        for name in ("before", "after"):
            value: Estimate | None = getattr(self, name)
            content[name] = value._asdict() if value else None
        path = folder / REPORT
        write_whole(path, json.dumps(content, indent=2) + "\n")
        return path


def draw_curves(history: Sequence[dict[str, Any]], report: Report, path: Path) -> None:
    """A PNG of the logged quantities over updates, one panel each."""
    from matplotlib.figure import Figure

    drawn = [key for key in CURVES if any(row.get(key) is not None for row in history)]
    if not drawn:
        return
    figure = Figure(figsize=(3.6 * len(drawn), 3.2), layout="constrained")
    for axes, key in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        points = [(row["step"], row[key]) for row in history if row.get(key) is not None]
        axes.plot(*zip(*points, strict=True), color="#1f6f8b")
        axes.set(xlabel="update", ylabel=CURVES[key])
        axes.grid(alpha=0.3)
        if key.startswith("completions"):
            axes.set_ylim(0, 1.15 * max(axes.get_ylim()[1], 1e-9))
        if key == "reward":
            for step, interval in ((0, report.before), (report.updates, report.after)):
                if interval is not None:
                    error = [[interval.value - interval.low], [interval.high - interval.value]]
                    axes.errorbar(step, interval.value, error, fmt="o", color="#c8553d", capsize=3)
    figure.suptitle(f"{report.method}, seed {report.seed} (dots: held-out accuracy, 95% interval)")
    write_png(path, figure)


def summary(
    report: Report,
    before: Sequence[Sample],
    after: Sequence[Sample],
    try_next: Sequence[str] | None,
) -> str:
    """What to print at the end."""
    resumed = f", the last {report.timed_updates}" if report.timed_updates < report.updates else ""
    made = f"{report.updates} updates of {report.method}"
    lines = [f"{made}{resumed} in {report.train_seconds:.0f} s"]
    if report.skipped_updates:
        lines.append(
            f"{report.skipped_updates} of them changed nothing: their loss or gradient was not "
            "finite (nonfinite/steps in the log)"
        )
    if report.after:
        lines += ["", f"accuracy on {report.problems} held-out problems (95% interval)"]
        gained = ""
        if report.before:
            gained = f"   ({100 * (report.after.value - report.before.value):+.1f} points)"
            lines.append(f"  before  {report.before}")
        lines += [f"  after   {report.after}{gained}", *_worked_sample(before, after)]
    waiting = [command for command in try_next or () if not _was_run(command, report)]
    if waiting:
        lines += ["", "try next:", f"  {_as_typed(waiting[0])}"]
    return "\n".join(lines)


def _was_run(command: str, report: Report) -> bool:
    """Whether the folder a command writes to is there already, or this run was of its method."""
    pairs = list(itertools.pairwise(command.split()))
    folders = [b for a, b in pairs if a in ("--output_dir", "--output")]
    return ("--method", report.method) in pairs or any(Path(own).exists() for own in folders)


def _as_typed(command: str) -> str:
    """`acpo ...` as this shell would find it: with its folder, if that is not on the PATH."""
    if shutil.which("acpo") or not command.startswith("acpo ") or Path(sys.argv[0]).name != "acpo":
        return command
    return os.path.relpath(sys.argv[0]) + command.removeprefix("acpo")


def _worked_sample(before: Sequence[Sample], after: Sequence[Sample]) -> list[str]:
    """One problem the model got wrong before and right after, where there is one."""
    now = {sample.prompt: sample for sample in after if sample.correct}
    for old in before:
        if not old.correct and old.prompt in now:
            return [
                "",
                f"a held-out problem: {_shorten(old.prompt)}",
                f"  before  {_shorten(old.completion)}{_first_error(old)}",
                f"  after   {_shorten(now[old.prompt].completion)}",
            ]
    return []


def _first_error(sample: Sample) -> str:
    try:
        problem = ChainProblem.parse(sample.prompt)
    except ValueError:
        return "   (wrong)"
    index = problem.first_error(sample.completion)
    if index is None:
        return ""
    return f"   (wrong from step {index + 1} on: {problem.steps[index]})"


def _shorten(text: str, limit: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-limit // 2 :]}"
