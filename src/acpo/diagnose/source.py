"""Which trace was looked at."""

from typing import Any

from acpo.errors import ACPOError
from acpo.records import Trace


def describe(trace: Trace) -> str:
    """The trace in a line: model, data, temperature, completions, tokens."""
    header = trace.header
    named = [f"{key} {header[key]}" for key in ("model", "data", "temperature") if key in header]
    rollouts = sum(part["rollouts"] for part in trace.parts)
    steps = {part["step"] for part in trace.parts}
    if len(steps) > 1:
        named.append(f"steps {min(steps)} to {max(steps)}")
    return ", ".join([*named, f"{rollouts:,} completions", f"{len(trace):,} tokens"])


def vocabulary(header: dict[str, Any]) -> int:
    """The header's `vocab_size`.

    Raises:
        ACPOError: It is missing, or no number of tokens.
    """
    size = header.get("vocab_size")
    if type(size) is not int or size < 1:
        raise ACPOError(f"the trace's vocab_size={size!r} is no number of tokens: give --support")
    return size
