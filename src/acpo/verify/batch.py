"""What `acpo verify` does with a JSONL file, for a person at a shell."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from acpo.errors import ACPOError
from acpo.jsonl import Row, read_jsonl
from acpo.verify.code import Backend
from acpo.verify.remote import RemoteBackend
from acpo.verify.sandbox import sandbox, unsafe_local
from acpo.verify.session import Limits
from acpo.verify.verdict import UNDECIDED, Outcome, Verdict


def column(rows: list[Row], name: str, option: str) -> list[str]:
    """One field of every row as text."""
    for number, row in enumerate(rows, start=1):
        if name not in row:
            raise ACPOError(f"row {number} has no field {name!r}, only {sorted(row)}: set {option}")
    return ["" if row[name] is None else str(row[name]) for row in rows]


def join(rows: list[Row], problems: Path, id_field: str) -> list[Row]:
    """The problem of every row, found by `id_field`."""
    known = dict(
        zip(column(found := read_jsonl(problems), id_field, "--id-field"), found, strict=True)
    )
    names = column(rows, id_field, "--id-field")
    if missing := sorted(set(names) - set(known)):
        raise ACPOError(f"{problems} has no problem with {id_field}={missing[0]!r}")
    return [known[name] for name in names]


def backend(remote: str | None, unsafe: bool, cpu_seconds: int) -> Backend:
    """Where code runs, as the command line asks for it."""
    limits = Limits(cpu_seconds=cpu_seconds, wall_seconds=3.0 * cpu_seconds)
    if remote and unsafe:
        raise ACPOError("--remote and --unsafe-local exclude each other: give one")
    if remote:
        return RemoteBackend(remote, limits)
    if unsafe:
        console = Console(stderr=True)
        console.print("[bold red]--unsafe-local: model output runs here with your rights[/]")
        return unsafe_local(limits)
    return sandbox(limits)


def verdicts(
    verify: Callable[..., Future[Verdict]], pairs: Sequence[tuple[Any, Any]]
) -> list[Verdict]:
    """Verdicts on `pairs`, in order, under a progress bar."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress("verifying", *columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(pairs))
        futures = []
        for pair in pairs:
            futures.append(verify(*pair))
            futures[-1].add_done_callback(lambda _: bar.advance(task))
        return [future.result() for future in futures]


def report(rows: list[Row], judged: list[Verdict], output: Path | None) -> None:
    """Print the table of outcomes; write every row with its verdict where asked to."""
    table = Table("outcome", "count", "share", "seconds")
    counts = Counter(verdict.outcome for verdict in judged)
    for outcome in Outcome:
        seconds = sum(verdict.seconds for verdict in judged if verdict.outcome is outcome)
        name = f"{outcome} (no reward)" if outcome in UNDECIDED else str(outcome)
        share = f"{counts[outcome] / len(judged):.1%}"
        table.add_row(name, str(counts[outcome]), share, f"{seconds:.1f}")
    Console().print(table)
    if output is None:
        return
    with output.open("w", encoding="utf-8") as file:
        for row, verdict in zip(rows, judged, strict=True):
            extra = {**verdict._asdict(), "reward": verdict.reward()}
            file.write(json.dumps({**row, **extra}) + "\n")
