"""Asking annotators about everything that is compared, and continuing where that was left."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from datetime import UTC, datetime

from acpo.annotate.annotations import AnnotationWriter, Item, Proposal
from acpo.annotate.outcomes import PASSING, Annotator, Answer, Status, Usage
from acpo.annotate.pairs import Chars, Group, Selection, Span, Trajectory

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
    that may have passed.

    Args:
        selection: What is compared.
        annotators: Whom to ask; none learns what another said.
        writer: Where the proposals go, each as it arrives.
        concurrency: Wrong completions one annotator works on at a time.
        watch: Called with an annotator's name for each of its proposals.

    Returns:
        What was spent on each annotator.
    """
    for annotator in annotators:
        writer.add_annotator(annotator.name, annotator.settings())
    pools = [
        ThreadPoolExecutor(concurrency, thread_name_prefix=annotator.name)
        for annotator in annotators
    ]
    workers = [_Worker(annotator, writer, watch) for annotator in annotators]
    jobs = [
        pool.submit(worker.work, group, wrong)
        for group in selection.groups
        for wrong in group.wrong
        for pool, worker in zip(pools, workers, strict=True)
    ]
    try:
        done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
        for job in done:
            job.result()
    finally:
        for pool in pools:
            pool.shutdown(wait=True, cancel_futures=True)
    return {worker.name: worker.spent for worker in workers}


class _Worker:
    """One annotator at work on one wrong completion after another."""

    def __init__(self, annotator: Annotator, writer: AnnotationWriter, watch: Watch) -> None:
        self.name = annotator.name
        self._annotator, self._writer, self._watch = annotator, writer, watch
        self._lock = threading.Lock()
        self.spent = Usage()

    def work(self, group: Group, wrong: Trajectory) -> None:
        """Place the error, then what corresponds to it in each right completion."""
        item = Item(group.prompt_id, wrong.sample)
        error = self._settled(item)
        if error is None:
            error = self._keep(item, wrong, self._annotator.first_error(wrong))
        else:
            self._watch(self.name)
        chars = None if error.span is None else _chars(wrong, error.span)
        for right in group.right:
            item = Item(group.prompt_id, wrong.sample, right.sample)
            if self._settled(item) is not None:
                self._watch(self.name)
            elif chars is None:
                self._keep(item, right, Answer(Status.NOT_ASKED))
            else:
                answer = self._annotator.corresponding(wrong, chars, right)
                self._keep(item, right, answer)

    def _settled(self, item: Item) -> Proposal | None:
        record = self._writer.annotations.items.get(item)
        proposal = record.proposals.get(self.name) if record else None
        return proposal if proposal and proposal.status not in PASSING else None

    def _keep(self, item: Item, placed: Trajectory, answer: Answer) -> Proposal:
        with self._lock:
            self.spent = self.spent.plus(answer.usage)
        status, span, detail = answer.status, None, answer.detail
        if answer.chars is not None:
            span = placed.tokens(answer.chars)
            if span is None:
                status, detail = Status.NOT_FOUND, f"no token has characters {answer.chars}"
        now = datetime.now(UTC).isoformat(timespec="seconds")
        proposal = Proposal(self.name, status, span, answer.rationale, detail, now)
        record = self._writer.annotations.items.get(item)
        before = record.proposals.get(self.name) if record else None
        if before is None or before._replace(when=now) != proposal:
            self._writer.add_proposal(item, placed.length, proposal)
        self._watch(self.name)
        return proposal


def _chars(trajectory: Trajectory, span: Span) -> Chars:
    return Chars(int(trajectory.starts[span.first]), int(trajectory.ends[span.end - 1]))
