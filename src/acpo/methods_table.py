"""`acpo methods`: the table of methods as a person reads it, and one row explained."""

import json
import re
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from acpo.objectives import aggregation_weights, get_method, logit_gradient
from acpo.objectives.credit import Affine
from acpo.objectives.gates import GATES
from acpo.objectives.method import SHARED, Method
from acpo.objectives.methods import METHODS

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
        "gate": GATES[method.gate].title,
        "c+": " | ".join(_multiplier(b.positive, method) for b in branches),
        "c-": " | ".join(_multiplier(b.nonpositive, method) for b in branches),
        "credit gradient": gradient,
        "tokens": method.shaping.title,
        "aggregation": method.aggregation.replace("_", " "),
        "options": dict(method.options),
        "reference": method.reference,
        "formula": method.formula,
        "constants": method.constants,
        "notes": method.notes,
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


class Curve(NamedTuple):
    """What an advantage of each sign is multiplied by, along some axis."""

    axis: str
    at: list[float]
    positive: list[float]
    nonpositive: list[float]


SIZE = 40
"""Points of a curve, and tokens of the vocabulary they are computed with."""


def curves(method: Method) -> list[Curve]:
    """The row's own numbers: at w = 1 over p(y), and at p(y) = 1/4 over w.

    Each point is a completion of one token, the rest of its probability spread evenly, and all
    points of a curve are one mini-batch. A curve shows the component of the row's logit gradient
    along e_y - p, divided by A, and by the weight of the token in the loss.
    """
    p = torch.linspace(0.05, 0.95, SIZE // 2, dtype=torch.float64)
    w = torch.linspace(0.3, 3.0, SIZE // 2, dtype=torch.float64)
    return [
        Curve("p(y), w = 1", p.tolist(), *_multipliers(method, p, torch.ones_like(p))),
        Curve("w, p(y) = 1/4", w.tolist(), *_multipliers(method, torch.full_like(w, 0.25), w)),
    ]


def _multipliers(method: Method, p: torch.Tensor, w: torch.Tensor) -> list[list[float]]:
    if method.options.get("max_length", 1) is None:
        method = method(max_length=1)
    p, w = p.repeat(2), w.repeat(2)
    tokens = torch.arange(SIZE)
    probabilities = ((1 - p) / (SIZE - 1))[:, None].repeat(1, SIZE)
    probabilities[tokens, tokens] = p
    log_p, entropy = probabilities.log(), torch.special.entr(probabilities).sum(1, keepdim=True)
    advantages = torch.ones(SIZE, dtype=torch.float64)
    advantages[SIZE // 2 :] = -1.0
    mask = torch.ones(SIZE, 1, dtype=torch.bool)
    gradient = logit_gradient(
        method,
        logits=log_p[:, None],
        tokens=tokens[:, None],
        old_logp=(p.log() - w.log())[:, None],
        advantages=advantages,
        mask=mask,
        group_size=SIZE,
        old_entropy=entropy,
        old_log_pmax=log_p.amax(1, keepdim=True),
    )[:, 0]
    direction = torch.eye(SIZE, dtype=torch.float64) - probabilities
    along = (gradient * direction).sum(1) / direction.square().sum(1)
    weights = aggregation_weights(method, mask, dtype=torch.float64)[:, 0]
    both = (-along / weights / advantages).view(2, -1)
    return both.tolist()


def _bars(values: list[float]) -> str:
    """A line of bars from 0 (or the least value) to the largest."""
    low, high = min(0.0, *values), max(0.0, *values)
    if high - low < 1e-12:
        return "·" * len(values)
    return "".join(" ▁▂▃▄▅▆▇█"[round(8 * (x - low) / (high - low))] for x in values)


def print_method(name: str, as_json: bool) -> None:
    """Explain one method: formula, constants, what it multiplies, where it comes from."""
    method = get_method(name)
    row, shown = describe(method), curves(method)
    if as_json:
        row["curves"] = [curve._asdict() for curve in shown]
        print(json.dumps(row, indent=1, ensure_ascii=False))
        return
    console = Console(highlight=False)
    rest = [row[k] for k in ("credit gradient", "tokens", "aggregation")]
    console.print(f"[bold]{escape(method.name)}[/bold]: {escape(method.title)}")
    console.print(escape(f"J = A · f(w) · c; f: {row['gate']}; c+ = {row['c+']}, c- = {row['c-']}"))
    console.print(escape("; ".join(filter(None, rest))))
    for title, text in (
        ("rule", row["formula"]),
        ("options", ", ".join(f"{k}={v}" for k, v in method.options.items() if k not in SHARED)),
        ("of every row", ", ".join(SHARED)),
        ("constants", row["constants"]),
        ("from", f"{row['reference']}{_address(row['reference'])}"),
        ("differences", row["notes"]),
    ):
        if text:
            console.print(f"  [bold]{title}[/bold]: {escape(text)}", soft_wrap=True)
    for curve in shown:
        console.print(f"\nwhat A is multiplied by, over {escape(curve.axis)}:")
        for label, values in (("A > 0", curve.positive), ("A < 0", curve.nonpositive)):
            ends = f"{min(values):.2f} to {max(values):.2f}"
            console.print(f"  {label}  {curve.at[0]:g} {_bars(values)} {curve.at[-1]:g}   {ends}")


def _address(reference: str) -> str:
    found = re.search(r"arXiv:(\d{4}\.\d{5})", reference)
    return f", https://arxiv.org/abs/{found.group(1)}" if found else ""


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
