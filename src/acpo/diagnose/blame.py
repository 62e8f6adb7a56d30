"""Does a method put the blame on the mistake? Shares of its update before, at and after it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acpo.annotate.annotations import Annotations
from acpo.annotate.evidence import Accept, Place, error_places
from acpo.annotate.pairs import Trajectory, select
from acpo.diagnose.clusters import cluster_means, effect, interval
from acpo.diagnose.figures import letter, look, panels
from acpo.diagnose.geometry import TokenScalars, local_norm2
from acpo.diagnose.report import Finding, Table, percent
from acpo.diagnose.tokens import annotated, describe
from acpo.errors import ACPOError
from acpo.method_columns import MethodColumns, method_columns
from acpo.objectives import METHODS
from acpo.records import Trace

QUANTITIES = {"update": "negative update", "gradient": "negative gradient", "credit": "credit"}
READING = (
    "Wrong completions with a known first error, and how much of a method falls on the tokens of "
    "that error, on those before it and on those after it. (a): of its negative update, the part "
    "of each token's coefficient on e_y - p that lowers the token. (b): of the same times "
    "‖e_y - p‖, the length of what the logits get: sure tokens get next to nothing, whatever the "
    "method. (c): of its credit c. Means over prompts with 95% intervals; dotted lines are chance, "
    "the share of tokens there. All tokens of a completion share its reward, so a method that "
    "weights none of them is at chance in (a) and (c)."
)


class Shares(NamedTuple):
    """Of a mass, `[completions]` each; NaN where the completion has no such mass."""

    before: np.ndarray
    at: np.ndarray
    after: np.ndarray


REGIONS = Shares._fields
Wrong = Sequence[tuple[Trajectory, Place]]
"""Wrong completions, and the first error of each."""


def blame(trace: Trace, annotations: Annotations, *, accept: Accept = Accept.SOUND) -> Finding:
    """Where every method's negative update and credit fall, beside the first error."""
    trace = annotated(trace, annotations)
    selection = select(trace, step=annotations.step)
    wrong, outcomes = error_places(selection, annotations, accept)
    shares, missing = _all_shares(trace, wrong)
    prompts = [one.prompt_id for one, _ in wrong]
    chance = region_shares(np.ones(len(trace)), wrong)  # what mass spread evenly gives
    if not shares:
        raise ACPOError(f"{trace.path}: no method updates these completions: {missing}")
    rows = _rows(shares, chance, prompts)
    facts = _facts(shares, rows, prompts, missing)
    return Finding(
        name="blame",
        headline=facts[1],
        title="Blame at the error",
        source=(
            f"{describe(trace)}; first errors of {len(wrong)} wrong completions "
            f"({', '.join(f'{count} {name}' for name, count in outcomes.items())})"
        ),
        reading=READING,
        facts=facts,
        tables=[_table(rows, quantity) for quantity in QUANTITIES],
        rows=rows,
        figure=_figure(rows),
        extra={"completions": _completion_rows(wrong, shares, chance)},
    )


def _all_shares(trace: Trace, wrong: Wrong) -> tuple[dict[tuple[str, str], Shares], dict[str, str]]:
    """By method and quantity; and why some methods have none."""
    shares: dict[tuple[str, str], Shares] = {}
    missing = {}
    length = _direction_length(trace)
    for method in METHODS:
        try:
            columns = method_columns(trace, method)
        except ACPOError as error:
            missing[method] = str(error)
            continue
        for quantity, mass in masses(columns, length).items():
            unknown = sum(bool(np.isnan(mass[one.rows]).any()) for one, _ in wrong)
            if unknown:  # else methods would be compared over different completions
                why = f"the trace lacks what it takes in {unknown} of {len(wrong)} completions"
                missing[f"{method}, {quantity}"] = why
            elif np.isfinite((found := region_shares(mass, wrong)).at).any():
                shares[method, quantity] = found
            else:
                missing[f"{method}, {quantity}"] = "it is 0 in all of them"
    return shares, missing


