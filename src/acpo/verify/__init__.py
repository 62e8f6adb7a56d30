"""Answers to verdicts: math by math-verify in killable processes, code in a sandbox."""

import importlib
from typing import TYPE_CHECKING, Any

from acpo.verify.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from acpo.verify.code import CodePool, verify_code
    from acpo.verify.math import MathPool, verify_math
    from acpo.verify.problem import CodeProblem, read_problem
    from acpo.verify.remote import RemoteBackend
    from acpo.verify.sandbox import unsafe_local
    from acpo.verify.session import Limits

_HOMES = {
    "CodePool": "code",
    "CodeProblem": "problem",
    "Limits": "session",
    "MathPool": "math",
    "RemoteBackend": "remote",
    "read_problem": "problem",
    "unsafe_local": "sandbox",
    "verify_code": "code",
    "verify_math": "math",
}

__all__ = [
    "CodePool",
    "CodeProblem",
    "Limits",
    "MathPool",
    "Outcome",
    "RemoteBackend",
    "Verdict",
    "read_problem",
    "unsafe_local",
    "verify_code",
    "verify_math",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
