"""`acpo methods`: the table of methods as a person reads it."""

import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from acpo.objectives.credit import Affine
from acpo.objectives.methods import METHODS, Method

GATES = {
    "soft": "soft gate (4/τ)σ(τ(w-1))",
    "clip": "ratio clip",
    "sequence_clip": "sequence ratio, clipped",
    "geometric_clip": "geometric mean of clipped ratios",
    "capped_reinforce": "sg[min(w, cap)] log π",
    "ratio": "ratio",
}
SIGNALS = {"none": "", "delta": "δ", "entropy": "ē"}


def describe(method: Method) -> dict[str, Any]:
    """One row of the table, as plain data."""
    rule = method.credit
    if rule.routed:
        gradient = "routed: through δ where y = v*, stopped elsewhere"
    elif rule.signal == "none":
        gradient = ""
    else:
        gradient = "stopped" if rule.detached else "through " + SIGNALS[rule.signal]
    branches = [rule.aligned, *([rule.mismatched] if rule.mismatched else [])]
    return {
        "name": method.name,
        "title": method.title,
        "gate": GATES[method.gate],
        "c+": " | ".join(_multiplier(b.positive, method) for b in branches),
        "c-": " | ".join(_multiplier(b.nonpositive, method) for b in branches),
        "credit gradient": gradient,
        "tokens": method.shaping.title,
        "aggregation": method.aggregation.replace("_", " "),
        "options": dict(method.options),
        "reference": method.reference,
    }


def _multiplier(affine: Affine, method: Method) -> str:
    """c as the paper writes it: 2+δ, 1-δ, 3sg[δ]."""
    signal = SIGNALS[method.credit.signal]
    scaled = affine.scale != 1.0
    if signal and (method.credit.detached or scaled):
        signal = f"sg[{signal}]"
    offset = affine.offset if not isinstance(affine.offset, str) else method.options[affine.offset]
    text = "" if offset == 0 and affine.slope else f"{offset:g}"
    if affine.slope:
        sign = "-" if affine.slope < 0 else "+" if text else ""
        text += sign + signal
    if not scaled:
        return text
    scale = affine.scale if not isinstance(affine.scale, str) else method.options[affine.scale]
    return f"{scale:g}({text})" if affine.slope and offset else f"{scale:g}{text}"


def print_methods(as_json: bool) -> None:
    """Write every method to standard output."""
    rows = [describe(method) for method in METHODS.values()]
    if as_json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    console = Console(highlight=False)
    console.print(
        "Per token, J = A · f(w) · c: c+ where A > 0, c- elsewhere; δ = 1 - p_max, ē = H / H_max; "
        "aligned | mismatched.\n"
    )
    table = Table("name", "c+", "c-", "gate, credit gradient, tokens, aggregation, reference")
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        rest = [row[name] for name in ("gate", "credit gradient", "tokens", "aggregation")]
        about = "; ".join([*filter(None, rest), row["reference"]])
        table.add_row(*(escape(row[name]) for name in ("name", "c+", "c-")), escape(about))
    console.print(table)
