"""Answers to verdicts: math by math-verify in killable processes, code in a sandbox."""

from typing import TYPE_CHECKING, Any

from acpo.verify.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from acpo.verify.math import MathPool, verify_math

__all__ = ["MathPool", "Outcome", "Verdict", "verify_math"]

_HOMES = {"MathPool": "math", "verify_math": "math"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