def masses(columns: MethodColumns, length: np.ndarray) -> dict[str, np.ndarray]:
    """`[N]` what is shared out: the negative part of the update, of its length, and credit."""
    update = np.asarray(columns.update, dtype=np.float64)
    negative = np.where(np.isnan(update), np.nan, np.maximum(-update, 0.0))
    credit = np.abs(np.asarray(columns.credit, dtype=np.float64))
    return {"update": negative, "gradient": negative * length, "credit": credit}


def _direction_length(trace: Trace) -> np.ndarray:
    """`[N]` ‖e_y - p‖; NaN where the trace lacks the sum it takes."""
    if "tail_p2" not in trace.columns:
        return np.full(len(trace), np.nan)
    names = ("logp", "log_pmax", "is_mode", "tail_p2")
    known = {name: np.asarray(x, dtype=np.float64) for name, x in trace.tokens(*names).items()}
    scalars = TokenScalars(*(known.get(name, np.zeros(0)) for name in TokenScalars._fields))
    return np.sqrt(local_norm2(scalars._replace(is_mode=scalars.is_mode > 0)))


def region_shares(mass: np.ndarray, wrong: Wrong) -> Shares:
    """The shares of each completion's mass; NaN where all of it is 0."""
    found = np.full((len(REGIONS), len(wrong)), np.nan)
    for number, (one, place) in enumerate(wrong):
        first, end = place.span
        own = mass[one.rows]
        total = own.sum()
        if total > 0:
            parts = (own[:first], own[first:end], own[end:])
            found[:, number] = [part.sum() / total for part in parts]
    return Shares(*found)


def _rows(
    shares: Mapping[tuple[str, str], Shares], chance: Shares, prompts: Sequence[str]
) -> list[dict[str, Any]]:
    """One row per method, quantity and region; whether a share is chance is tested at the error."""
    rows = []
    for key, found in shares.items():
        excess = effect(found.at - chance.at, prompts)
        for region, values, even in zip(REGIONS, found, chance, strict=True):
            low, high = interval(values, prompts)
            even = np.where(np.isfinite(values), even, np.nan)
            share, chances = (float(cluster_means(x, prompts).mean()) for x in (values, even))
            row: dict[str, Any] = {"method": key[0], "quantity": key[1], "region": region}
            row |= {"share": share, "low": low, "high": high, "chance": chances}
            if region == "at":
                row |= {"excess": excess.mean, "excess_low": excess.low, "excess_high": excess.high}
                row |= {"p_value": excess.p_value}
            row |= {"completions": int(np.isfinite(values).sum()), "prompts": excess.prompts}
            rows.append(row)
    return rows


def _completion_rows(
    wrong: Wrong, shares: Mapping[tuple[str, str], Shares], chance: Shares
) -> list[dict[str, Any]]:
    named = {"chance": chance} | {" ".join(key): found for key, found in shares.items()}
    return [
        {
            "prompt_id": one.prompt_id,
            "sample": one.sample,
            "tokens": one.length,
            "error_first": place.span.first,
            "error_end": place.span.end,
            "evidence": str(place.evidence),
            **{
                f"{name} {region}": float(values[row])
                for name, found in named.items()
                for region, values in zip(REGIONS, found, strict=True)
            },
        }
        for row, (one, place) in enumerate(wrong)
    ]


