"""Rows to problems: which column is what, what the gold answer is, and which rows must go."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from acpo.errors import ACPOError
from acpo.tasks.blame import told
from acpo.tasks.sources import column, has_column, mappings, read_rows
from acpo.tasks.task import GOLD_FORMS, USUAL, Columns, Row, Task
from acpo.tasks.templates import DAPO, fill, get_template, shown_columns, strip
from acpo.verify.extract import BOXES, extract_answer
from acpo.verify.math import decide_without_algebra
from acpo.verify.verdict import Verdict

MOST_REPEATS = 20
"""Endless problems that repeat this often for each new one have run out."""


class Problem(NamedTuple):
    """What tells it from others; its gold, empty where a grader needs none; its row.

    What tells it is the question, without the template; where the template shows more columns of
    the row than that one, such as choices or a passage, it is the template filled.
    """

    text: str
    answer: str
    row: Row


@dataclass(frozen=True)
class Cleaning:
    """What became of the rows of a data set: how many were left out and why, how many remain."""

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


def load_problems(
    task: Task,
    data: str | None = None,
    *,
    config: str | None = None,
    split: str = "train",
    columns: Sequence[Columns] | None = None,
    template: str | None = None,
) -> tuple[list[Problem], Cleaning]:
    """The distinct problems of a task's data, compared without the white space around them.

    `data` (a file or hub id), its `config`, its `columns` and the `template` are the task's own
    where not given.
    """
    source = data or task.problems
    if source is None:
        raise ACPOError(
            f"task={task.name!r} has no data of its own to train on; set data to a file or hub id"
        )
    assert not callable(source)
    rows: Sequence[Row]
    if isinstance(source, str):
        own = task.config if source == task.problems else None
        rows = read_rows(source, config=config or own, split=split)
    else:
        source, rows = task.reference, mappings(source, f"task={task.reference!r}")
        if not rows:
            raise ACPOError(f"task={source!r}: its problems are an empty list")
    layout = find_layout(rows, columns or task.columns, source=source, needed=task.needs_gold)
    template = template or task.template
    kept, cleaning = clean(
        (
            _problem(row, layout, task, template, f"data={source!r}, row {number}")
            for number, row in enumerate(rows, 1)
        ),
        needs_gold=task.needs_gold,
    )
    if not kept:
        raise ACPOError(f"data={source!r}: nothing to train on. {cleaning}")
    return kept, cleaning


def endless_problems(
    task: Task,
    count: int,
    *,
    seed: int,
    exclude: Collection[str] = (),
    template: str | None = None,
) -> list[Problem]:
    """`count` distinct problems of a task that makes them on the fly, equal for equal seeds."""
    found: dict[str, Problem] = {}
    banned = set(exclude)
    where = f"task={task.reference!r}"
    rows = islice(_stream(task, seed), MOST_REPEATS * count + 1000)
    for number, row in enumerate(rows, 1):
        layout = _fitting(row, task.columns, needed=task.needs_gold)
        problem = _problem(
            row, layout, task, template or task.template, f"{where}, problem {number}"
        )
        if problem.text not in banned:
            found.setdefault(problem.text, problem)
        if len(found) == count:
            return list(found.values())
    raise ACPOError(
        f"{where}: only {len(found)} different problems came of {number if found else 0}, and "
        f"{count} are asked for; lower max_problems or held_out, or make the settings wider"
    )


def _stream(task: Task, seed: int) -> Iterator[Row]:
    assert callable(task.problems)
    with told(task, "problems(seed)", task.problems):
        rows = task.problems(seed)
        if not isinstance(rows, Iterable):
            raise ACPOError(f"problems({seed}) returned {rows!r}; return rows, or yield them")
        for row in rows:
            if not isinstance(row, Mapping):
                raise ACPOError(f"its problems gave {row!r}; each must be a mapping")
            yield row


def canonical(
    row: Row, layout: Columns | None, where: str, *, needed: bool, cut: str | None = None
) -> dict[str, Any]:
    """`row` with its question under `problem` and its gold under `answer`, where it has them."""
    for name in row:
        if _has_half(name) or _has_half(row[name]):
            raise ACPOError(
                f"{where}: column {name!r} holds half of a character, an unpaired surrogate such "
                "as \\ud83d, which no model reads; repair the text, or remove the row"
            )
    clean_row = dict(row)
    if layout is None:
        return clean_row
    value = _value(row, layout.problem, where, needed=True)
    text = question_text(value, f"{where}: {layout.problem!r}")
    clean_row["problem"] = (text.partition(cut)[0] if cut else text).strip()
    gold = _value(row, layout.answer, where, needed=needed)
    if gold is not None or "answer" in clean_row:
        clean_row["answer"] = gold_text(gold, layout.gold)
    return clean_row


NO_NUMBERS = ("nan", "inf", "-inf")
"""What is left of a number that was lost before; pandas writes None so."""


def gold_text(value: Any, form: str = "text") -> str:
    """The gold answer in the value of its column, which may be a list of one; empty for none."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    is_nothing = value is None or (isinstance(value, float) and str(value) in NO_NUMBERS)
    return "" if is_nothing else GOLD[form](str(value)).strip()


