"""What `acpo verify` does with a JSONL file, for a person at a shell."""

import functools
import hashlib
import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from acpo.errors import ACPOError
from acpo.jsonl import Row, as_written, json_value, read_jsonl
from acpo.linefile import Closing, LineFile
from acpo.verify.code import CodeBackend
from acpo.verify.remote import RemoteBackend
from acpo.verify.rewards import completion_text
from acpo.verify.sandbox import sandbox, unsafe_local
from acpo.verify.session import Limits
from acpo.verify.verdict import UNDECIDED, Outcome, Verdict

_OURS = ("outcome", "detail", "seconds", "reward", "judged")


def column(rows: list[Row], name: str, option: str) -> list[str]:
    """One field of every row as text; of chat messages the last of the assistant."""
    for number, row in enumerate(rows, start=1):
        if name not in row:
            raise ACPOError(f"row {number} has no field {name!r}, only {sorted(row)}: set {option}")
    return [_text(row[name]) for row in rows]


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(message, dict) for message in value):
        return completion_text(value)
    return "" if value is None else str(value)


def join(rows: list[Row], problems: Path, id_field: str) -> list[Row]:
    """The problem of every row, found by `id_field`."""
    found = read_jsonl(problems)
    known: dict[str, Row] = {}
    for name, problem in zip(column(found, id_field, "--id-field"), found, strict=True):
        if known.setdefault(name, problem) != problem:
            raise ACPOError(f"{problems} has two problems with {id_field}={name!r}: rename one")
    names = column(rows, id_field, "--id-field")
    if missing := sorted(set(names) - set(known)):
        raise ACPOError(f"{problems} has no problem with {id_field}={missing[0]!r}")
    return [known[name] for name in names]


def backend(remote: str | None, unsafe: bool, cpu_seconds: int) -> CodeBackend:
    """Where code runs, as the command line asks for it."""
    limits = Limits(cpu_seconds=cpu_seconds, wall_seconds=3.0 * cpu_seconds)
    if remote and unsafe:
        raise ACPOError("--remote and --unsafe-local exclude each other: give one")
    if remote:
        server = RemoteBackend(remote, limits)
        server.probe()
        return server
    if unsafe:
        console = Console(stderr=True)
        console.print("[bold red]--unsafe-local: model output runs here with your rights[/]")
        return unsafe_local(limits)
    return sandbox(limits)


