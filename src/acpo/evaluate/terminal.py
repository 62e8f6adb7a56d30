"""Evaluation and data checks for a person at a shell."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from acpo.evaluate.backends import Backend
from acpo.evaluate.check import Check
from acpo.evaluate.report import (
    COUNTED,
    interval,
    score_cells,
    title,
    told_undecided,
    write_reports,
)
from acpo.evaluate.run import Plan, Watcher, run
from acpo.evaluate.summary import summarise_run
from acpo.tasks import get_task, get_template, load_problems
from acpo.tasks.grading import Judges, gold_completion
from acpo.tasks.questions import load_questions
from acpo.tasks.task import Pinned, Row, Task
from acpo.tasks.templates import fill

_LISTED = 20


def evaluate(
    plans: Sequence[Plan],
    backend: Backend,
    judges: Judges,
    *,
    output: Path,
    seed: int,
    failed: str = "exclude",
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
        watch = _watch(bar, plans)
        run(plans, backend, judges, output=output, seed=seed, watch=watch)
    summary = summarise_run(output, failed=failed)
    write_reports(summary, output)
    _print_scores(summary, output)
    _print_more(plans, summary)


def _watch(bar: Progress, plans: Sequence[Plan]) -> Watcher:
    """What advances the bar of a benchmark and shows its running accuracy."""
    right, decided = Counter[str](), Counter[str]()
    lines = {
        plan.name: bar.add_task(title(plan.name), total=len(plan.questions) * plan.k, accuracy="")
        for plan in plans
    }

    def watch(name: str, correct: bool | None) -> None:
        right[name] += correct or 0
        decided[name] += correct is not None
        share = right[name] / max(decided[name], 1)
        bar.update(lines[name], advance=1, accuracy=f"{share:6.1%} right")

    return watch


def _print_scores(summary: dict[str, Any], output: Path) -> None:
    table = Table("benchmark", "questions", "k", "mean@k", "pass@k", "majority@k", "cut off")
    for cells, entry in zip(score_cells(summary), summary["benchmarks"].values(), strict=True):
        cut = "-" if entry["truncated"] is None else f"{entry['truncated']:.1%}"
        table.add_row(*cells, cut)
    table.add_row("average", "", "", interval(summary["average"]))
    Console().print(table)
    for name, entry in summary["benchmarks"].items():
        if said := told_undecided(entry["undecided"], entry["samples"]):
            _print_line(f"{title(name)}: {said}")
        _print_failed(name, entry["failed"])
    _print_line(f"percent, 95% intervals clustered by question; samples and reports in {output}")


def _print_more(plans: Sequence[Plan], summary: dict[str, Any]) -> None:
    """Say where the scores are of more than was asked for: earlier runs drew it."""
    for plan in plans:
        entry = summary["benchmarks"][plan.name]
        questions, k = entry["questions"], entry["k"]
        if questions > len(plan.questions) or k > plan.k:
            _print_line(
                f"{title(plan.name)}: the folder holds more: {questions} questions, k={k}, and the "
                f"scores are of all; asked for were {len(plan.questions)} questions, k={plan.k}"
            )


def _print_failed(name: str, failed: dict[str, Any]) -> None:
    samples = failed["samples"]
    if not samples:
        return
    counted = COUNTED[failed["counted_as"]]
    questions = ", ".join(dict.fromkeys(one["question"] for one in samples))
    _print_line(
        f"{title(name)}: {len(samples)} samples could not be drawn and {counted} (questions "
        f"{questions}): {samples[0]['reason']}"
    )


def _print_line(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def show_task(name: str, *, data_dir: Path | None, data: str | None, count: int) -> None:
    """Problems of a task with prompt, gold, and the grader's word on right and wrong answers."""
    console = Console(highlight=False, soft_wrap=True)
    task, problems = _some_problems(name, data_dir, data, count)
    with Judges(1) as judges:
        for number, (prompt, row) in enumerate(problems, 1):
            console.print(f"{task.title} {number}", style="bold", markup=False)
            console.print(prompt, markup=False)
            gold = gold_completion(task, row)
            tries = [("gold", gold), ("wrong", WRONG)] if gold is not None else [("wrong", WRONG)]
            for what, text in tries:
                verdict = judges.verify(task, text, row).result()
                said = f"{verdict.outcome} ({verdict.detail or 'no reason given'})"
                console.print(f"  {what}: {text!r} -> {said}", markup=False)
            console.print()


WRONG = "\\boxed{wrong} <answer>wrong</answer> wrong"


def _some_problems(
    name: str, data_dir: Path | None, data: str | None, count: int
) -> tuple[Task, list[tuple[str, Row]]]:
    task = get_task(name)
    if data is None and (task.test is not None or task.endless or task.problems is None):
        asked = load_questions(name, data_dir, check=False, limit=count).questions[:count]
        return task, [(question.prompt, question.row) for question in asked]
    template = get_template(task.template)
    problems, _ = load_problems(task, data)
    return task, [(fill(template, one.row), one.row) for one in problems[:count]]


def print_checks(checks: Sequence[Check], *, train: str | None, ngram: int) -> None:
    """One line per benchmark, and the overlaps that are the largest."""
    heads = [f"share a {ngram}-gram", "share half of them"] if train else []
    table = Table("benchmark", "rows", "as declared", "gold verifies", *heads)
    for entry in checks:
        task = entry.benchmark.task
        counts = [len(entry.overlaps), entry.restated] if train else []
        table.add_row(
            title(task.name),
            str(len(entry.benchmark.questions)),
            entry.problem or ("yes" if isinstance(task.test, Pinned) else "own"),
            f"{entry.gold_right} of {entry.gold}",
            *map(str, counts),
        )
    console = Console()
    console.print(table)
    shared = sorted((o for entry in checks for o in entry.overlaps), key=lambda o: -o.share)
    for overlap in shared[:_LISTED]:
        console.print(
            f"{overlap.question}: {overlap.share:.0%} of its n-grams in training row "
            f"{overlap.row + 1}, {overlap.rows} rows in all",
            markup=False,
            highlight=False,
        )
    if len(shared) > _LISTED:
        console.print(f"and {len(shared) - _LISTED} more: --output FILE lists every one")
