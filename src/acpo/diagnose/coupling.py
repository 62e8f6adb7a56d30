"""Away from w = 1: the proxy's term grows beside the local one, and may reverse an update."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acpo.diagnose.figures import REVERSED, legend, letter, look, panels
from acpo.diagnose.report import Finding, Table, number, percent, rows_of
from acpo.diagnose.tokens import chunks, describe, require_temperatures, require_usable
from acpo.errors import ACPOError
from acpo.objectives import theory
from acpo.records import Trace

OLD = (0.1, 0.2, 0.3, 0.4, 0.6, 0.9)
"""π_old(y) for which M+ and M- are drawn."""
RATIOS = np.linspace(0.05, 5, 397)
DRAWN = 3000


@dataclass(frozen=True)
class Gate:
    """Temperatures and offset of the objective."""

    tau_pos: float = 1.0
    tau_neg: float = 1.05
    offset: float = 2.0


@dataclass
class Observed:
    """Ratios in a trace."""

    tokens: int = 0  # usable ones
    left_out: int = 0
    candidates: int = 0  # aligned ones with positive advantage
    reversing: int = 0  # those of them whose update reverses
    moved: int = 0  # tokens whose ratio is not 1
    smallest: float = np.inf  # of the ratios
    largest: float = 0.0
    # Sum of f'(w) and tokens, for A > 0 and for A < 0.
    gates: np.ndarray = field(default_factory=lambda: np.zeros((2, 2)))
    points: list[np.ndarray] = field(default_factory=list)  # π_old(y) and w of some candidates

    def gate(self, branch: int) -> float:
        """The mean of f'(w), which is 1 at w = 1, on one branch; NaN where it has no token."""
        total, tokens = self.gates[branch]
        return float(total / tokens) if tokens else math.nan


def coupling(trace: Trace | None = None, gate: Gate | None = None) -> Finding:
    """C(w), M+ and M-, and the region where an aligned positive update reverses.

    A trace with `logp`, `old_logp` and `is_mode` shows how many tokens lie in the region, as they
    were sampled and after each further update on them that was recorded. The gate is the paper's
    unless given.
    """
    gate = gate or Gate()
    require_temperatures(tau_pos=gate.tau_pos, tau_neg=gate.tau_neg)
    if not math.isfinite(gate.offset):
        raise ACPOError(f"offset={gate.offset} must be a finite number")
    onset = theory.reversal_onset(tau=gate.tau_pos, offset=gate.offset)
    # The trace as it was sampled, and what was scored again after updates on it.
    parts = {} if trace is None else {0: trace, **trace.after_updates()}
    seen = {update: _observe(part, gate) for update, part in parts.items()}
    settings = f"τ_pos = {gate.tau_pos:g}, τ_neg = {gate.tau_neg:g}, offset {gate.offset:g}"
    facts = _facts(gate, onset, seen, {} if trace is None else trace.header)
    return Finding(
        name="coupling",
        headline=next((fact for fact in reversed(facts) if "reversal region" in fact), ""),
        title="Coupling away from the proximal point",
        source=f"{describe(trace)}; {settings}",
        reading=(
            "(a): C(w) = f(w)/f'(w). (b), (c): the factors M+ and M- on w f'(w) Â ∇log π(y) of an "
            "aligned token, for several probabilities under the policy that sampled it; a line "
            "ends where π(y) = w π_old(y) would pass 1. Below zero (shaded) the update is "
            "reversed. (d): the pairs (π_old(y), w) where an aligned positive update reverses; "
            "above the dashed line π(y) > 1. Dots, if any: aligned positive-advantage tokens."
        ),
        facts=facts,
        tables=[_table(gate), *([_update_table(seen)] if seen else [])],
        rows=_rows(gate),
        extra={"updates": _update_rows(seen)} if seen else {},
        figure=_figure(gate, onset, seen),
    )


