"""How much of a benchmark stands in a training set, by runs of equal words."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from acpo.evaluate.benchmarks import Judge
from acpo.evaluate.data import LoadedBenchmark, Row

# LaTeX that changes how a formula looks, not what it says.
_LAYOUT = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|mathrm|mathbf|mathit|text|textbf|"
    r"textit|emph|operatorname|quad|qquad|[,;:!> ])(?![a-zA-Z])"
)
_DFRAC = re.compile(r"\\[dt]frac(?![a-zA-Z])")
# A letter run, a digit run, or one character of a script written without spaces.
_WORD = re.compile(r"[a-z]+|\d+|[^\W\d_a-z]")


class Overlap(NamedTuple):
    """A question of a benchmark that shares words with a row of the training set.

    Attributes:
        question: The question.
        row: The row of the training set that shares most of it, from 0.
        share: Share of the question's n-grams that stand in that row.
        rows: Rows of the training set that share at least one n-gram with it.
    """

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


def asked(benchmark: LoadedBenchmark, row: Row) -> str:
    """What a row asks, without the prompt template around it."""
    if benchmark.spec.judge is Judge.CODE:
        fields = ("raw_problem", "new_problem", "prompt", "question", "problem")
        return "\n".join(str(row[field]) for field in fields if row.get(field))
    return str(row["problem"])


def overlaps(
    benchmark: LoadedBenchmark, training: Iterable[str], *, size: int = 13
) -> list[Overlap]:
    """Questions that share at least one n-gram with a training row, the most shared first."""
    return overlaps_of([benchmark], training, size=size)[0]


def overlaps_of(
    benchmarks: Sequence[LoadedBenchmark], training: Iterable[str], *, size: int = 13
) -> list[list[Overlap]]:
    """`overlaps` of several benchmarks in one pass over the training set."""
    grams = [
        [ngrams(asked(benchmark, question.row), size) for question in benchmark.questions]
        for benchmark in benchmarks
    ]
    index: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    for which, questions in enumerate(grams):
        for number, own in enumerate(questions):
            for gram in own:
                index[gram].append((which, number))
    # Short questions are one gram of their own length, so rows are cut at those lengths as well.
    lengths = sorted({len(gram) for gram in index})
    shared: dict[tuple[int, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row, text in enumerate(training):
        found = words(text)
        cut = {
            tuple(found[start : start + length])
            for length in lengths
            for start in range(len(found) - length + 1)
            if length == size or len(found) == length
        }
        for gram in cut:
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
