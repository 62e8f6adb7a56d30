"""Evaluation and data checks for a person at a shell."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from acpo.evaluate.backends import Backend, Sampling
from acpo.evaluate.data import DataError, LoadedBenchmark, load, require_declared
from acpo.evaluate.judges import Judges, gold_completion
from acpo.evaluate.overlap import Overlap, asked, overlaps_of
from acpo.evaluate.report import interval, title, write_reports
from acpo.evaluate.run import Plan, run
from acpo.evaluate.summary import summarise_run
from acpo.verify.batch import column, read_rows

_LISTED = 20


def evaluate(
    plans: Sequence[Plan],
    backend: Backend,
    judges: Judges,
    *,
    output: Path,
    sampling: Sampling,
    seed: int,
) -> None:
    """Run under a progress bar, write the reports, print the scores."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        watch = _Watch(bar, plans)
        run(plans, backend, judges, output=output, sampling=sampling, seed=seed, watch=watch)
    summary = summarise_run(output)
    write_reports(summary, output)
    _print_scores(summary, output)


class _Watch:
    """Advances the bar of a benchmark and keeps its running accuracy."""

    def __init__(self, bar: Progress, plans: Sequence[Plan]) -> None:
        self._bar = bar
        self._right: dict[str, int] = defaultdict(int)
        self._decided: dict[str, int] = defaultdict(int)
        self._tasks: dict[str, TaskID] = {
            plan.name: bar.add_task(
                title(plan.name), total=len(plan.questions) * plan.k, accuracy=""
            )
            for plan in plans
        }

    def __call__(self, name: str, correct: bool | None) -> None:
        if correct is not None:
            self._right[name] += correct
            self._decided[name] += 1
        share = self._right[name] / max(self._decided[name], 1)
        self._bar.update(self._tasks[name], advance=1, accuracy=f"{share:6.1%} right")


def _print_scores(summary: dict[str, Any], output: Path) -> None:
    table = Table("benchmark", "questions", "k", "mean@k", "pass@k", "majority@k", "cut off")
    for name, entry in summary["benchmarks"].items():
        passes = entry["pass"].get(str(entry["k"]))
        scores = [interval(value) for value in (entry["mean"], passes, entry["majority"])]
        cut = "-" if entry["truncated"] is None else f"{entry['truncated']:.1%}"
        table.add_row(title(name), str(entry["questions"]), str(entry["k"]), *scores, cut)
    table.add_row("average", "", "", interval(summary["average"]))
    console = Console()
    console.print(table)
    console.print(f"percent, 95% intervals clustered by question; samples and reports in {output}")


def check_data(
    names: Sequence[str],
    data_dir: Path | None,
    *,
    train: Path | None,
    train_field: str,
    ngram: int,
    output: Path | None,
    workers: int | None,
) -> bool:
    """Print one line per benchmark and the overlaps; whether all is as declared."""
    loaded = [load(name, data_dir, check=False) for name in names]
    found: list[list[Overlap]] = [[] for _ in loaded]
    texts: list[str] = []
    if train is not None:
        texts = column(read_rows(train), train_field, "--train-field")
        found = overlaps_of(loaded, texts, size=ngram)
    table = Table(
        "benchmark", "rows", "as declared", "gold verifies", *_overlap_heads(train, ngram)
    )
    sound = True
    with Judges(workers) as judges:
        for benchmark, shared in zip(loaded, found, strict=True):
            problem = _declared(benchmark)
            right, checked = verified_gold(benchmark, judges)
            sound = sound and not problem and right == checked
            counts = [len(shared), sum(entry.share >= 0.5 for entry in shared)] if train else []
            table.add_row(
                title(benchmark.spec.name),
                str(len(benchmark.questions)),
                problem or ("yes" if benchmark.spec.checksum else "own file"),
                f"{right} of {checked}",
                *map(str, counts),
            )
    console = Console()
    console.print(table)
    if train is not None:
        _list_overlaps(console, loaded, found, texts, output)
    return sound


def verified_gold(benchmark: LoadedBenchmark, judges: Judges) -> tuple[int, int]:
    """How many gold answers verify as correct against themselves, and how many there are."""
    judge = benchmark.spec.judge
    futures = [
        judges.verify(judge, text, question.row)
        for question in benchmark.questions
        if (text := gold_completion(judge, question.row)) is not None
    ]
    return sum(future.result().correct for future in futures), len(futures)


def _overlap_heads(train: Path | None, ngram: int) -> list[str]:
    return [f"share a {ngram}-gram", "share half of them"] if train else []


def _declared(benchmark: LoadedBenchmark) -> str:
    try:
        require_declared(benchmark)
    except DataError as error:
        return str(error)
    return ""


def _list_overlaps(
    console: Console,
    loaded: Sequence[LoadedBenchmark],
    found: Sequence[Sequence[Overlap]],
    texts: Sequence[str],
    output: Path | None,
) -> None:
    rows = []
    for benchmark, shared in zip(loaded, found, strict=True):
        questions = {question.id: question for question in benchmark.questions}
        for entry in shared:
            text = asked(benchmark, questions[entry.question].row)
            row = {"benchmark": benchmark.spec.name, **entry._asdict()}
            rows.append({**row, "question_text": text, "training_text": texts[entry.row]})
    rows.sort(key=lambda row: -row["share"])
    for row in rows[:_LISTED]:
        console.print(
            f"{row['question']}: {row['share']:.0%} of its n-grams in training row {row['row']}, "
            f"{row['rows']} rows in all",
            markup=False,
            highlight=False,
        )
    if len(rows) > _LISTED:
        console.print(f"and {len(rows) - _LISTED} more: --output FILE lists every one")
    if output is not None:
        with output.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