def find_layout(
    rows: Sequence[Row], columns: Sequence[Columns], *, source: str, needed: bool = True
) -> Columns | None:
    """The first layout whose columns the first row has; None where none fits and none has to."""
    layout = _fitting(rows[0], columns, needed=needed)
    if layout is None and needed:
        names = [dict.fromkeys(getattr(one, part) for one in columns) for part in Columns._fields]
        missing = next(
            (name for name in names[:2] if not any(has_column(rows[0], one) for one in name)),
            names[0],
        )
        remedy = (
            "rename them, or say which they are: problem_column and answer_column of a recipe, "
            "--problem-column and --answer-column of acpo trace, columns of a task of your own"
        )
        if _fitting(rows[0], USUAL, needed=True):
            remedy = "task custom reads these (--task custom; task: custom in a recipe)"
        raise ACPOError(
            f"data={source!r}: row 1 has no {' or '.join(missing)}, only {', '.join(rows[0])}; a "
            f"problem needs what is asked and the expected answer; {remedy}"
        )
    return layout


def _fitting(row: Row, columns: Sequence[Columns], *, needed: bool) -> Columns | None:
    fitting = (
        layout
        for layout in columns
        if has_column(row, layout.problem) and has_column(row, layout.answer)
    )
    partly = (layout for layout in columns if not needed and has_column(row, layout.problem))
    return next(fitting, next(partly, None))


def _problem(row: Row, layout: Columns | None, task: Task, template: str, where: str) -> Problem:
    clean_row = canonical(row, layout, where, needed=task.needs_gold)
    if task.template == "dapo":  # upstream ships its prompts with the template around them
        clean_row["problem"] = strip(DAPO, clean_row["problem"])
    if layout and not clean_row["problem"]:
        raise ACPOError(f"{where}: {layout.problem!r} is empty; remove the row")
    shown = get_template(template)
    alone = layout and shown_columns(shown) <= {"problem"}
    text = clean_row["problem"] if alone else fill(shown, clean_row)
    if not text:
        raise ACPOError(f"{where}: the prompt is empty; remove the row")
    return Problem(text, str(clean_row.get("answer", "")), clean_row)


