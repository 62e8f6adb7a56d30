"""What an evaluation asks: the questions of a task, checked against what it declares."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from acpo.errors import ACPOError
from acpo.tasks.problems import canonical, endless_problems, find_layout
from acpo.tasks.registry import get_task
from acpo.tasks.sources import mappings, read_kept, read_pinned, read_rows
from acpo.tasks.task import CODE, Pinned, Row, Task
from acpo.tasks.templates import fill, get_template

ENDLESS_QUESTIONS = 200
"""Questions of a task that makes them on the fly, where no `limit` is given."""


@dataclass(frozen=True)
class Question:
    """A name that is unique within the task, what the model is asked, and the row behind it."""

    id: str
    prompt: str
    row: Row


@dataclass(frozen=True)
class Questions:
    """A task, what is asked of it in order, and the checksum of what is asked and expected."""

    task: Task
    questions: tuple[Question, ...]
    checksum: str


def load_questions(
    name: str, data_dir: Path | None = None, *, check: bool = True, limit: int | None = None
) -> Questions:
    """The questions of a task; of one that makes them on the fly, `limit`.

    Args:
        name: what `get_task` takes.
        data_dir: folder with `NAME.jsonl`, of a task that has no questions of its own, too; None
            downloads the pinned source once.
        check: refuse rows that differ from the declared count and checksum.
    """
    task = get_task(name)
    if task.test is None and task.endless:
        return _endless(task, limit or ENDLESS_QUESTIONS)
    loaded = _build(task, _rows(task, data_dir))
    if check and (problem := undeclared(loaded)):
        raise ACPOError(problem)
    return loaded


def undeclared(loaded: Questions) -> str:
    """How the rows differ from those that the task declares; empty where they do not."""
    name, declared = loaded.task.name, loaded.task.test
    if isinstance(declared, Pinned) and len(loaded.questions) != declared.rows:
        return f"{name}: {len(loaded.questions)} rows, {declared.rows} declared"
    if isinstance(declared, Pinned) and loaded.checksum != declared.checksum:
        return (
            f"{name}: checksum {loaded.checksum}, {declared.checksum} declared: questions or "
            "answers differ from the published ones. To use them anyway, pass the file's path"
        )
    return ""


def checksum(task: Task, rows: Sequence[Row]) -> str:
    """SHA-256 of what is asked and expected, in order, whatever the white space and field names."""
    fields: tuple[str, ...] = ()
    if task.needs_gold:
        fields = ("problem", "answer")
    elif isinstance(task.test, Pinned):
        fields = ("raw_problem", "new_problem", "test_code")
    digest = hashlib.sha256()
    for row in rows:
        kept = [" ".join(str(row.get(field, "")).split()) for field in fields or sorted(row)]
        digest.update(json.dumps(kept).encode() + b"\n")
    return digest.hexdigest()


def _rows(task: Task, data_dir: Path | None) -> list[Row]:
    source = task.test if task.test is not None else task.problems
    if isinstance(source, Pinned):
        return read_pinned(task.name, source, data_dir)
    # A file is asked as it is; a hub's training set is not.
    on_hub = task.test is None and isinstance(source, str) and not Path(source).suffix
    if (source is None or on_hub) and data_dir is not None:
        return read_kept(task.name, data_dir)
    if source is None or on_hub:
        raise ACPOError(_no_questions(task))
    if not isinstance(source, str):
        assert not callable(source)
        return mappings(source, f"task={task.reference!r}")
    return list(read_rows(source))


def _no_questions(task: Task) -> str:
    """What to do about a task that has nothing to ask, so that its own grader judges."""
    named = task.grader if isinstance(task.grader, str) else "NAME.py:FUNCTION"
    return (
        f"{task.name!r} has no questions of its own: put them into a folder as {task.name}.jsonl "
        "and pass it as --data-dir, or declare a task of your own with problems and "
        f"'grader: {named}' (docs/data.md#a-task-of-your-own)"
    )


def _build(task: Task, rows: list[Row]) -> Questions:
    where = task.reference
    if not rows:
        raise ACPOError(f"{where}: no rows")
    pinned = task.test if isinstance(task.test, Pinned) else None
    layout = find_layout(rows, task.columns, source=where, needed=task.needs_gold)
    if pinned and task.grader == CODE:
        layout = None
    template = get_template(task.test_template or task.template)
    questions = []
    seen: set[str] = set()
    for number, row in enumerate(rows):
        here = f"{where}, row {number + 1}"
        clean = canonical(
            row, layout, here, needed=task.needs_gold, cut=pinned.cut if pinned else None
        )
        for name in ("problem", "answer") if task.needs_gold else ():
            if not clean[name]:
                raise ACPOError(f"{here}: {name!r} is empty; remove the row")
        try:
            prompt = fill(template, clean)
        except ACPOError as error:
            raise ACPOError(f"{here}: {error}") from None
        # Sources differ in their ids, not in their order.
        name = f"{task.name}-{number}" if pinned else _id(row) or str(number)
        if name in seen:
            raise ACPOError(f"{where}: two rows have id={name!r}: make ids unique or omit them")
        seen.add(name)
        questions.append(Question(name, prompt, clean))
    return Questions(task, tuple(questions), checksum(task, [one.row for one in questions]))


def _id(row: Row) -> str:
    """The row's own name; empty where it has none."""
    name = "" if row.get("id") is None else str(row["id"])
    return name if name.strip() else ""


def _endless(task: Task, count: int) -> Questions:
    """Questions that training never sees. The checksum is that of the first, so that more of the
    same continue an evaluation."""
    problems = endless_problems(task, count, seed=task.held_out_seed)
    template = get_template(task.test_template or task.template)
    questions = [
        Question(str(number), fill(template, problem.row), problem.row)
        for number, problem in enumerate(problems)
    ]
    return Questions(task, tuple(questions), checksum(task, [problems[0].row]))
