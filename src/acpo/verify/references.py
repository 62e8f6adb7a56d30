"""Rows that nothing can be judged against, found before anything is trained on them."""

from collections.abc import Sequence
from typing import NamedTuple

from acpo.jsonl import Row
from acpo.verify.math import MathPool
from acpo.verify.problem import PROBLEM_COLUMNS, ProblemError, read_problem
from acpo.verify.verdict import Outcome

# Whether a gold can be read does not depend on the answer; this one is nobody's.
_ANY_ANSWER = "\\boxed{918273.645}"


class BadReference(NamedTuple):
    """A row whose completions would get no reward."""

    row: int
    reason: str


def bad_references(
    rows: Sequence[Row], gold_field: str, workers: int | None = None
) -> list[BadReference]:
    """The rows whose gold answer, or code problem, cannot be read; counted from 1.

    Where no row has `gold_field`, there are no golds to look at.
    """
    found: list[BadReference] = []
    has_golds = any(gold_field in row for row in rows)
    golds: dict[int, str] = {}
    for number, row in enumerate(rows, start=1):
        given = {name for name, value in row.items() if value is not None}
        if not any(given >= columns for columns in PROBLEM_COLUMNS):
            if has_golds:
                golds[number] = "" if row.get(gold_field) is None else str(row[gold_field])
            continue
        try:
            read_problem(row)
        except ProblemError as error:
            found.append(BadReference(number, str(error)))
    if golds:
        with MathPool(workers) as pool:
            verdicts = pool.verify_all((_ANY_ANSWER, gold) for gold in golds.values())
        for number, verdict in zip(golds, verdicts, strict=True):
            if verdict.outcome is Outcome.UNPARSEABLE_GOLD:
                found.append(BadReference(number, verdict.detail))
    return sorted(found)
