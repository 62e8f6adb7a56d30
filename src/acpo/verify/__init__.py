"""Answers to verdicts: math by math-verify in killable processes, code in a sandbox."""

from acpo.verify.code import CodePool, verify_code
from acpo.verify.math import MathPool, verify_math
from acpo.verify.problem import CodeProblem, read_problem
from acpo.verify.remote import RemoteBackend
from acpo.verify.sandbox import unsafe_local
from acpo.verify.session import Limits
from acpo.verify.verdict import Outcome, Verdict

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
