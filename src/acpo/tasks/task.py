"""A task: problems, how they are put, and what judges an answer. One notion for every command.

    # my_tasks.py
    from acpo.tasks import Task

    doubling = Task(
        problems=[{"n": n} for n in range(1000)],
        template="Twice {n} is",
        grader=lambda completion, row: completion.strip() == str(2 * row["n"]),
    )

`my_tasks.py:doubling` is then what `acpo train`, `eval`, `trace`, `compare` and `doctor` take.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, NamedTuple

from acpo.errors import ACPOError

Row = Mapping[str, Any]
Stream = Callable[[int], Iterable[Row]]
"""From a seed to rows, which may never end; equal seeds give equal rows."""

MATH, CODE, DIGITS = "math", "code", "digits"
GOLD_JUDGES = (MATH, DIGITS)
"""Those that compare the answer of a completion with a gold answer."""

GOLD_FORMS = ("text", "boxed")
"""How a gold answer may stand in its column."""


class Columns(NamedTuple):
    """The columns of a question (text, or one chat message of a user) and of its answer.

    `gold` says how the answer stands there: "text" (after the last `####`, where there is one), or
    "boxed" for a solution that ends in a box.
    """

    problem: str
    answer: str
    gold: str = "text"


USUAL = tuple(
    Columns(problem, answer)
    for problem in ("problem", "question", "prompt")
    for answer in ("answer", "expected_answer", "gold")
)
"""Column names that are understood without being told."""


@dataclass(frozen=True)
class Pinned:
    """A file of questions, JSON Lines or one JSON array, at a commit of `owner/name` on GitHub.

    `checksum` is that of `acpo.tasks.questions.checksum`; `cut` is text that ends every question
    there and belongs to its own prompt template.
    """

    repository: str
    commit: str
    path: str
    rows: int
    checksum: str
    cut: str | None = None

    @property
    def url(self) -> str:
        return f"https://raw.githubusercontent.com/{self.repository}/{self.commit}/{self.path}"


@dataclass(frozen=True)
class Task:
    """Problems, how they are put, and what judges an answer.

    Attributes:
        problems: what to train on: a file, a hub id, rows, or a function from a seed to rows that
            may go on for ever. None when a recipe has to name its `data`.
        template: the prompt, with `{column}` where a column of the row belongs, or a name of
            `acpo.tasks.TEMPLATES`.
        grader: "math", "code", "digits" (math, but a number in digits is what answers), or a
            function of completion and row. It returns True or False, a `Verdict`, or a score of
            which 1 is right; it runs in a process that can be killed.
        columns: where question and gold are, tried in order. A grader of one's own needs neither.
        test: what evaluation asks, when it is not the problems themselves: a file, rows, or
            `Pinned`. Endless problems are asked from a seed that training never sees.
        test_template: evaluation's prompt, where it differs.
        extract: from a completion to the answer it votes with; None: it has no vote.
        gold: from a row to a completion that is right, so that the grader can be tried.
        k: samples per question unless evaluation is told otherwise.
        cpu_seconds: CPU time the grader may take over one completion.
        in_process: call the grader here, without a limit: for graders that nothing can hang.
        pool: endless problems to train on; None makes as many as the run uses, and none twice.
        config: the hub data set's configuration.
        held_out_split: its split that accuracy is measured on, where it has one.
        held_out_seed: the seed of endless problems that are never trained on.
        identity: what else verdicts depend on, such as the version of a library.
        name: what commands call it; set by whatever finds it.
        title: what tables call it.
        reference: what `get_task` found it under.
    """

    problems: str | Sequence[Row] | Stream | None = None
    template: str = "boxed"
    grader: str | Callable[[str, Row], Any] = MATH
    columns: tuple[Columns, ...] = USUAL
    test: str | Sequence[Row] | Pinned | None = None
    test_template: str | None = None
    extract: Callable[[str], str | None] | None = None
    gold: Callable[[Row], str | None] | None = None
    k: int = 8
    cpu_seconds: float = 5.0
    in_process: bool = False
    pool: int | None = None
    config: str | None = None
    held_out_split: str | None = None
    held_out_seed: int = 1
    identity: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    title: str = ""
    reference: str = ""

    def __post_init__(self) -> None:
        if not callable(self.grader) and self.grader not in (MATH, CODE, DIGITS):
            raise ACPOError(
                f"grader={self.grader!r}: use 'math', 'code', 'digits', or a function of "
                "completion and row"
            )
        for name in ("problems", "test"):
            value = getattr(self, name)
            if not callable(value) and not isinstance(value, (str, Iterable, Pinned, NoneType)):
                raise ACPOError(f"{name}={value!r}: use a file, a hub id, or rows")
        for name in ("template", "test_template", "title"):
            value = getattr(self, name)
            if not isinstance(value, str) and (name == "template" or value is not None):
                raise ACPOError(f"{name}={value!r} must be a text")
        for layout in self.columns:
            named = isinstance(layout, Columns) and all(isinstance(one, str) for one in layout)
            if not named or layout.gold not in GOLD_FORMS:
                raise ACPOError(
                    f"columns={self.columns!r}: use Columns(problem, answer, gold), of which gold "
                    f"is one of {', '.join(GOLD_FORMS)}"
                )
        if not isinstance(self.cpu_seconds, (int, float)) or not self.cpu_seconds > 0:
            raise ACPOError(f"cpu_seconds={self.cpu_seconds!r} must be a positive number")
        if type(self.k) is not int or self.k < 1:
            raise ACPOError(f"k={self.k!r} must be a positive number without a fraction")

    @property
    def endless(self) -> bool:
        """Whether problems are made on the fly."""
        return callable(self.problems)

    @property
    def needs_gold(self) -> bool:
        """Whether a problem without a gold answer is no problem."""
        return self.grader in GOLD_JUDGES

    @property
    def judge(self) -> str:
        """The grader's name, as evaluations keep it."""
        return self.grader if isinstance(self.grader, str) else self.reference or self.name
