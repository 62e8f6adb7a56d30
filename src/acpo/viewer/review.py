"""The review page: one offline file in which a person accepts, moves or rejects each proposal."""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from acpo.annotate.annotations import Annotations, Item, Record, Review
from acpo.annotate.pairs import PromptPairs, Trajectory, select
from acpo.errors import ACPOError
from acpo.records import Trace
from acpo.viewer.payload import PromptGroup, TracePayload
from acpo.viewer.shell import TOKEN_SCRIPTS, TOKEN_STYLES, render_page, write_page

STYLES = (*TOKEN_STYLES, "review.css")
SCRIPTS = (*TOKEN_SCRIPTS, "decisions.js", "review.js")


class _TextOnly(TracePayload):
    """Completions without statistics: who looks for an error must not see the entropy there."""

    tops: dict[str, Any] = {}  # noqa: RUF012 (stands in for a property)

    @cached_property
    def numbers(self) -> dict[str, np.ndarray]:
        return {"token_id": self._integers("token_id")}


def write_review_page(
    trace: Trace, annotations: Annotations, output: Path, *, limit: int | None = None
) -> int:
    """Write one HTML file about the first `limit` prompts; how many items it asks about.

    Raises:
        ACPOError: The annotations are of another trace, nothing was proposed, or the file cannot
            be written.
    """
    selection = select(trace, step=annotations.step, limit=limit)
    annotations.require(selection)
    payload = _TextOnly(trace)
    items: list[dict[str, Any]] = []
    blocks: dict[str, Any] = {}
    for group in selection.groups:
        rows = (*group.wrong, *group.right)
        own = list(_items(group, annotations, number=len(blocks), first=len(items)))
        for item in own:
            item["prompt"] = payload.prompt(group.wrong[0].row)["text"][:120]
        if own:
            shown = PromptGroup(group.prompt_id, tuple(trajectory.row for trajectory in rows))
            blocks[f"group-{len(blocks)}"] = payload.group(shown)
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
    write_page(html, output)
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
                "proposals": _proposals(record, annotations),
                "earlier": _earlier(record.review),
            }
            at += 1


def _proposals(record: Record, annotations: Annotations) -> list[dict[str, Any]]:
    shown = ("annotator", "status", "span", "rationale", "detail")
    proposals = [
        record.proposals[name] for name in annotations.annotators if name in record.proposals
    ]
    return [{name: getattr(proposal, name) for name in shown} for proposal in proposals]


def _earlier(review: Review | None) -> dict[str, Any] | None:
    if review is None:
        return None
    shown = ("decision", "span", "annotator", "error", "reviewer")
    return {name: getattr(review, name) for name in shown}