def clean(
    problems: Iterable[Problem], *, needs_gold: bool = True
) -> tuple[list[Problem], Cleaning]:
    """One problem per text; texts without a needed answer, or with different ones, are left out."""
    first: dict[str, Problem] = {}  # rows of the others are let go: a set may come many times over
    answers: dict[str, set[str]] = defaultdict(set)
    rows: Counter[str] = Counter()
    unanswered = 0
    for problem in problems:
        if not problem.answer and needs_gold:
            unanswered += 1
            continue
        first.setdefault(problem.text, problem)
        answers[problem.text].add(problem.answer)
        rows[problem.text] += 1
    conflicts = {text for text, found in answers.items() if needs_gold and not _agree(found)}
    kept = [problem for text, problem in first.items() if text not in conflicts]
    conflicting_rows = sum(rows[text] for text in conflicts)
    report = Cleaning(
        rows=rows.total() + unanswered,
        unanswered=unanswered,
        repeated=rows.total() - conflicting_rows - len(kept),
        conflicting=len(conflicts),
        conflicting_rows=conflicting_rows,
        kept=len(kept),
    )
    return kept, report


def _agree(answers: Collection[str]) -> bool:
    """Whether answers are one, in whatever notation."""
    first, *others = sorted(answers)
    verdicts = [decide_without_algebra(f"\\boxed{{{other}}}", first) for other in others]
    return all(isinstance(verdict, Verdict) and verdict.correct for verdict in verdicts)


def split_off(problems: list[Problem], count: int) -> tuple[list[Problem], list[Problem]]:
    """(training, held-out) problems; which are held out depends on nothing but the problems."""
    if not 0 <= count < len(problems):
        raise ACPOError(f"held_out={count} must be below the number of problems, {len(problems)}")
    held = set(random.Random(0).sample(range(len(problems)), count))
    training = [problem for index, problem in enumerate(problems) if index not in held]
    return training, [problems[index] for index in sorted(held)]


def _value(row: Row, name: str, where: str, *, needed: bool) -> Any:
    try:
        return column(row, name)
    except KeyError:
        if not needed:
            return None
        raise ACPOError(f"{where}: column {name!r} is missing; other rows have it") from None


_HALF = re.compile("[\ud800-\udfff]")


def _has_half(value: Any) -> bool:
    """Whether a text in it has no UTF-8: JSON may hold either half of a pair alone."""
    if isinstance(value, str):
        return _HALF.search(value) is not None
    if isinstance(value, Mapping):
        return any(map(_has_half, (*value, *value.values())))
    return isinstance(value, list | tuple) and any(map(_has_half, value))


def question_text(value: Any, where: str) -> str:
    """A question as text: itself, or the one message of a user."""
    if isinstance(value, bytes):
        raise ACPOError(f"{where} holds bytes, as in {value[:40]!r}: write the column as text")
    if not (isinstance(value, list) and value and isinstance(value[-1], Mapping)):
        return "" if value is None or value == [] else str(value)
    content = value[-1].get("content")
    parts = content if isinstance(content, list) else [content]
    texts: list[Any] = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    alone = len(value) == 1 and value[0].get("role", "user") == "user"
    if not alone or not all(isinstance(text, str) for text in texts):
        roles = [one.get("role") if isinstance(one, Mapping) else one for one in value]
        raise ACPOError(
            f"{where} is a conversation of {roles}, and a problem is one message of the user, of "
            "text: put a system message into system_prompt and what is asked into one column; or "
            "train with ACPOTrainer and a data set of your own, which keep every message"
        )
    return "".join(texts)


_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")


def _after_hashes(answer: str) -> str:
    """The answer; in GSM8K's form what follows the last `####`, without thousands separators.

    Within brackets a comma separates: `(1,200)` is a pair.
    """
    if "####" not in answer:
        return answer
    gold = answer.rpartition("####")[2].strip()
    if any(bracket in gold for bracket in "([{"):
        return gold
    return _THOUSANDS.sub(lambda number: number[0].replace(",", ""), gold)


def _boxed(solution: str) -> str:
    """MATH's form: the content of the last box."""
    return (extract_answer(solution) or "") if any(box in solution for box in BOXES) else ""


GOLD: dict[str, Callable[[str], str]] = dict(zip(GOLD_FORMS, (_after_hashes, _boxed), strict=True))
"""How to read the gold answer from its column."""
