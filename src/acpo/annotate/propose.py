"""`acpo annotate propose`: everything that is compared is asked about, and what came of it said."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from acpo.annotate.annotations import MAX_TEXT, Annotations, AnnotationWriter, Item, Proposal
from acpo.annotate.annotators import SETTLED, Annotator, Answer, Status, Usage
from acpo.annotate.evidence import Agreement, agreements
from acpo.annotate.models import ModelAnnotator
from acpo.annotate.pairs import PromptPairs, Selection, Trajectory
from acpo.errors import ACPOError

Watch = Callable[[str], None]


def propose(
    selection: Selection,
    annotators: Sequence[Annotator],
    writer: AnnotationWriter,
    *,
    concurrency: int = 8,
    watch: Watch = lambda name: None,
) -> dict[str, Usage]:
    """Ask every annotator for the first error of every wrong completion and for what corresponds.

    What the file already holds is not asked again, except where nothing came of it for a reason
    that may have passed. No annotator learns what another said, and each works on `concurrency`
    wrong completions at a time. `watch` gets its name for each of its proposals. Returned is what
    was spent on each.
    """
    for annotator in annotators:
        writer.add_annotator(annotator.name, annotator.settings())
    pools = [ThreadPoolExecutor(concurrency, thread_name_prefix=one.name) for one in annotators]
    over = threading.Event()
    workers = [_Worker(annotator, writer, watch, over) for annotator in annotators]
    jobs = [
        pool.submit(worker.work_unless_over, group, wrong)
        for group in selection.groups
        for wrong in group.wrong
        for pool, worker in zip(pools, workers, strict=True)
    ]
    try:
        done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
        for job in done:
            job.result()
    finally:
        over.set()
        for annotator in annotators:
            annotator.end()
        for pool in pools:
            pool.shutdown(wait=True, cancel_futures=True)
    return {worker.name: worker.spent for worker in workers}


class _Worker:
    """One annotator at work on one wrong completion after another."""

    def __init__(
        self, annotator: Annotator, writer: AnnotationWriter, watch: Watch, over: threading.Event
    ) -> None:
        self.name, self._over = annotator.name, over
        self._annotator, self._writer, self._watch = annotator, writer, watch
        self._lock = threading.Lock()
        self.spent = Usage()

    def work_unless_over(self, group: PromptPairs, wrong: Trajectory) -> None:
        """Work, unless a completion before ended the run: then none is started."""
        if self._over.is_set():
            return
        try:
            self.work(group, wrong)
        except BaseException:
            self._over.set()
            raise

    def work(self, group: PromptPairs, wrong: Trajectory) -> None:
        """Place the error, then what corresponds to it in each right completion."""
        item = Item(group.prompt_id, wrong.sample)
        error = self._settled(item)
        if error is None:
            error = self._keep(item, wrong, self._annotator.first_error(wrong))
        else:
            self._watch(self.name)
        chars = None if error.span is None else wrong.chars(error.span)
        for right in group.right:
            if self._over.is_set():
                return
            item = Item(group.prompt_id, wrong.sample, right.sample)
            if self._settled(item) is not None:
                self._watch(self.name)
                continue
            answer = Answer(Status.NOT_ASKED)
            if chars is not None:
                answer = self._annotator.corresponding(wrong, chars, right)
            self._keep(item, right, answer)

    def _settled(self, item: Item) -> Proposal | None:
        record = self._writer.annotations.items.get(item)
        proposal = record.proposals.get(self.name) if record else None
        return proposal if proposal and proposal.status in SETTLED else None

    def _keep(self, item: Item, placed: Trajectory, answer: Answer) -> Proposal:
        with self._lock:
            self.spent = self.spent.plus(answer.usage)
        status, span, detail = answer.status, None, answer.detail
        if answer.chars is not None:
            span = placed.tokens(answer.chars)
            if span is None:
                status, detail = Status.NOT_FOUND, f"no token has characters {answer.chars}"
        now = datetime.now(UTC).isoformat(timespec="seconds")
        said = (answer.rationale[:MAX_TEXT], detail[:MAX_TEXT])  # a longer one could not be read
        proposal = Proposal(self.name, status, span, *said, now)
        record = self._writer.annotations.items.get(item)
        before = record.proposals.get(self.name) if record else None
        if before is None or before._replace(when=now) != proposal:
            self._writer.add_proposal(item, placed.length, proposal)
        self._watch(self.name)
        return proposal


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
    for model in models:
        if spent[model.name].failed and not spent[model.name].requests:
            raise ACPOError(
                f"--annotator {model.name}: {model.settings()['url']} answered nothing; {output} "
                "says why, question by question, and the same command asks again"
            )


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
        names = annotations.annotators
        row = [counts[name, first, status] for name in names for first in (True, False)]
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
    cost = annotator.cost(usage)
    money = "prices not given" if cost is None else f"cost {cost:.4f}"
    return (
        f"{annotator.name}: {usage.requests} answers, {usage.cached} more from the cache, "
        f"{usage.read} tokens read, {usage.written} written, {money}"
    )