def _facts(
    shares: Mapping[tuple[str, str], Shares],
    rows: Sequence[Mapping[str, Any]],
    prompts: Sequence[str],
    missing: Mapping[str, str],
) -> list[str]:
    updates = [row for row in rows if row["quantity"] == "update"] or list(rows)
    by = {(row["method"], row["quantity"], row["region"]): row for row in rows}
    facts = [
        f"{len(prompts)} wrong completions of {len(set(prompts))} prompts. Chance: "
        + ", ".join(f"{percent(row['chance'], 1)} {row['region']}" for row in updates[:3])
        + " the error."
    ]
    for method in ("acpo", "sapo", "grpo"):
        at = by.get((method, "update", "at"))
        if at is None:
            continue
        verdict = "chance is not excluded"
        if at["p_value"] < 0.05:
            verdict = "more than chance" if at["excess"] > 0 else "less than chance"
        facts.append(
            f"{method}: {_ends(at)} of its negative update falls on the error ({verdict}, "
            f"p = {at['p_value']:.2g}), {_ends(by[method, 'update', 'before'])} before it."
        )
        if (length := by.get((method, "gradient", "at"))) is not None:
            facts[-1] += f" Of the gradient's length {_ends(length)} falls on it."
    if {("acpo", "update"), ("sapo", "update")} <= shares.keys():
        gap = effect(shares["acpo", "update"].at - shares["sapo", "update"].at, prompts)
        facts.append(
            f"acpo less sapo, at the error: {100 * gap.mean:+.1f} points [{100 * gap.low:+.1f}, "
            f"{100 * gap.high:+.1f}], p = {gap.p_value:.2g}."
        )
    order = sorted((row["share"], row["method"]) for row in updates if row["region"] == "at")
    facts.append(
        f"Most at the error: {order[-1][1]} ({percent(order[-1][0], 1)}); least: {order[0][1]} "
        f"({percent(order[0][0], 1)}), of {len(order)} methods."
    )
    if len(set(prompts)) < 10:
        facts.append("With fewer than 10 prompts the intervals are too narrow; the tests are not.")
    for why in dict.fromkeys(missing.values()):
        names = "; ".join(name for name, reason in missing.items() if reason == why)
        facts.append(f"Without {names}: {why}.")
    return facts


def _ends(row: Mapping[str, Any]) -> str:
    share, low, high = (percent(row[name], 1) for name in ("share", "low", "high"))
    return share if np.isnan(row["low"]) else f"{share} [{low}, {high}]"


def _table(rows: Sequence[Mapping[str, Any]], quantity: str) -> Table:
    own = [row for row in rows if row["quantity"] == quantity]
    by = {(row["method"], row["region"]): row for row in own}
    cells = []
    for method in dict.fromkeys(row["method"] for row in own):
        at = by[method, "at"]
        shares = [_ends(by[method, region]) for region in REGIONS]
        lift = f"{at['share'] / at['chance']:.2f}" if at["chance"] else "-"
        cells.append([method, *shares, lift, f"{at['p_value']:.2g}", str(at["completions"])])
    head = ["method", *REGIONS, "at / chance", "p of at = chance", "completions"]
    return Table(f"Share of the {QUANTITIES[quantity]}, mean over prompts [95%]", head, cells)


def _figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    height = 1.0 + 0.26 * len(methods)
    figure, axes = panels(3, columns=3, size=(4.2, height))
    for one, quantity in zip(axes, QUANTITIES, strict=True):
        _draw(one, [row for row in rows if row["quantity"] == quantity], methods)
    letter(axes, [f"share of the {label}" for label in QUANTITIES.values()])
    return figure


def _draw(axes: Axes, rows: Sequence[Mapping[str, Any]], methods: Sequence[str]) -> None:
    for number, region in enumerate(REGIONS):
        own = [row for row in rows if row["region"] == region]
        if not own:
            continue
        style = look(number)
        y = np.array([methods.index(row["method"]) for row in own]) + 0.22 * (number - 1)
        share = np.array([row["share"] for row in own])
        ends = np.array([[row["share"] - row["low"], row["high"] - row["share"]] for row in own]).T
        reach = None if np.isnan(ends).any() else np.maximum(ends, 0)
        axes.errorbar(
            share, y, xerr=reach, fmt=style.marker, color=style.color, markersize=4, label=region
        )
        axes.axvline(own[0]["chance"], color=style.color, linestyle=":", linewidth=1.0, alpha=0.7)
    axes.set_yticks(range(len(methods)), methods, fontsize=7)
    axes.invert_yaxis()
    axes.set(xlim=(-0.02, 1.02), xlabel="share (dotted: chance)")
    if rows:
        axes.legend(fontsize=7, loc="lower right", framealpha=0.9)
