"""Proposals and decisions for a person at a shell."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from acpo.annotate.agreement import Agreement, agreements
from acpo.annotate.annotations import Annotations, AnnotationWriter
from acpo.annotate.apply import Merged
from acpo.annotate.models import ModelAnnotator
from acpo.annotate.outcomes import Annotator, Status, Usage
from acpo.annotate.pairs import Selection
from acpo.annotate.run import propose


def propose_with_progress(
    selection: Selection,
    annotators: Sequence[Annotator],
    output: Path,
    *,
    concurrency: int,
    within: int,
) -> None:
    """Ask under a progress bar, then print what came of it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        AnnotationWriter(output, selection) as writer,
        Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar,
    ):
        total = selection.counts["wrong"] + selection.counts["pairs"]
        tasks = {a.name: bar.add_task(a.name, total=total) for a in annotators}
        spent = propose(
            selection,
            annotators,
            writer,
            concurrency=concurrency,
            watch=lambda name: bar.update(tasks[name], advance=1),
        )
        annotations = writer.annotations
    console = Console(highlight=False)
    console.print(selected(selection), soft_wrap=True)
    console.print(outcome_table(annotations))
    for entry in agreements(annotations, within=within):
        console.print(agreement_line(entry), markup=False, soft_wrap=True)
    models = [annotator for annotator in annotators if isinstance(annotator, ModelAnnotator)]
    if models and len(annotations.annotators) < 2:
        console.print("one annotator: the protocol wants two, to see whether they agree")
    for model in models:
        console.print(cost_line(model, spent[model.name]), markup=False, soft_wrap=True)


def selected(selection: Selection) -> str:
    """What is compared and what was left out, in one line."""
    counts = selection.counts
    return (
        f"{counts['completions']} completions of step {selection.step}; left out: "
        f"{counts['length_failures']} failures by length only, {counts['no_verdict']} without a "
        f"verdict, {counts['one_sided_prompts']} prompts without both right and wrong ones. "
        f"Compared: {counts['prompts']} prompts, {counts['right']} right x {counts['wrong']} wrong "
        f"completions, {counts['pairs']} pairs"
    )


def outcome_table(annotations: Annotations) -> Table:
    """How often each outcome occurred, by annotator and kind of question."""
    counts: Counter[tuple[str, bool, Status]] = Counter()
    for item, record in annotations.items.items():
        for name, proposal in record.proposals.items():
            counts[name, item.right is None, proposal.status] += 1
    table = Table("outcome")
    for name in annotations.annotators:
        table.add_column(Text(f"{name}: first error"), justify="right")
        table.add_column(Text(f"{name}: corresponding"), justify="right")
    for status in Status:
        row = [
            counts[name, first, status]
            for name in annotations.annotators
            for first in (True, False)
        ]
        if any(row) or status is Status.LOCATED:
            table.add_row(status.value, *map(str, row))
    return table


def agreement_line(entry: Agreement) -> str:
    """Agreement of two annotators in one line."""
    head = f"{entry.names[0]} and {entry.names[1]}, {entry.what}: "
    head += f"{entry.both} of {entry.asked} placed by both ({entry.neither} by neither)"
    if not entry.both:
        return head
    return head + (
        f", in {entry.prompts} prompts: the same first token in {entry.exact:.0%}, within "
        f"{entry.within} tokens in {entry.near:.0%} (a random place: {entry.by_chance:.0%}), "
        f"mean distance {entry.distance:.1f} tokens"
    )


def cost_line(annotator: ModelAnnotator, usage: Usage) -> str:
    """What one annotator cost in this run."""
    cost = annotator.prices.cost(usage)
    money = "prices not given" if cost is None else f"cost {cost:.4f}"
    return (
        f"{annotator.name}: {usage.requests} answers, {usage.cached} more from the cache, "
        f"{usage.read} tokens read, {usage.written} written, {money}"
    )


def print_merged(merged: Merged, path: Path) -> None:
    """What became of an exported review."""
    Console(highlight=False).print(
        f"{merged.accepted} accepted, {merged.moved} moved, {merged.rejected} rejected; "
        f"{merged.replaced} of these replace an earlier decision, {merged.unchanged} were known. "
        f"{merged.undecided} items of {path} wait for a person",
        markup=False,
        soft_wrap=True,
    )
