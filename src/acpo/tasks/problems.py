"""Rows to problems: which column is what, what the gold answer is, and which rows must go."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from acpo.errors import ACPOError
from acpo.tasks.sources import Row, column, has_column


class Problem(NamedTuple):
    """A question, its gold answer, and the row they stand in."""

    text: str
    answer: str
    row: Row = MappingProxyType({})


class Columns(NamedTuple):
    """Where a data set keeps its problems and answers.

    Attributes:
        problem: the column with the question, or with chat messages that end in it.
        answer: the column with the answer.
        gold: how the answer stands in it; a key of `GOLD`.
    """

    problem: str
    answer: str
    gold: str = "text"


@dataclass(frozen=True)
class Cleaning:
    """What became of the rows of a data set.

    Attributes:
        rows: rows read.
        unanswered: rows left out because they have no gold answer.
        repeated: rows left out because the same problem with the same answer came before.
        conflicting: problems that occur with different answers.
        conflicting_rows: the rows of those problems, all left out.
        kept: problems that remain.
    """

    rows: int
    unanswered: int
    repeated: int
    conflicting: int
    conflicting_rows: int
    kept: int

    def __str__(self) -> str:
        return (
            f"{self.rows} rows, left out: {self.unanswered} without an answer, {self.repeated} "
            f"repeats, {self.conflicting_rows} rows of {self.conflicting} problems with "
            f"conflicting answers; {self.kept} problems remain"
        )


def read_problems(
    rows: Sequence[Row], columns: Sequence[Columns], *, source: str
) -> tuple[list[Problem], Cleaning]:
    """The distinct problems of a data set, compared without the white space around them.

    Args:
        rows: as read.
        columns: layouts to try, in order; the first whose columns exist is used.
        source: named in errors.

    Raises:
        ACPOError: when no layout fits, a problem is empty, or no problem has an answer.
    """
    layout = find_layout(rows, columns, source=source)
    kept, cleaning = clean(_read(rows, layout, source))
    if not kept:
        raise ACPOError(f"data={source!r}: nothing to train on. {cleaning}")
    return kept, cleaning


def _read(rows: Iterable[Row], layout: Columns, source: str) -> Iterator[Problem]:
    """One problem per row; its answer is empty where the row has none."""
    read_gold = GOLD[layout.gold]
    for number, row in enumerate(rows, 1):
        where = f"data={source!r}, row {number}"
        text = _text(_value(row, layout.problem, where)).strip()
        if not text:
            raise ACPOError(f"{where}: {layout.problem!r} is empty; remove the row")
        answer = _value(row, layout.answer, where)
        yield Problem(text, "" if answer is None else read_gold(str(answer)).strip(), row)


def find_layout(rows: Sequence[Row], columns: Sequence[Columns], *, source: str) -> Columns:
    """The first layout whose columns the first row has."""
    for layout in columns:
        if has_column(rows[0], layout.problem) and has_column(rows[0], layout.answer):
            return layout
    wanted = " or ".join(f"{layout.problem!r} and {layout.answer!r}" for layout in columns)
    raise ACPOError(
        f"data={source!r} has columns {', '.join(rows[0])}; expected {wanted}. "
        "Set problem_column and answer_column"
    )


def clean(problems: Iterable[Problem]) -> tuple[list[Problem], Cleaning]:
    """One problem per text; texts without an answer or with different ones are left out."""
    answers: dict[str, list[str]] = defaultdict(list)
    first: dict[str, Problem] = {}
    unanswered = 0
    for problem in problems:
        if problem.answer:
            answers[problem.text].append(problem.answer)
            first.setdefault(problem.text, problem)
        else:
            unanswered += 1
    conflicts = {text: found for text, found in answers.items() if len(set(found)) > 1}
    kept = [problem for text, problem in first.items() if text not in conflicts]
    rows = sum(map(len, answers.values()))
    conflicting_rows = sum(map(len, conflicts.values()))
    report = Cleaning(
        rows=rows + unanswered,
        unanswered=unanswered,
        repeated=rows - conflicting_rows - len(kept),
        conflicting=len(conflicts),
        conflicting_rows=conflicting_rows,
        kept=len(kept),
    )
    return kept, report


def _value(row: Row, name: str, where: str) -> Any:
    try:
        return column(row, name)
    except KeyError:
        raise ACPOError(f"{where}: column {name!r} is missing; other rows have it") from None


def _text(value: Any) -> str:
    """A question as text: itself, or the last message of a conversation."""
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        return str(value[-1].get("content", ""))
    return "" if value is None else str(value)


def _after_hashes(answer: str) -> str:
    """GSM8K's form: what follows the last `####`, without thousands separators."""
    return answer.rpartition("####")[2].strip().replace(",", "")


def _boxed(solution: str) -> str:
    """MATH's form: the content of the last box."""
    from acpo.verify.extract import extract_answer

    return (extract_answer(solution) or "") if "\\boxed" in solution else ""


GOLD: dict[str, Callable[[str], str]] = {
    "text": str,
    "hashes": _after_hashes,
    "boxed": _boxed,
}
"""How to read the gold answer from its column."""
