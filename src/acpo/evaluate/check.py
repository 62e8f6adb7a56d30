"""Whether benchmarks are what they declare, and what of them stands in a training set."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from acpo.errors import ACPOError
from acpo.tasks.grading import Judges, gold_completion
from acpo.tasks.problems import gold_text, question_text
from acpo.tasks.questions import Questions, load_questions, undeclared
from acpo.tasks.sources import column, has_column
from acpo.tasks.task import Row
from acpo.tasks.templates import fill, get_template

# A question whose n-grams stand in one training row to this share is that question restated.
RESTATED = 0.5
# LaTeX that changes how a formula looks, not what it says.
_LAYOUT = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|mathrm|mathbf|mathit|text|textbf|"
    r"textit|emph|operatorname|quad|qquad|[,;:!> ])(?![a-zA-Z])"
)
_DFRAC = re.compile(r"\\[dt]frac(?![a-zA-Z])")
# A letter run, a digit run, or one character of a script written without spaces.
_WORD = re.compile(r"[a-z]+|\d+|[^\W\d_a-z]")


class Overlap(NamedTuple):
    """A question, the training row (from 0) that shares most of it, the share of its n-grams that
    stand there, and how many rows share one."""

    question: str
    row: int
    share: float
    rows: int


def words(text: str) -> list[str]:
    """`text` in lower case, without layout and punctuation."""
    text = _DFRAC.sub(r"\\frac", _LAYOUT.sub(" ", text))
    return _WORD.findall(text.lower())


def ngrams(text: str, size: int) -> set[tuple[str, ...]]:
    """Every run of `size` words; a shorter text is one run of its own."""
    found = words(text)
    if len(found) < size:
        return {tuple(found)} if found else set()
    return {tuple(found[start : start + size]) for start in range(len(found) - size + 1)}


def asked(benchmark: Questions, row: Row) -> str:
    """What a row asks, without the prompt template around it, where the two can be told apart."""
    if row.get("problem"):
        return str(row["problem"])
    template = get_template(benchmark.task.test_template or benchmark.task.template)
    fields = [name for name in ("raw_problem", "new_problem") if row.get(name)]
    return "\n".join(str(row[name]) for name in fields) or fill(template, row)


def training_texts(rows: Sequence[Row], field: str) -> list[str]:
    """What the rows of a training set ask, read as training reads it."""
    texts = []
    for number, row in enumerate(rows, 1):
        if not has_column(row, field):
            names = ", ".join(sorted(row))
            raise ACPOError(f"row {number} has no field {field!r}, only {names}: set --train-field")
        text = question_text(column(row, field), f"row {number}: {field!r}").strip()
        if not text:
            raise ACPOError(f"row {number}: {field!r} is empty; remove it, or set --train-field")
        texts.append(text)
    return texts


def training_golds(rows: Sequence[Row], field: str) -> list[str] | None:
    """The gold answers of a training set, empty where a row has none; None where no row has."""
    if not any(has_column(row, field) for row in rows):
        return None
    return [gold_text(column(row, field) if has_column(row, field) else None) for row in rows]


def overlaps(
    benchmarks: Sequence[Questions], training: Iterable[str], *, size: int = 13
) -> list[list[Overlap]]:
    """Per benchmark, questions that share an n-gram with a training row, the most shared first."""
    grams = [
        [ngrams(asked(benchmark, question.row), size) for question in benchmark.questions]
        for benchmark in benchmarks
    ]
    index: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    for which, questions in enumerate(grams):
        for number, own in enumerate(questions):
            for gram in own:
                index[gram].append((which, number))
    shared: dict[tuple[int, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row, text in enumerate(training):
        for gram in ngrams(text, size):
            for place in index.get(gram, ()):
                shared[place][row] += 1
    results: list[list[Overlap]] = [[] for _ in benchmarks]
    for (which, number), rows in shared.items():
        best = max(rows, key=lambda row: (rows[row], -row))
        share = rows[best] / len(grams[which][number])
        name = benchmarks[which].questions[number].id
        results[which].append(Overlap(name, best, share, len(rows)))
    for result in results:
        result.sort(key=lambda entry: (-entry.share, entry.question))
    return results


@dataclass(frozen=True)
class Check:
    """What was found out about one benchmark: `problem` says how it differs from what it declares,
    `gold_right` of `gold` answers verify against themselves, and `overlaps` has the most shared
    first."""

    benchmark: Questions
    problem: str
    gold_right: int
    gold: int
    overlaps: tuple[Overlap, ...]

    @property
    def sound(self) -> bool:
        return not self.problem and self.gold_right == self.gold

    @property
    def restated(self) -> int:
        return sum(entry.share >= RESTATED for entry in self.overlaps)

    def plain(self) -> dict[str, Any]:
        """Everything but the texts, ready for JSON."""
        return {
            "benchmark": self.benchmark.task.name,
            "rows": len(self.benchmark.questions),
            "problem": self.problem or None,
            "gold_right": self.gold_right,
            "gold": self.gold,
            "sharing_an_ngram": len(self.overlaps),
            "sharing_half": self.restated,
            "overlaps": [
                {**entry._asdict(), "share": round(entry.share, 4)} for entry in self.overlaps
            ],
        }

    def texts(self, training: Sequence[str]) -> list[dict[str, Any]]:
        """Every overlap with both texts."""
        rows = {question.id: question.row for question in self.benchmark.questions}
        return [
            {
                "benchmark": self.benchmark.task.name,
                **entry._asdict(),
                "question_text": asked(self.benchmark, rows[entry.question]),
                "training_text": training[entry.row],
            }
            for entry in self.overlaps
        ]


def check(
    names: Sequence[str],
    data_dir: Path | None,
    *,
    training: Sequence[str] = (),
    ngram: int = 13,
    workers: int | None = None,
) -> list[Check]:
    """Check every named benchmark, against the questions of a training set where given."""
    loaded = [load_questions(name, data_dir, check=False) for name in names]
    found = overlaps(loaded, training, size=ngram)
    with Judges(workers) as judges:
        return [
            Check(one, undeclared(one), *_verified_gold(one, judges), tuple(shared))
            for one, shared in zip(loaded, found, strict=True)
        ]


def _verified_gold(benchmark: Questions, judges: Judges) -> tuple[int, int]:
    futures = [
        judges.verify(benchmark.task, text, question.row)
        for question in benchmark.questions
        if (text := gold_completion(benchmark.task, question.row)) is not None
    ]
    return sum(future.result().correct for future in futures), len(futures)
