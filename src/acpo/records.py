"""The one on-disk form of rollouts and their per-token statistics.

A trace is a folder:

    header.jsonl             line 1 says what the trace is; every further line commits one part
    rollouts-00000.parquet   one row per completion
    tokens-00000.parquet     one row per completion token, in the order of the completions

A part counts once its line in the header is whole, so a writer can be killed at any moment and go
on later. Token columns are read one by one, memory-mapped: a trace costs what is asked of it.
"""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from acpo.errors import ACPOError
from acpo.jsonl import json_line, json_value
from acpo.linefile import Closing, LineFile
from acpo.record_columns import (
    COUNTS,
    REQUIRED,
    ROLLOUT_COLUMNS,
    TOKEN_COLUMNS,
    column_names,
    read_table,
    rollout_table,
    token_table,
    write_table,
)

FORMAT = "acpo-trace"
VERSION = 1
HEADER = "header.jsonl"

RUN_LOG, RUN_TRACE, RUN_STATE = "log.jsonl", "trace", "trainer_state.json"
"""What a training run keeps in its folder: log, recorded rollouts, and the trainer's state."""


class TraceWriter(Closing):
    """Appends parts to a trace; each is on disk, whole, when `append` returns.

    Args:
        path: The folder; an existing trace is continued.
        header: What the trace is: `model`, `temperature`, `vocab_size`, `method`, ... An existing
            trace must have been made with the same.
        anew: Whether an existing trace is begun again instead, whatever its header.

    Raises:
        ACPOError: The folder holds something else, a trace with another header, or one that
            another process writes to.
    """

    def __init__(self, path: Path | str, header: Mapping[str, Any], *, anew: bool = False) -> None:
        self.path, self._anew = Path(path), anew
        first = {"format": FORMAT, "version": VERSION, **header}
        self.header: dict[str, Any] = json.loads(json.dumps(first))
        if self.path.is_dir() and any(self.path.iterdir()) and not (self.path / HEADER).exists():
            raise ACPOError(f"{self.path} holds other files: use a new folder for the trace")
        self._lines = LineFile(self.path / HEADER, sync=True)
        # Half a first line in a trace's own folder is a writer's that died: nobody else's.
        self.parts = self._lines.resume(json_line(self.header), self._parts_of, own=True)

    def append(
        self,
        rollouts: Sequence[Mapping[str, Any]],
        tokens: Mapping[str, Any],
        *,
        step: int = 0,
        update: int = 0,
        model: str | None = None,
    ) -> None:
        """Add completions.

        Args:
            rollouts: One mapping of `ROLLOUT_COLUMNS` per completion; `step` and `update` are
                filled in.
            tokens: Columns of `TOKEN_COLUMNS`, each as long as all completions together.
            step: The optimizer step of the policy that sampled.
            update: How many updates on this rollout the scored policy is ahead of that one.
            model: That policy, where parts have different ones; their lines keep it.
        """
        rows: list[dict[str, Any]] = [{**row, "step": step, "update": update} for row in rollouts]
        completions, columns = rollout_table(rows), token_table(tokens)
        total = int(completions["tokens"].to_numpy().sum())
        if total != columns.num_rows:
            raise ACPOError(
                f"tokens has {columns.num_rows} rows where the completions have {total} tokens"
            )
        number = max((part["part"] for part in self.parts), default=-1) + 1
        write_table(completions, _rollout_file(self.path, number))
        write_table(columns, _token_file(self.path, number))
        line: dict[str, Any] = {"part": number, "step": step}
        line |= {"rollouts": len(rows), "tokens": total}
        line |= {"update": update} if update else {}
        line |= {"model": model} if model is not None else {}
        self._lines.append(json_line(line))
        self.parts.append(line)

    def drop_from(self, step: int, update: int = 0) -> None:
        """Forget parts of an update and later: a training run that resumes makes them again."""
        kept = [p for p in self.parts if (p["step"], p.get("update", 0)) < (step, update)]
        if len(kept) == len(self.parts):
            return
        self._lines.replace(b"".join(json_line(row) for row in (self.header, *kept)))
        self.parts = kept

    def _parts_of(self, text: bytes) -> list[dict[str, Any]]:
        header, parts = _parse_header(self.path / HEADER, text)
        if self._anew:
            self._lines.replace(json_line(self.header))
            return []
        for name in sorted(header.keys() | self.header.keys()):
            if header.get(name) != self.header.get(name):
                raise ACPOError(
                    f"{self.path} was made with {name}={header.get(name)!r}, not "
                    f"{self.header.get(name)!r}: use another folder"
                )
        return parts

    def close(self) -> None:
        self._lines.close()


