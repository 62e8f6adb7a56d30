"""Which analyses `acpo diagnose all` makes."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from acpo.diagnose.alignment import alignment
from acpo.diagnose.coupling import coupling
from acpo.diagnose.dynamics import dynamics
from acpo.diagnose.envelope import envelope
from acpo.diagnose.finding import Finding
from acpo.diagnose.gradients import gradients
from acpo.diagnose.mismatch import mismatch
from acpo.records import Trace


def analyses(trace: Trace, runs: Sequence[Path]) -> dict[str, Callable[[], Finding]]:
    """Every analysis of a trace, ready to be called, in the order of the report."""
    made: dict[str, Callable[[], Finding]] = {
        "gradients": partial(gradients, trace),
        "mismatch": partial(mismatch, trace),
        "alignment": partial(alignment, trace),
        "envelope": partial(envelope, trace),
        "coupling": partial(coupling, trace if "old_logp" in trace.columns else None),
    }
    if runs:
        made["dynamics"] = partial(dynamics, runs)
    return made