def _observe(trace: Trace, gate: Gate) -> Observed:
    seen = Observed()
    every = max(1, len(trace) // DRAWN)
    for chunk in chunks(trace, "logp", "old_logp", "is_mode"):
        seen.left_out += chunk.left_out
        if not len(chunk):
            continue
        log_ratio = np.clip(chunk.columns["logp"] - chunk.columns["old_logp"], -20, 20)
        old, w = np.exp(np.minimum(chunk.columns["old_logp"], 0.0)), np.exp(log_ratio)
        seen.tokens += len(w)
        seen.moved += int((log_ratio != 0).sum())
        seen.smallest, seen.largest = min(seen.smallest, w.min()), max(seen.largest, w.max())
        for branch, (tau, own) in enumerate(
            ((gate.tau_pos, chunk.advantage > 0), (gate.tau_neg, chunk.advantage < 0))
        ):
            half = np.tanh(tau * (w[own] - 1) / 2)
            seen.gates[branch] += (1 - half**2).sum(), own.sum()  # f'(w) = 4σ(1 - σ)
        chosen = (chunk.columns["is_mode"] > 0) & (chunk.advantage > 0)
        seen.candidates += int(chosen.sum())
        # By the region, not by the sign of M+: near w = 1 that is rounding.
        seen.reversing += int((old[chosen] > _couplings(w[chosen], gate)[2]).sum())
        seen.points.append(np.stack([old[chosen][::every], w[chosen][::every]]))
    require_usable(trace, seen.tokens, seen.left_out)
    return seen


def _modulations(old: np.ndarray, w: np.ndarray, gate: Gate) -> tuple[np.ndarray, np.ndarray]:
    """M+ and M-."""
    p, ratio = torch.from_numpy(old * w), torch.from_numpy(w)
    plus = theory.positive_modulation(p, ratio, tau=gate.tau_pos, offset=gate.offset)
    return plus.numpy(), theory.negative_modulation(p, ratio, tau=gate.tau_neg).numpy()


def _couplings(w: np.ndarray, gate: Gate) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """C(w) of both branches, and π_old(y) above which the positive update reverses."""
    ratio = torch.from_numpy(w)
    return (
        theory.coupling(ratio, gate.tau_pos).numpy(),
        theory.coupling(ratio, gate.tau_neg).numpy(),
        theory.reversal_probability(ratio, tau=gate.tau_pos, offset=gate.offset).numpy(),
    )


def _rows(gate: Gate) -> list[dict[str, Any]]:
    names = ("C_pos", "C_neg", "reversal_above_p_old")
    columns = {"w": RATIOS, **dict(zip(names, _couplings(RATIOS, gate), strict=True))}
    for old in OLD:
        inside = RATIOS * old <= 1
        plus, minus = _modulations(np.full_like(RATIOS, old), RATIOS, gate)
        columns[f"M_plus_{old}"] = np.where(inside, plus, np.nan)
        columns[f"M_minus_{old}"] = np.where(inside, minus, np.nan)
    return rows_of(columns)


def _table(gate: Gate) -> Table:
    w = np.array([0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0])
    pos, _, threshold = _couplings(w, gate)
    rows = [
        [f"{w[i]:g}", f"{pos[i]:.4f}", number(threshold[i]), f"{min(1.0, 1 / w[i]):.4f}"]
        for i in range(len(w))
    ]
    head = ["w", "C(w)", "reverses above π_old(y)", "π_old(y) at most"]
    return Table("Aligned positive updates", head, rows)


def _update_rows(seen: dict[int, Observed]) -> list[dict[str, Any]]:
    return [
        {
            "update": update,
            "tokens": one.tokens,
            "smallest_w": float(one.smallest),
            "largest_w": float(one.largest),
            "moved": one.moved,
            "gate_pos": one.gate(0),
            "gate_neg": one.gate(1),
            "aligned_positive": one.candidates,
            "reversed": one.reversing,
        }
        for update, one in seen.items()
    ]


def _update_table(seen: dict[int, Observed]) -> Table:
    rows = [
        [
            str(update),
            f"{one.tokens:,}",
            f"{number(one.smallest)} to {number(one.largest)}",
            percent(one.moved / one.tokens),
            f"{number(one.gate(0))} / {number(one.gate(1))}",
            f"{one.reversing:,} of {one.candidates:,}",
        ]
        for update, one in seen.items()
    ]
    head = ["updates before", "tokens", "w", "w ≠ 1", "mean f'(w), Â > 0 / Â < 0"]
    return Table("By update on the same rollout", [*head, "aligned positive reversed"], rows)


def _facts(
    gate: Gate, onset: float, seen: dict[int, Observed], header: dict[str, Any]
) -> list[str]:
    pos, neg, threshold = _couplings(np.array([1.0]), gate)
    facts = [f"At w = 1, C = {pos[0]:.4f} on the positive branch, {neg[0]:.4f} on the other."]
    if onset:
        facts.append(
            f"An aligned positive update can reverse only beyond w = {onset:.4f}, that is, where "
            f"π_old(y) < {1 / onset:.4f}."
        )
    else:
        facts.append(
            "With this temperature and offset an aligned positive update reverses at w = 1 "
            f"already, where π(y) > {number(threshold[0])}."
        )
    for update, one in seen.items():
        facts.append(
            f"{'In the trace' if not update else f'After {update} further updates'} w ranges from "
            f"{number(one.smallest)} to {number(one.largest)}; it differs from 1 at "
            f"{percent(one.moved / one.tokens)} of {one.tokens:,} tokens."
        )
        if one.candidates:
            facts.append(
                f"{one.reversing:,} of {one.candidates:,} aligned positive-advantage tokens "
                f"({percent(one.reversing / one.candidates, 4)}) lie in the reversal region."
            )
        else:
            facts.append("No aligned token has a positive advantage.")
        if one.left_out:
            facts.append(f"{one.left_out:,} tokens without finite log-probabilities were left out.")
    if seen and not seen[0].moved and len(seen) == 1:
        facts.append(_once(header))
    return facts


def _once(header: dict[str, Any]) -> str:
    """What a trace in which w is 1 everywhere says about off-policy updates."""
    if header.get("source") != "train":
        return (
            "The policy that was scored is the one that sampled, so w = 1 by construction: how far "
            "training moves it, this trace cannot say."
        )
    if header.get("updates_per_rollout") == 1:
        return "The run makes one update per rollout: no update is off-policy."
    return (
        "Each completion was scored once, before the first update on it, so w = 1 by construction. "
        "Whether further updates on the same rollout are off-policy, this trace does not record."
    )


def _figure(gate: Gate, onset: float, seen: dict[int, Observed]) -> Figure:
    figure, (couplings, plus, minus, region) = panels(4, columns=2, size=(4.2, 3.0))
    pos, neg, _ = _couplings(RATIOS, gate)
    for i, (name, tau, values) in enumerate(
        ((r"\mathrm{pos}", gate.tau_pos, pos), (r"\mathrm{neg}", gate.tau_neg, neg))
    ):
        label = rf"$\tau_{{{name}}} = {tau:g}$"
        couplings.plot(RATIOS, values, **look(i).line, label=label)
    couplings.set(ylabel="$C(w)$", yscale="log")
    for i, old in enumerate(OLD):
        w = RATIOS[RATIOS * old <= 1]
        name = rf"$\pi_{{\mathrm{{old}}}}(y) = {old:g}$"
        factors = _modulations(np.full_like(w, old), w, gate)
        for axes, values in zip((plus, minus), factors, strict=True):
            axes.plot(w, values, **look(i).line, label=name)
    plus.set(ylabel="$M^+$", ylim=(-3, 6))
    plus.axhspan(-3, 0, color=REVERSED, zorder=0)
    minus.set(ylabel="$M^-$", ylim=(0, 6))
    _draw_region(region, gate, onset, seen)
    for axes in (couplings, plus, minus):
        axes.axvline(1, color="0.4", linewidth=0.8)
        axes.set_xlabel("importance ratio $w$")
    for axes in (couplings, plus, minus, region):
        legend(axes, loc="best")
    titles = ("relative weight of the proxy term", "positive branch", "non-positive branch")
    letter((couplings, plus, minus, region), (*titles, "reversal region"))
    return figure


def _draw_region(axes: Axes, gate: Gate, onset: float, seen: dict[int, Observed]) -> None:
    top = 5.0
    points = [array for one in seen.values() for array in one.points]
    if sum(one.candidates for one in seen.values()):
        old, w = np.concatenate(points, axis=1)
        top = max(top, 1.1 * float(w.max(initial=0.0)))
        color = look(6).color
        dots = axes.scatter(old, w, s=5, color=color, alpha=0.3, linewidths=0, label="tokens")
        dots.set_rasterized(True)
    w = np.linspace(0.05, top, 2000)
    threshold = _couplings(w, gate)[2]
    inside = ~np.isnan(threshold)
    axes.fill_betweenx(
        w, threshold, 1 / w, where=inside, color=look(1).color, alpha=0.35, label="reversed"
    )
    axes.plot(1 / w[w >= 1], w[w >= 1], color="0.3", linestyle="--", linewidth=1)
    if onset:
        axes.axhline(onset, color="0.3", linestyle=":", linewidth=1)
    axes.set(xlim=(0, 1), ylim=(0, top), ylabel="importance ratio $w$")
    axes.set_xlabel(r"$\pi_{\mathrm{old}}(y)$")
