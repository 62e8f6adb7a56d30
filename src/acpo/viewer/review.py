"""The review page: one offline file in which a person accepts, moves or rejects each proposal."""

import hashlib
import json
from pathlib import Path
from typing import Any

from acpo.annotate.annotations import Annotations, Item, Proposal, Review
from acpo.annotate.pairs import PromptPairs, Trajectory, select
from acpo.errors import ACPOError
from acpo.records import Trace
from acpo.viewer.payload import TEXT_ONLY, TracePayload
from acpo.viewer.shell import TOKEN_SCRIPTS, TOKEN_STYLES, render_page, write_page

STYLES = (*TOKEN_STYLES, "review.css")
SCRIPTS = (*TOKEN_SCRIPTS, "decisions.js", "review.js")


def write_review_page(
    trace: Trace, annotations: Annotations, output: Path, *, limit: int | None = None
) -> int:
    """Write one HTML file about the first `limit` prompts; how many items it asks about."""
    annotations.require_step(trace)
    selection = select(trace, step=annotations.step, limit=limit)
    annotations.require(selection)
    # Who looks for an error must not see the entropy there.
    payload = TracePayload(trace, shown=TEXT_ONLY)
    items: list[dict[str, Any]] = []
    blocks: dict[str, Any] = {}
    for group in selection.groups:
        own = list(_items(group, annotations, number=len(blocks), first=len(items)))
        for item in own:
            item["prompt"] = payload.prompt(group.wrong[0].row)["text"][:120]
        if own:
            rows = [trajectory.row for trajectory in (*group.wrong, *group.right)]
            blocks[f"group-{len(blocks)}"] = payload.group(rows)
            items += own
    if not items:
        raise ACPOError(f"{annotations.path} holds no proposal: nothing is there to review")
    model = trace.header.get("model")
    page = {
        "model": "" if model is None else str(model),
        "trace": selection.fingerprint,
        "step": selection.step,
        "digest": hashlib.sha256(json.dumps(items).encode()).hexdigest()[:32],
        "items": items,
    }
    html = render_page(
        template="review.html",
        title=f"{page['model'] or trace.path.name} · first errors",
        styles=STYLES,
        scripts=SCRIPTS,
        blocks={"page": page, **blocks},
    )
    write_page(output, html)
    return len(items)


def _items(group: PromptPairs, annotations: Annotations, *, number: int, first: int) -> Any:
    """For every wrong completion its error, then what corresponds to it in each right one."""
    at = first
    for wrong_at, wrong in enumerate(group.wrong):
        error_at = at
        choices: list[tuple[int | None, Trajectory | None]] = [(None, None)]
        choices += [(len(group.wrong) + i, right) for i, right in enumerate(group.right)]
        for right_at, right in choices:
            item = Item(group.prompt_id, wrong.sample, right.sample if right else None)
            record = annotations.items.get(item)
            if record is None:
                if right is None:
                    break  # nothing corresponds to an error that nobody was asked about
                continue
            yield {
                **item._asdict(),
                "group": number,
                "wrongAt": wrong_at,
                "rightAt": right_at,
                "errorAt": error_at,
                "length": record.length,
                "proposals": [
                    _said(record.proposals[name], "annotator status span rationale detail")
                    for name in annotations.annotators
                    if name in record.proposals
                ],
                "earlier": _said(record.review, "decision span annotator error reviewer"),
            }
            at += 1


def _said(entry: Proposal | Review | None, names: str) -> dict[str, Any] | None:
    return entry and {name: getattr(entry, name) for name in names.split()}
