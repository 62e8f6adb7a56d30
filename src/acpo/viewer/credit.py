"""The credit page: where a method's credit goes, token by token, on the completions of a trace."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acpo.annotate.evidence import Place
from acpo.errors import ACPOError
from acpo.records import Trace
from acpo.viewer.payload import Columns, PromptGroup, TracePayload, prompt_groups
from acpo.viewer.shell import TOKEN_SCRIPTS, TOKEN_STYLES, render_page, write_page

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
    "controls.js",
)


def write_credit_page(
    trace: Trace,
    output: Path,
    *,
    methods: Mapping[str, Columns],
    titles: Mapping[str, str],
    prompts: int,
    errors: Mapping[int, Place] | None = None,
) -> int:
    """Write one HTML file.

    Args:
        trace: What to show.
        output: The file.
        methods: By name, the columns of every method to show side by side.
        titles: Their names for people.
        prompts: How many prompts to show, spread evenly over the trace and so over its steps.
        errors: First errors of wrong completions, by row of the trace.

    Returns:
        How many prompts the page shows.

    Raises:
        TraceError: The trace holds no token, or is damaged.
        ACPOError: The file cannot be written, or no browser could open it.
    """
    trace.require()
    groups = prompt_groups(trace)
    shown = spread(groups, prompts)
    _require_size(trace, shown)
    payload = TracePayload(trace, methods, errors)
    page = {
        "model": _text(trace.header.get("model")),
        "method": _text(trace.header.get("method")),
        "temperature": _text(trace.header.get("temperature")),
        "methods": [{"name": name, "title": titles[name]} for name in methods],
        "prompts": len(groups),
        "errors": len(errors or {}),
        "steps": len(set(payload.rollouts["step"])),
        "groups": _index(payload, shown),
    }
    blocks = {f"group-{number}": payload.group(group) for number, group in enumerate(shown)}
    html = render_page(
        template="credit.html",
        title=f"{page['model'] or trace.path.name} · token credit",
        styles=STYLES,
        scripts=SCRIPTS,
        blocks={"page": page, **blocks},
    )
    write_page(html, output)
    return len(shown)


def _require_size(trace: Trace, groups: Sequence[PromptGroup]) -> None:
    lengths = trace.rollouts["tokens"].to_numpy()
    totals = np.cumsum([lengths[list(group.rows)].sum() for group in groups])
    if totals[-1] > MOST_TOKENS:
        fits = int(np.searchsorted(totals, MOST_TOKENS, side="right"))
        remedy = f"pass --prompts {fits}" if fits else "make a trace with smaller groups"
        raise ACPOError(
            f"{len(groups)} prompts of {trace.path} hold {totals[-1]:,} tokens, and a page at most "
            f"{MOST_TOKENS:,}: {remedy}"
        )


def spread(groups: Sequence[PromptGroup], count: int) -> list[PromptGroup]:
    """So many of the groups, evenly spaced from the first on: training meets prompts in turn."""
    if len(groups) <= count:
        return list(groups)
    return [groups[number * len(groups) // count] for number in range(count)]


def _index(payload: TracePayload, groups: Sequence[PromptGroup]) -> list[dict[str, Any]]:
    """What the page needs to know of a prompt before it opens its block."""
    return [
        {
            "id": group.prompt_id,
            "prompt": payload.prompt(group.rows[0])["text"][:120],
            "steps": sorted({payload.rollouts["step"][row] for row in group.rows}),
            "overview": overview_rows(payload, group),
        }
        for group in groups
    ]


def overview_rows(payload: TracePayload, group: PromptGroup) -> list[dict[str, Any]]:
    """One row per step of a prompt: how its completions fared, and what each method does there.

    `up` and `down` are the sums of the positive and of the negative updates, `reversed` the tokens
    whose update goes against their advantage, `apart` the largest difference between the updates of
    any two methods at one token. Tokens without numbers count nowhere.
    """
    facts, rows = payload.rollouts, []
    for step in sorted({facts["step"][row] for row in group.rows}):
        own = [row for row in group.rows if facts["step"][row] == step]
        rewards = [r for row in own if (r := facts["reward"][row]) is not None and r == r]
        tokens = [slice(*payload.starts[row : row + 2].tolist()) for row in own]
        updates, methods = [], {}
        for name, columns in payload.methods.items():
            update = np.concatenate([columns["update"][cut] for cut in tokens]).astype(np.float64)
            advantage = np.concatenate([columns["advantage"][cut] for cut in tokens])
            updates.append(update)
            methods[name] = {
                "up": float(np.nansum(np.maximum(update, 0))),
                "down": float(-np.nansum(np.minimum(update, 0))),
                "reversed": int(np.sum(update * advantage < 0)),
            }
        between = np.ptp(updates, axis=0) if updates else np.zeros(0)
        finite = between[np.isfinite(between)]
        rows.append(
            {
                "step": step,
                "completions": len(own),
                "judged": len(rewards),
                "right": sum(reward > 0 for reward in rewards),
                "spread": max(rewards) - min(rewards) if rewards else None,
                "tokens": sum(cut.stop - cut.start for cut in tokens),
                "apart": float(finite.max()) if len(finite) else None,
                "methods": methods,
            }
        )
    return rows


def _text(value: Any) -> str:
    return "" if value is None else str(value)