def write_trace(
    path: Path,
    header: Mapping[str, Any],
    parts: Iterable[tuple[Sequence[Mapping[str, Any]], Mapping[str, Any], int]],
) -> None:
    """Write a trace that has its name once it is whole; one of the same header is replaced.

    Until then it is called `PATH.partial`: a trace that lacks parts looks like any other. A part
    is completions, token columns and step, as `TraceWriter.append` takes them.

    Raises:
        ACPOError: The folder holds something else, or there is no part.
    """
    path = path.resolve()
    if path.exists():
        TraceWriter(path, header).close()  # refuses what is not to be replaced
    partial, before = Path(f"{path}.partial"), Path(f"{path}.before")
    with TraceWriter(partial, header, anew=True) as writer:
        for rollouts, tokens, step in parts:
            writer.append(rollouts, tokens, step=step)
        if not writer.parts:
            raise ACPOError(f"{path}: no completion has a token; there is nothing to write")
    if path.exists():
        shutil.rmtree(before, ignore_errors=True)
        path.rename(before)
    partial.rename(path)
    shutil.rmtree(before, ignore_errors=True)


def has_begun(path: Path | str) -> bool:
    """Whether a folder holds a trace. One whose writer died before the first line does not."""
    try:
        with open(Path(path) / HEADER, "rb") as file:
            return file.readline().endswith(b"\n")
    except OSError:
        return False


def numbered(folder: Path) -> list[Path]:
    """The checkpoints of a training run's folder, whole or not, by step."""
    names = {own.name.removeprefix("checkpoint-"): own for own in folder.glob("checkpoint-*")}
    return [own for _, own in sorted((int(n), own) for n, own in names.items() if n.isdecimal())]


def run_state(folder: Path) -> Path | None:
    """The trainer's state of a finished run, else that of its newest checkpoint with one."""
    files = (own / RUN_STATE for own in (folder, *reversed(numbered(folder))))
    return next(filter(Path.is_file, files), None)


