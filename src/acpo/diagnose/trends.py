"""The same statistics step by step and branch by branch: what pooling a run's steps hides."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acpo.diagnose.alignment import THRESHOLDS
from acpo.diagnose.figures import legend, letter, look, panels
from acpo.diagnose.report import Finding, Table, number, percent
from acpo.diagnose.tokens import (
    BRANCHES,
    SumsByBranch,
    clustered_share,
    describe,
    require_usable,
    sums_by_prompt,
)
from acpo.errors import ACPOError
from acpo.records import Trace

COLUMNS = ("logp", "log_pmax", "entropy")
QUANTITIES = {"aligned": "sampled token is the mode", "delta": "δ", "entropy": "entropy (nats)"}
MOST = np.array([1.0, 1.0, np.inf])
"""What each of them can be."""


def trends(trace: Trace) -> Finding:
    """Measure every step of a trace that holds several."""
    steps = sorted({part["step"] for part in trace.parts if part["tokens"]})
    if len(steps) < 2:
        raise ACPOError(f"{trace.path} holds step {steps[0] if steps else '-'} only: no course")
    rows: list[dict[str, Any]] = []
    left_out = 0
    for step in steps:
        found, lost = sums_by_prompt(trace.of_step(step), COLUMNS, _quantities)
        rows += _step_rows(found, step)
        left_out += lost
    require_usable(trace, len(rows), left_out)
    known = sorted({row["step"] for row in rows})
    return Finding(
        name="trends",
        title="Step by step",
        source=describe(trace, pools=False),
        reading=(
            "(a): share of sampled tokens that are the policy's mode (gap ≤ 1e-6). (b), (c): mean "
            "δ and entropy. (d): share of tokens by the sign of their completion's advantage. "
            "Bands are 95% intervals, clustered by prompt. Tokens of one completion have one "
            "advantage."
        ),
        facts=_facts(rows, known) + _lost(steps, known, left_out),
        tables=[_table(rows, (known[0], known[len(known) // 2], known[-1]))],
        rows=rows,
        figure=_figure(rows),
    )


def _lost(steps: Sequence[int], known: Sequence[int], left_out: int) -> list[str]:
    """What is not shown: a policy that diverged has no numbers."""
    facts = []
    if left_out:
        facts.append(f"{left_out:,} tokens without finite statistics were left out.")
    if lost := sorted(set(steps) - set(known)):
        facts.append(
            f"At {len(lost)} of {len(steps)} steps, first at step {lost[0]}, no token has finite "
            "statistics: they are not shown."
        )
    return facts


def _step_rows(found: SumsByBranch, step: int) -> list[dict[str, Any]]:
    """One row per branch: sums by prompt become means over tokens with intervals over prompts."""
    rows: list[dict[str, Any]] = []
    for branch, (sums, total) in found.items():
        mean, low, high = clustered_share(sums, total, most=MOST)
        tokens = int(total.sum())
        rows.append({"step": step, "branch": branch, "tokens": tokens, "prompts": len(total)})
        rows[-1]["share"] = tokens / rows[0]["tokens"]
        for i, quantity in enumerate(QUANTITIES):
            rows[-1] |= {quantity: float(mean[i]), f"{quantity}_low": float(low[i])}
            rows[-1][f"{quantity}_high"] = float(high[i])
    return rows


def _quantities(columns: dict[str, np.ndarray]) -> list[np.ndarray]:
    p, most = np.exp(columns["logp"]), np.exp(columns["log_pmax"])
    return [most - p <= THRESHOLDS[0], -np.expm1(columns["log_pmax"]), columns["entropy"]]


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


def _figure(rows: Sequence[dict[str, Any]]) -> Figure:
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


def _draw(axes: Axes, rows: list[dict[str, Any]], quantity: str, label: str, at: int) -> None:
    if not rows:
        return
    steps, values = ([row[name] for row in rows] for name in ("step", quantity))
    axes.plot(steps, values, **look(at).marked, markersize=3, linewidth=1.3, label=label)
    if f"{quantity}_low" in rows[0]:
        low, high = ([row[f"{quantity}_{end}"] for row in rows] for end in ("low", "high"))
        axes.fill_between(steps, low, high, color=look(at).color, alpha=0.15, linewidth=0)
