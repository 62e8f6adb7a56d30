"""The same statistics step by step and branch by branch: what pooling a run's steps hides."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from acpo.diagnose.alignment import BRANCHES, branch_of, clustered_share
from acpo.diagnose.figures import legend, letter, look, panels
from acpo.diagnose.report import Finding, Table, number, percent
from acpo.diagnose.tokens import chunks, describe
from acpo.errors import ACPOError
from acpo.records import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUANTITIES = {"aligned": "sampled token is the mode", "delta": "δ", "entropy": "entropy (nats)"}
MODE_GAP = 1e-6


def trends(trace: Trace) -> Finding:
    """Measure every step of a trace.

    Raises:
        ACPOError: The trace holds one step only, or lacks columns.
    """
    steps = sorted({part["step"] for part in trace.parts})
    if len(steps) < 2:
        raise ACPOError(f"{trace.path} holds step {steps[0] if steps else '-'} only: no course")
    rows = [row for step in steps for row in _step_rows(trace.of_step(step), step)]
    return Finding(
        name="trends",
        title="Step by step",
        source=describe(trace),
        reading=(
            "(a): share of sampled tokens that are the policy's mode (gap ≤ 1e-6). (b), (c): mean "
            "δ and entropy. (d): share of tokens by the sign of their completion's advantage. "
            "Bands are 95% intervals, clustered by prompt. Tokens of one completion have one "
            "advantage."
        ),
        facts=_facts(rows, steps),
        tables=[_table(rows, (steps[0], steps[len(steps) // 2], steps[-1]))],
        rows=rows,
        figure=_figure(rows),
    )


def _step_rows(trace: Trace, step: int) -> list[dict[str, Any]]:
    """One row per branch: sums by prompt become means over tokens with intervals over prompts."""
    found = []
    for chunk in chunks(trace, "logp", "log_pmax", "entropy"):
        p, most = np.exp(chunk.columns["logp"]), np.exp(chunk.columns["log_pmax"])
        delta = -np.expm1(chunk.columns["log_pmax"])
        values = (most - p <= MODE_GAP, delta, chunk.columns["entropy"])
        found.append(np.stack([chunk.prompt, branch_of(chunk.advantage), *values]))
    prompt, branch, *columns = np.concatenate(found, axis=1)
    rows = []
    for name in BRANCHES:
        own = np.ones(len(branch), dtype=bool) if name == "all" else branch == BRANCHES[name]
        if not own.any():
            continue
        _, at = np.unique(prompt[own], return_inverse=True)
        total = np.bincount(at)
        sums = np.stack([np.bincount(at, weights=x[own]) for x in columns], axis=1)
        mean, low, high = clustered_share(sums, total, most=None)
        row = {"step": step, "branch": name, "tokens": int(own.sum()), "prompts": len(total)}
        row["share"] = float(own.mean())
        for i, quantity in enumerate(QUANTITIES):
            ends = {f"{quantity}_low": low[i], f"{quantity}_high": high[i]}
            row |= {quantity: float(mean[i]), **{k: float(v) for k, v in ends.items()}}
        rows.append(row)
    return rows


def _of(rows: Sequence[dict[str, Any]], branch: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["branch"] == branch]


def _facts(rows: Sequence[dict[str, Any]], steps: Sequence[int]) -> list[str]:
    facts = []
    for branch in BRANCHES:
        own = _of(rows, branch)
        if len(own) < 2:
            continue
        first, last = own[0], own[-1]
        facts.append(
            f"{branch}, step {first['step']} to {last['step']}: mode-aligned "
            f"{percent(first['aligned'])} to {percent(last['aligned'])}, δ "
            f"{number(first['delta'])} to {number(last['delta'])}, entropy "
            f"{number(first['entropy'])} to {number(last['entropy'])} nats."
        )
    silent = sum(
        not any(row["branch"] in ("Â > 0", "Â < 0") for row in rows if row["step"] == step)
        for step in steps
    )
    if silent:
        facts.append(f"At {silent} of {len(steps)} steps no token has an advantage.")
    return facts


def _table(rows: Sequence[dict[str, Any]], steps: Sequence[int]) -> Table:
    shown = [row for row in rows if row["step"] in steps]
    cells = [
        [
            str(row["step"]),
            row["branch"],
            f"{row['tokens']:,}",
            f"{percent(row['aligned'])} [{percent(row['aligned_low'])}, "
            f"{percent(row['aligned_high'])}]",
            number(row["delta"]),
            number(row["entropy"]),
        ]
        for row in shown
    ]
    head = ["step", "tokens of", "tokens", "mode-aligned [95%]", "mean δ", "mean entropy"]
    return Table("First, middle and last step", head, cells)


def _figure(rows: Sequence[dict[str, Any]]) -> "Figure":
    figure, grid = panels(4, columns=2, size=(4.2, 2.8))
    for axes, (quantity, label) in zip(grid, QUANTITIES.items(), strict=False):
        for i, branch in enumerate(BRANCHES):
            _draw(axes, _of(rows, branch), quantity, branch, i)
        axes.set(xlabel="step", ylabel=label)
    for i, branch in enumerate(BRANCHES):
        if branch != "all":
            _draw(grid[3], _of(rows, branch), "share", branch, i)
    grid[3].set(xlabel="step", ylabel="share of tokens", ylim=(0, 1.05))
    for axes in grid:
        legend(axes, loc="best")
    letter(grid, ["mode-aligned", "surrogate", "entropy", "branches"])
    return figure


def _draw(axes: "Axes", rows: list[dict[str, Any]], quantity: str, label: str, at: int) -> None:
    if not rows:
        return
    style = look(at)
    steps = [row["step"] for row in rows]
    axes.plot(
        steps,
        [row[quantity] for row in rows],
        color=style.color,
        linestyle=style.linestyle,
        marker=style.marker,
        markersize=3,
        linewidth=1.3,
        label=label,
    )
    if f"{quantity}_low" in rows[0]:
        low, high = ([row[f"{quantity}_{end}"] for row in rows] for end in ("low", "high"))
        axes.fill_between(steps, low, high, color=style.color, alpha=0.15, linewidth=0)
