"""Rows that nothing can be judged against, found before anything is trained on them."""

from collections.abc import Mapping, Sequence
from typing import Any

from acpo.verify.math import MathPool
from acpo.verify.problem import ProblemError, is_code, read_problem
from acpo.verify.verdict import Outcome

# Whether a gold can be read does not depend on the answer; this one is nobody's.
_ANY_ANSWER = "\\boxed{918273.645}"


def bad_references(
    rows: Sequence[Mapping[str, Any]], golds: Sequence[str] | None, workers: int | None = None
) -> list[tuple[int, str]]:
    """The rows, from 1 on, whose gold answer or code problem cannot be read, and why.

    `golds` has one text per row; None looks at code problems alone.
    """
    found: list[tuple[int, str]] = []
    math: dict[int, str] = {}
    for number, row in enumerate(rows, start=1):
        if not is_code(row):
            if golds is not None:
                math[number] = golds[number - 1]
            continue
        try:
            read_problem(row)
        except ProblemError as error:
            found.append((number, str(error)))
    if math:
        with MathPool(workers) as pool:
            verdicts = pool.verify_all((_ANY_ANSWER, gold) for gold in math.values())
        for number, verdict in zip(math, verdicts, strict=True):
            if verdict.outcome is Outcome.UNPARSEABLE_GOLD:
                found.append((number, verdict.detail))
    return sorted(found)
