"""The credit page: where a method's credit goes, token by token, on the completions of a trace."""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from acpo.annotate.evidence import Place
from acpo.errors import ACPOError
from acpo.jsonl import plain
from acpo.records import Trace
from acpo.viewer.payload import TracePayload, prompt_groups
from acpo.viewer.shell import TOKEN_SCRIPTS, TOKEN_STYLES, render_page

MOST_TOKENS = 500_000  # about 85 MB
STYLES = (*TOKEN_STYLES, "credit.css")
SCRIPTS = (
    *TOKEN_SCRIPTS,
    "scale.js",
    "strip.js",
    "inspector.js",
    "card.js",
    "overview.js",
    "credit.js",
    "run.js",
    "controls.js",
)
Group = TypeVar("Group")
Blocks = dict[str, Any]
"""Data of a page by element id: `page`, and `group-N` for every prompt of it."""


def credit_page(blocks: Blocks, *, live: bool = False) -> str:
    """The HTML of what `credit_blocks` gave."""
    page = blocks["page"]
    name = page["model"] or page["name"]
    return render_page(
        template="credit.html",
        title=f"{name} · token credit",
        styles=STYLES,
        scripts=SCRIPTS,
        blocks=blocks | {"page": page | {"live": live}},
        live=live,
    )


def credit_blocks(
    trace: Trace | None,
    *,
    name: str,
    methods: str | None = None,
    prompts: int = 64,
    annotations: Path | None = None,
    most_tokens: int = MOST_TOKENS,
) -> Blocks:
    """What the page shows of a trace; of no trace, nothing.

    Args:
        trace: What to show.
        name: For a page of a trace that names no model.
        methods: Rows side by side, with commas; see `methods_to_show`.
        prompts: How many to show, spread evenly over the trace and so over its steps.
        annotations: A file of first errors.
        most_tokens: Show fewer prompts than asked for where they hold more, but one.
    """
    page: dict[str, Any] = {"name": name, "methods": [], "groups": [], "prompts": 0, "run": None}
    page |= dict.fromkeys(("model", "method", "temperature"), "")
    if trace is None:
        return {"page": page | {"errors": 0, "steps": 0}}
    from acpo.method_columns import method_columns, methods_to_show

    trace.require()
    chosen = methods_to_show(trace, methods)
    errors = error_places_by_row(trace, annotations) if annotations else {}
    groups = prompt_groups(trace)
    shown = _fitting(trace, groups, prompts, most_tokens)
    columns = {method.name: method_columns(trace, method)._asdict() for method in chosen}
    payload = TracePayload(trace, columns, errors)
    header = {key: trace.header.get(key) for key in ("model", "method", "temperature")}
    page |= {key: "" if value is None else str(value) for key, value in header.items()}
    page |= {
        "methods": [{"name": method.name, "title": method.title} for method in chosen],
        "prompts": len(groups),
        "errors": len(errors),
        "steps": len(set(payload.rollouts["step"])),
        "groups": _index(payload, shown),
    }
    blocks = {f"group-{number}": payload.group(group) for number, group in enumerate(shown)}
    return {"page": page, **blocks}


def error_places_by_row(trace: Trace, path: Path) -> dict[int, Place]:
    """First errors, whoever vouches for them: the page says who does."""
    from acpo.annotate.annotations import Annotations
    from acpo.annotate.evidence import Accept, error_places
    from acpo.annotate.pairs import select

    opened = Annotations.read(path)
    opened.require_step(trace)
    found, _ = error_places(select(trace, step=opened.step), opened, Accept.ALL_PROPOSALS)
    return {trajectory.row: place for trajectory, place in found}


def _fitting(
    trace: Trace, groups: Sequence[list[int]], prompts: int, most: int
) -> Sequence[list[int]]:
    """`prompts` of the groups; fewer where they hold more than `most` tokens."""
    lengths = trace.rollouts["tokens"].to_numpy()
    sizes = [int(lengths[rows].sum()) for rows in groups]
    counts = range(min(prompts, len(groups)), 0, -1)
    # Fewer prompts are other prompts: a beginning of these is the beginning of a run.
    count = next((n for n in counts if sum(spread(sizes, n)) <= most), 1)
    if (tokens := sum(spread(sizes, count))) > MOST_TOKENS:
        raise ACPOError(
            f"a prompt of {trace.path} holds {tokens:,} tokens, and a page at most "
            f"{MOST_TOKENS:,}: make a trace with smaller groups"
        )
    return spread(groups, count)


def spread(groups: Sequence[Group], count: int) -> list[Group]:
    """So many of the groups, evenly spaced from the first on: training meets prompts in turn."""
    if len(groups) <= count:
        return list(groups)
    return [groups[number * len(groups) // count] for number in range(count)]


def _index(payload: TracePayload, groups: Sequence[list[int]]) -> list[dict[str, Any]]:
    """What the page needs to know of a prompt before it opens its block."""
    return [
        {
            "id": payload.rollouts["prompt_id"][rows[0]],
            "prompt": payload.prompt(rows[0])["text"][:120],
            "steps": sorted({payload.rollouts["step"][row] for row in rows}),
            "overview": overview_rows(payload, rows),
        }
        for rows in groups
    ]


def overview_rows(payload: TracePayload, group: Sequence[int]) -> list[dict[str, Any]]:
    """One row per step of a prompt: how its completions fared, and what each method does there.

    `up` and `down` are the sums of the positive and of the negative updates, `reversed` the tokens
    whose update goes against their advantage, `apart` the largest difference between the updates of
    any two methods at one token. Each is None where an update it takes is not known.
    """
    facts, rows = payload.rollouts, []
    for step in sorted({facts["step"][row] for row in group}):
        own = [row for row in group if facts["step"][row] == step]
        rewards = [r for row in own if (r := facts["reward"][row]) is not None and isfinite(r)]
        tokens = [slice(*payload.starts[row : row + 2].tolist()) for row in own]
        updates, methods = [], {}
        for name, columns in payload.methods.items():
            update = np.concatenate([columns["update"][cut] for cut in tokens]).astype(np.float64)
            advantage = np.concatenate([columns["advantage"][cut] for cut in tokens])
            updates.append(update)
            unknown = bool(np.isnan(update).any())
            methods[name] = {
                "up": plain(float(np.maximum(update, 0).sum())),
                "down": plain(float(np.maximum(-update, 0).sum())),
                "reversed": None if unknown else int(np.sum(update * advantage < 0)),
            }
        between = np.ptp(updates, axis=0) if updates else np.zeros(0)
        rows.append(
            {
                "step": step,
                "completions": len(own),
                "judged": len(rewards),
                "right": sum(reward > 0 for reward in rewards),
                "spread": plain(max(rewards) - min(rewards)) if rewards else None,
                "tokens": sum(cut.stop - cut.start for cut in tokens),
                "apart": plain(float(between.max())) if len(between) else None,
                "methods": methods,
            }
        )
    return rows
