"""Tokens that stand out in a trace, and where the page of `acpo view` shows them."""

import heapq
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

import numpy as np

from acpo.diagnose.tokens import parts_of
from acpo.records import Trace

EACH = 3
"""Tokens named for each quantity."""

Measure = Callable[[np.ndarray, np.ndarray], np.ndarray]
QUANTITIES: dict[str, tuple[str, tuple[str, str], Measure]] = {
    "entropy": ("highest entropy, nats", ("entropy", "entropy"), lambda entropy, _: entropy),
    "mismatch": (
        "furthest from the mode, p_max - p(y)",
        ("log_pmax", "logp"),
        lambda most, own: np.exp(most) - np.exp(own),
    ),
    "ratio": ("largest |log w|", ("logp", "old_logp"), lambda now, old: np.abs(now - old)),
}
"""By the page's name for it: what stands out, the token columns it takes, and how."""


class Outlier(NamedTuple):
    """One token, and what is large there."""

    value: float
    colour: str  # the quantity, as the page names it
    prompt: str
    step: int
    sample: int
    token: int  # counted from 0
    text: str

    @property
    def what(self) -> str:
        return QUANTITIES[self.colour][0]

    def address(self, page: Path, folder: Path) -> str:
        """A link from a file in `folder` to this token in the page."""
        names = ("prompt", "step", "sample", "token", "colour")
        place = urlencode({name: getattr(self, name) for name in names})
        return f"{quote(os.path.relpath(page, folder))}#{place}"


def outliers(trace: Trace) -> list[Outlier]:
    """The tokens at which a quantity is largest, for those of `QUANTITIES` that the trace has."""
    found = []
    for colour, (_, names, _) in QUANTITIES.items():
        if trace.columns >= set(names):
            parts = (part for part in parts_of(trace) if len(part))
            every = (one for part in parts for one in _largest(part, colour))
            found += heapq.nlargest(EACH, every, key=lambda one: one.value)
    return found


def _largest(part: Trace, colour: str) -> Iterator[Outlier]:
    """Of one part; a quantity that is 0, or not finite, makes no outlier."""
    _, names, measure = QUANTITIES[colour]
    columns = [column.astype(np.float64) for column in part.tokens(*names).values()]
    values = measure(columns[0], columns[-1])
    known = np.flatnonzero(np.isfinite(values) & (values > 0))
    for row in known[np.argsort(-values[known], kind="stable")][:EACH]:
        number = int(np.searchsorted(part.starts, row, side="right")) - 1
        prompt, step, sample = (
            part.rollouts[name][number].as_py() for name in ("prompt_id", "step", "sample")
        )
        piece = part.table("piece")["piece"][int(row)].as_py() if "piece" in part.columns else None
        token, text = int(row - part.starts[number]), (piece or b"").decode(errors="replace")
        yield Outlier(float(values[row]), colour, prompt, step, sample, token, text)