@dataclass(frozen=True)
class Trace:
    """A trace as it was when it was opened.

    Attributes:
        path: Its folder.
        header: What it is.
        parts: Its committed parts: each completion once, under the policy that sampled it or,
            where that is another, the one that scored it.
        later: Parts that score some of the same completions again, after updates on them.
    """

    path: Path
    header: dict[str, Any]
    parts: tuple[dict[str, Any], ...]
    later: tuple[dict[str, Any], ...] = ()

    @classmethod
    def open(cls, path: Path | str) -> "Trace":
        """Read a trace's header.

        Raises:
            ACPOError: There is no trace, or one of a newer version, or a damaged one.
        """
        path = Path(path)
        file = path / HEADER
        try:
            text = file.read_bytes()
        except OSError as error:
            raise ACPOError(
                f"{path} is not a trace ({error.strerror}: {HEADER}); `acpo trace` makes one"
            ) from error
        header, parts = _parse_header(file, text[: text.rfind(b"\n") + 1])
        first = tuple(part for part in parts if not part.get("update"))
        return cls(path, header, first, tuple(part for part in parts if part.get("update")))

    def of_step(self, step: int | None) -> "Trace":
        """What it holds of one training step; all of it for None.

        Raises:
            ACPOError: Nothing of that step.
        """
        if step is None:
            return self
        kept, later = (tuple(p for p in ps if p["step"] == step) for ps in (self.parts, self.later))
        if not kept:
            steps = sorted({part["step"] for part in self.parts})
            raise ACPOError(f"--step {step}: {self.path} has steps {', '.join(map(str, steps))}")
        return Trace(self.path, self.header, kept, later)

    def after_updates(self) -> dict[int, "Trace"]:
        """What was scored again, by the number of updates made on it."""
        numbers = sorted({part["update"] for part in self.later})
        return {
            number: Trace(
                self.path, self.header, tuple(p for p in self.later if p["update"] == number)
            )
            for number in numbers
        }

    @cached_property
    def columns(self) -> frozenset[str]:
        """Token columns that every part has."""
        schemas = [set(column_names(_token_file(self.path, part["part"]))) for part in self.parts]
        return frozenset(set.intersection(*schemas) if schemas else set()) & TOKEN_COLUMNS.keys()

    @cached_property
    def rollouts(self) -> pa.Table:
        """All completions, with every column of `ROLLOUT_COLUMNS`; absent ones are null."""
        tables = []
        for part in self.parts:
            file = _rollout_file(self.path, part["part"])
            table = read_table(file, list(ROLLOUT_COLUMNS), ROLLOUT_COLUMNS)
            lengths = table["tokens"].to_numpy()
            if table.num_rows != part["rollouts"] or lengths.sum() != part["tokens"]:
                raise ACPOError(f"{file} is not the part the header describes: it was changed")
            absent = any(table[name].null_count for name in REQUIRED)
            if absent or any((table[name].to_numpy() < 0).any() for name in COUNTS):
                raise ACPOError(f"{file}: {', '.join(REQUIRED)} must be there, and not below 0")
            tables.append(table)
        return pa.concat_tables(tables) if tables else rollout_table([])

    @cached_property
    def starts(self) -> np.ndarray:
        """`[rollouts + 1]`: completion i has the token rows `starts[i]` to `starts[i + 1]`."""
        return np.concatenate([[0], np.cumsum(self.rollouts["tokens"].to_numpy())]).astype(np.int64)

    def __len__(self) -> int:
        """Tokens in the trace."""
        return sum(part["tokens"] for part in self.parts)

    def require(self, *names: str) -> None:
        """Refuse a trace without these token columns, or without any token.

        Raises:
            ACPOError: naming what is missing and the command that makes it.
        """
        if not len(self):
            raise ACPOError(f"{self.path} is empty: it holds no token")
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise ACPOError(
                f"{self.path} has no {', '.join(missing)}: `acpo trace` writes traces that have"
            )

    def tokens(self, *names: str) -> dict[str, np.ndarray]:
        """Token columns as flat arrays; see `table` for those that are not numbers."""
        table = self.table(*names)
        return {name: table[name].to_numpy() for name in names}

    @cached_property
    def _read(self) -> dict[str, pa.ChunkedArray]:
        """Columns that were asked for: opening every part again costs more than keeping them."""
        return {}

    def table(self, *names: str) -> pa.Table:
        """Token columns of all completions; see `starts` for one completion's rows."""
        self.require(*names)
        missing = [name for name in dict.fromkeys(names) if name not in self._read]
        if missing:
            tables = []
            for part in self.parts:
                file = _token_file(self.path, part["part"])
                tables.append(read_table(file, missing, TOKEN_COLUMNS))
                if tables[-1].num_rows != part["tokens"]:
                    raise ACPOError(f"{file} is not the part the header describes: it was changed")
            found = pa.concat_tables(tables)
            self._read.update({name: found[name] for name in missing})
        return pa.table({name: self._read[name] for name in names})


def _parse_header(file: Path, text: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        try:
            row = json_value(line)
            if number == 1:
                is_ours = row["format"] == FORMAT and isinstance(row["version"], int)
            else:
                counts = [row[name] for name in ("part", "step", "rollouts", "tokens")]
                counts.append(row.get("update", 0))
                is_ours = all(type(count) is int and 0 <= count < 2**53 for count in counts)
        except (ValueError, KeyError, TypeError):
            is_ours = False
        if not is_ours:
            raise ACPOError(f"{file}:{number} is not a line of a trace's header")
        lines.append(row)
    if not lines:
        raise ACPOError(f"{file} is empty: the trace was cut off before it began; make it again")
    version = lines[0]["version"]
    if version > VERSION:
        raise ACPOError(f"{file}: version {version} is newer than {VERSION}: update acpo")
    return lines[0], lines[1:]


def _rollout_file(path: Path, number: int) -> Path:
    return path / f"rollouts-{number:05d}.parquet"


def _token_file(path: Path, number: int) -> Path:
    return path / f"tokens-{number:05d}.parquet"
