"""Whether benchmarks are what they declare, and what of them stands in a training set."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acpo.evaluate.data import DataError, LoadedBenchmark, load, require_declared
from acpo.evaluate.judges import Judges, gold_completion
from acpo.evaluate.overlap import Overlap, asked, overlaps_of

# A question whose n-grams stand in one training row to this share is that question restated.
RESTATED = 0.5


@dataclass(frozen=True)
class Check:
    """What was found out about one benchmark.

    Attributes:
        benchmark: The benchmark.
        problem: How it differs from what it declares; empty where it does not.
        gold_right: Gold answers that verify as correct against themselves.
        gold: Gold answers there are.
        overlaps: Questions that share an n-gram with the training set, the most shared first.
    """

    benchmark: LoadedBenchmark
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
            "benchmark": self.benchmark.spec.name,
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
                "benchmark": self.benchmark.spec.name,
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
    loaded = [load(name, data_dir, check=False) for name in names]
    found = overlaps_of(loaded, training, size=ngram)
    with Judges(workers) as judges:
        return [
            Check(benchmark, _problem(benchmark), *_verified_gold(benchmark, judges), tuple(shared))
            for benchmark, shared in zip(loaded, found, strict=True)
        ]


def _verified_gold(benchmark: LoadedBenchmark, judges: Judges) -> tuple[int, int]:
    judge = benchmark.spec.judge
    futures = [
        judges.verify(judge, text, question.row)
        for question in benchmark.questions
        if (text := gold_completion(judge, question.row)) is not None
    ]
    return sum(future.result().correct for future in futures), len(futures)


def _problem(benchmark: LoadedBenchmark) -> str:
    try:
        require_declared(benchmark)
    except DataError as error:
        return str(error)
    return ""
