"""Which trace was looked at."""

import math
from pathlib import Path
from typing import Any

from acpo.errors import ACPOError
from acpo.records import Trace, TraceError


def open_trace(path: Path, step: int | None = None) -> Trace:
    """A trace, or what it holds of one training step.

    Raises:
        TraceError: There is no trace, or nothing of that step in it.
    """
    trace = Trace.open(path)
    if step is None:
        return trace
    parts = tuple(part for part in trace.parts if part["step"] == step)
    if not parts:
        steps = sorted({part["step"] for part in trace.parts})
        raise TraceError(f"--step {step}: {path} has steps {', '.join(map(str, steps))}")
    return Trace(trace.path, trace.header, parts)


def describe(trace: Trace | None) -> str:
    """The trace in a line: model, data, temperature, completions, tokens."""
    if trace is None:
        return "no trace"
    header = trace.header
    named = [
        f"{key} {header[key]}"
        for key in ("model", "task", "data", "temperature")
        if header.get(key) is not None
    ]
    rollouts = sum(part["rollouts"] for part in trace.parts)
    steps = {part["step"] for part in trace.parts}
    if steps - {0}:
        named.append(f"step {min(steps)}" + (f" to {max(steps)}" if len(steps) > 1 else ""))
    return ", ".join([*named, f"{rollouts:,} completions", f"{len(trace):,} tokens"])


def require_temperatures(**temperatures: float) -> None:
    """Refuse gate temperatures that make no gate.

    Raises:
        ACPOError: naming the first.
    """
    for name, value in temperatures.items():
        if not 0 < value < math.inf:
            raise ACPOError(f"{name}={value} must be positive and finite")


def vocabulary(header: dict[str, Any]) -> int:
    """The header's `vocab_size`.

    Raises:
        ACPOError: It is missing, or no number of tokens.
    """
    size = header.get("vocab_size")
    if type(size) is not int or size < 1:
        raise ACPOError(f"the trace's vocab_size={size!r} is no number of tokens: give --support")
    return size