class Verdicts(Closing):
    """The verdicts on the rows of a file, on disk as they come.

    Rows that `output` holds from an earlier run are not judged again, unless the machine had failed
    on them, or they were judged otherwise. At the end its lines stand in the order of `rows`.

    Args:
        rows: What `output` repeats beside each verdict.
        pairs: The text and the reference of every row.
        judge: What else verdicts depend on: the kind of judge and its limits.
        output: The file; None for none.
    """

    def __init__(
        self,
        rows: list[Row],
        pairs: Sequence[tuple[Any, Any]],
        judge: dict[str, Any],
        output: Path | None,
    ) -> None:
        self._rows = [{k: as_written(v) for k, v in row.items() if k not in _OURS} for row in rows]
        self._pairs = pairs
        self._marks = [_mark(judge, pair) for pair in pairs]
        self._verdicts: list[Verdict | None] = [None] * len(rows)
        self._file: LineFile | None = None
        if output is not None:
            if not output.parent.is_dir():
                raise ACPOError(f"--output {output}: there is no folder {output.parent}; make it")
            self._file = LineFile(output)
            self._file.resume(b"", functools.partial(self._take, output))

    def judge(self, verify: Callable[..., Future[Verdict]]) -> None:
        """Judge what is left, under a progress bar. Ctrl-C leaves what was judged on disk."""
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        todo = [index for index, known in enumerate(self._verdicts) if known is None]
        with Progress("verifying", *columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("", total=len(self._rows), completed=len(self._rows) - len(todo))

            # Not `concurrent.futures.wait`: it returns before the last verdicts are kept.
            kept, failures = threading.Semaphore(0), list[ACPOError]()

            def keep(index: int, future: Future[Verdict]) -> None:
                try:
                    if not future.cancelled() and future.exception() is None:
                        self._add(index, future.result())
                        bar.advance(task)
                except ACPOError as error:  # raised again below
                    failures.append(error)
                finally:
                    kept.release()

            futures = []
            for index in todo:
                futures.append(verify(*self._pairs[index]))
                futures[-1].add_done_callback(functools.partial(keep, index))
            for _ in futures:
                kept.acquire()
                if failures:
                    raise failures[0]
            for future in futures:
                future.result()
        if self._file is not None:
            self._file.replace(b"".join(map(self._line, range(len(self._rows)))))

    def report(self) -> None:
        """Print the table of outcomes.

        Raises:
            ACPOError: The machine failed on every row.
        """
        judged = [verdict for verdict in self._verdicts if verdict is not None]
        table = Table("outcome", "count", "share", "seconds")
        counts = Counter(verdict.outcome for verdict in judged)
        for outcome in Outcome:
            seconds = sum(verdict.seconds for verdict in judged if verdict.outcome is outcome)
            name = f"{outcome} (no reward)" if outcome in UNDECIDED else str(outcome)
            share = f"{counts[outcome] / len(judged):.1%}"
            table.add_row(name, str(counts[outcome]), share, f"{seconds:.1f}")
        Console().print(table)
        if judged and counts[Outcome.INFRA_ERROR] == len(judged):
            raise ACPOError(f"no row could be judged: {judged[0].detail}")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _add(self, index: int, verdict: Verdict) -> None:
        self._verdicts[index] = verdict
        if self._file is not None:
            self._file.append(self._line(index))

    def _line(self, index: int) -> bytes:
        verdict = self._verdicts[index]
        assert verdict is not None
        extra = {**verdict._asdict(), "reward": verdict.reward(), "judged": self._marks[index]}
        return json.dumps({**self._rows[index], **extra}).encode() + b"\n"

    def _take(self, output: Path, written: bytes) -> None:
        """Take over the whole lines of `output`, all of which have to be of these rows."""
        assert self._file is not None
        if not written and not self._is_beginning(output.read_bytes()):
            raise ACPOError(
                f"--output {output}: there is something else in it; give another name, or remove it"
            )
        waiting: dict[str, list[int]] = defaultdict(list)
        for index in reversed(range(len(self._rows))):
            waiting[_key(self._rows[index])].append(index)
        lines = written.splitlines(keepends=True)
        kept = []
        for number, line in enumerate(lines, start=1):
            try:
                row = json_value(line)
                verdict = Verdict(Outcome(row["outcome"]), row["detail"], row["seconds"])
                index = waiting[_key(row)].pop()
            except (ValueError, LookupError, TypeError):
                raise ACPOError(
                    f"--output {output}: line {number} is no verdict on a row of this file; "
                    "give another name, or remove it"
                ) from None
            same = row.get("judged") == self._marks[index]
            if same and verdict.outcome is not Outcome.INFRA_ERROR:
                self._verdicts[index] = verdict
                kept.append(line)
        if len(kept) < len(lines):
            # Else a row judged again has two lines, which the next run would not take over.
            self._file.replace(b"".join(kept))

    def _is_beginning(self, text: bytes) -> bool:
        """Whether this is what is left of a line of ours that was cut off."""
        for row in self._rows:
            unfinished = json.dumps({**row, "outcome": ""}).encode().removesuffix(b'"}')
            if unfinished.startswith(text) or text.startswith(unfinished):
                return True
        return False


def _key(row: Row) -> str:
    """What a row says, without what we add to it."""
    return json.dumps({k: v for k, v in row.items() if k not in _OURS}, sort_keys=True)


def _mark(judge: dict[str, Any], pair: tuple[Any, Any]) -> str:
    """What tells a verdict from those of other texts, references and limits."""
    whole = json.dumps([judge, *pair], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:16]
