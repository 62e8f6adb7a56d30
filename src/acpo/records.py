"""The one on-disk form of rollouts and their per-token statistics.

A trace is a folder:

    header.jsonl             line 1 says what the trace is; every further line commits one part
    rollouts-00000.parquet   one row per completion
    tokens-00000.parquet     one row per completion token, in the order of the completions

A part counts once its line in the header is whole, so a writer can be killed at any moment and go
on later. Token columns are read one by one, memory-mapped: a trace costs what is asked of it.
"""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from acpo.errors import ACPOError

FORMAT = "acpo-trace"
VERSION = 1
HEADER = "header.jsonl"

ROLLOUT_COLUMNS: dict[str, pa.DataType] = {
    "prompt_id": pa.string(),  # completions of one prompt share it
    "sample": pa.int32(),  # number of the completion among its prompt's
    "step": pa.int32(),  # optimizer step the policy had reached
    "prompt": pa.string(),
    "completion": pa.string(),
    "answer": pa.string(),  # gold
    "reward": pa.float64(),  # null: no verdict
    "verdict": pa.string(),
    "advantage": pa.float64(),
    "truncated": pa.bool_(),  # cut off at the length limit
    "tokens": pa.int32(),  # length in tokens; makes the link to the token rows
}
"""Columns of a completion. All but `prompt_id`, `sample`, `step` and `tokens` may be null."""

TOKEN_COLUMNS: dict[str, pa.DataType] = {
    "token_id": pa.int32(),
    "piece": pa.binary(),  # the token's own bytes, which need not be UTF-8
    "start": pa.int32(),  # characters of the completion the token belongs to
    "end": pa.int32(),
    "logp": pa.float32(),  # log-probability under the policy that was scored
    "old_logp": pa.float32(),  # under the policy that sampled it
    "log_pmax": pa.float32(),
    "mode_id": pa.int32(),
    "is_mode": pa.bool_(),
    "entropy": pa.float32(),  # nats
    "delta": pa.float32(),  # 1 - p_max
    "credit": pa.float32(),  # the multiplier c of the header's method
    "advantage": pa.float32(),  # of the token, after the method's shaping
    "top_ids": pa.list_(pa.int32()),  # the k likeliest tokens
    "top_logps": pa.list_(pa.float32()),
    "top_pieces": pa.list_(pa.binary()),
    # Sums over all tokens but the mode: what the closed forms of gradient geometry need.
    "tail_p2": pa.float64(),  # Σ p²
    "tail_p2_logp": pa.float64(),  # Σ p² log p
    "tail_p2_logp2": pa.float64(),  # Σ p² (log p)²
}
"""Columns of a token. A trace has `token_id` and those its header names."""

REQUIRED = ("prompt_id", "sample", "step", "tokens")
NESTED = ("piece", "top_ids", "top_logps", "top_pieces")


class TraceError(ACPOError):
    """A trace that is damaged, too new, or lacks what was asked of it."""


class TraceWriter:
    """Appends parts to a trace; each is on disk, whole, when `append` returns.

    Args:
        path: The folder; an existing trace is continued.
        header: What the trace is: `model`, `temperature`, `vocab_size`, `method`, ... An existing
            trace must have been made with the same.

    Raises:
        TraceError: The folder holds something else, a trace with another header, or one that
            another process writes to.
    """

    def __init__(self, path: Path | str, header: Mapping[str, Any]) -> None:
        self.path = Path(path)
        first = {"format": FORMAT, "version": VERSION, **header}
        self.header: dict[str, Any] = json.loads(json.dumps(first))
        if self.path.is_dir() and any(self.path.iterdir()) and not self._file_path.exists():
            raise TraceError(f"{self.path} holds other files: use a new folder for the trace")
        self.path.mkdir(parents=True, exist_ok=True)
        self._file = self._open()
        try:
            self.parts = self._resume()
        except BaseException:
            self._file.close()
            raise

    @property
    def _file_path(self) -> Path:
        return self.path / HEADER

    def _open(self) -> Any:
        file = open(self._file_path, "a+b", buffering=0)  # noqa: SIM115 (closed by `close`)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise TraceError(f"{self.path}: another process writes to it: wait for it") from error
        return file

    def append(
        self, rollouts: Sequence[Mapping[str, Any]], tokens: Mapping[str, Any], *, step: int = 0
    ) -> None:
        """Add completions.

        Args:
            rollouts: One mapping of `ROLLOUT_COLUMNS` per completion; `step` is filled in.
            tokens: Columns of `TOKEN_COLUMNS`, each as long as all completions together.
            step: The optimizer step of the policy.
        """
        rows: list[dict[str, Any]] = [{**row, "step": step} for row in rollouts]
        rollout_table = _table(rows, ROLLOUT_COLUMNS)
        token_table = _token_table(tokens)
        total = int(rollout_table["tokens"].to_numpy().sum())
        if total != token_table.num_rows:
            raise TraceError(
                f"tokens has {token_table.num_rows} rows where the completions have {total} tokens"
            )
        number = self.parts[-1]["part"] + 1 if self.parts else 0
        _write(rollout_table, _rollout_file(self.path, number))
        _write(token_table, _token_file(self.path, number))
        line = {"part": number, "step": step, "rollouts": len(rows), "tokens": total}
        self._write_line(line)
        self.parts.append(line)

    def drop_from(self, step: int) -> None:
        """Forget parts of `step` and later: a training run that resumes makes them again."""
        kept = [part for part in self.parts if part["step"] < step]
        if len(kept) == len(self.parts):
            return
        partial = self._file_path.with_suffix(".partial")
        with partial.open("wb") as file:
            file.write(b"".join(_line(row) for row in (self.header, *kept)))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._file_path)
        self._file.close()
        self._file = self._open()
        self.parts = kept

    def _resume(self) -> list[dict[str, Any]]:
        self._file.seek(0)
        text = self._file.read()
        whole = text.rfind(b"\n") + 1
        self._file.truncate(whole)
        if not whole:
            self._write_line(self.header)
            return []
        header, parts = _parse_header(self._file_path, text[:whole])
        for name in sorted(header.keys() | self.header.keys()):
            if header.get(name) != self.header.get(name):
                raise TraceError(
                    f"{self.path} was made with {name}={header.get(name)!r}, not "
                    f"{self.header.get(name)!r}: use another folder"
                )
        return parts

    def _write_line(self, line: Mapping[str, Any]) -> None:
        self._file.write(_line(line))
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Trace:
    """A trace as it was when it was opened.

    Attributes:
        path: Its folder.
        header: What it is.
        parts: Its committed parts.
    """

    path: Path
    header: dict[str, Any]
    parts: tuple[dict[str, Any], ...]

    @classmethod
    def open(cls, path: Path | str) -> "Trace":
        """Read a trace's header.

        Raises:
            TraceError: There is no trace, or one of a newer version, or a damaged one.
        """
        path = Path(path)
        file = path / HEADER
        try:
            text = file.read_bytes()
        except OSError as error:
            raise TraceError(
                f"{path} is not a trace ({error.strerror}: {HEADER}); `acpo trace` makes one"
            ) from error
        header, parts = _parse_header(file, text[: text.rfind(b"\n") + 1])
        return cls(path, header, tuple(parts))

    @cached_property
    def columns(self) -> frozenset[str]:
        """Token columns that every part has."""
        schemas = [set(_schema(_token_file(self.path, part["part"])).names) for part in self.parts]
        return frozenset(set.intersection(*schemas) if schemas else set()) & TOKEN_COLUMNS.keys()

    @cached_property
    def rollouts(self) -> pa.Table:
        """All completions, with every column of `ROLLOUT_COLUMNS`; absent ones are null."""
        tables = []
        for part in self.parts:
            file = _rollout_file(self.path, part["part"])
            table = _read(file, list(ROLLOUT_COLUMNS), ROLLOUT_COLUMNS)
            lengths = table["tokens"].to_numpy()
            if table.num_rows != part["rollouts"] or lengths.sum() != part["tokens"]:
                raise TraceError(f"{file} is not the part the header describes: it was changed")
            if (lengths < 0).any() or any(table[name].null_count for name in REQUIRED):
                raise TraceError(f"{file}: {', '.join(REQUIRED)} must be there and tokens >= 0")
            tables.append(table)
        return pa.concat_tables(tables) if tables else _table([], ROLLOUT_COLUMNS)

    @cached_property
    def starts(self) -> np.ndarray:
        """`[rollouts + 1]`: completion i has the token rows `starts[i]` to `starts[i + 1]`."""
        return np.concatenate([[0], np.cumsum(self.rollouts["tokens"].to_numpy())]).astype(np.int64)

    def __len__(self) -> int:
        """Tokens in the trace."""
        return sum(part["tokens"] for part in self.parts)

    def require(self, *names: str, command: str = "acpo trace") -> None:
        """Refuse a trace without these token columns, or without any token.

        Raises:
            TraceError: naming what is missing and the command that makes it.
        """
        if not len(self):
            raise TraceError(f"{self.path} is empty: it holds no token")
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise TraceError(
                f"{self.path} has no {', '.join(missing)}: `{command}` writes traces that have"
            )

    def tokens(self, *names: str) -> dict[str, np.ndarray]:
        """Token columns as flat arrays; see `table` for those that are not numbers."""
        table = self.table(*names)
        return {name: table[name].to_numpy() for name in names}

    def table(self, *names: str, rollouts: range | None = None) -> pa.Table:
        """Token columns of all completions, or of consecutive ones."""
        self.require(*names)
        tables: list[pa.Table] = []
        first, last = 0, len(self)
        if rollouts is not None:
            first, last = self.starts[rollouts.start], self.starts[rollouts.stop]
        offset = 0
        for part in self.parts:
            low, high = max(first - offset, 0), min(last - offset, part["tokens"])
            offset += part["tokens"]
            if low >= high and tables:
                continue
            file = _token_file(self.path, part["part"])
            table = _read(file, list(names), TOKEN_COLUMNS)
            if table.num_rows != part["tokens"]:
                raise TraceError(f"{file} is not the part the header describes: it was changed")
            tables.append(table.slice(low, max(high - low, 0)))
        return pa.concat_tables(tables)


def _parse_header(file: Path, text: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
            if number == 1:
                is_ours = row["format"] == FORMAT and isinstance(row["version"], int)
            else:
                counts = [row[name] for name in ("part", "step", "rollouts", "tokens")]
                is_ours = all(type(count) is int and count >= 0 for count in counts)
        except (ValueError, KeyError, TypeError, RecursionError):
            is_ours = False
        if not is_ours:
            raise TraceError(f"{file}:{number} is not a line of a trace's header")
        lines.append(row)
    if not lines:
        raise TraceError(f"{file} is empty: the trace was cut off before it began")
    version = lines[0]["version"]
    if version > VERSION:
        raise TraceError(f"{file}: version {version} is newer than {VERSION}: update acpo")
    return lines[0], lines[1:]


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"


def _rollout_file(path: Path, number: int) -> Path:
    return path / f"rollouts-{number:05d}.parquet"


def _token_file(path: Path, number: int) -> Path:
    return path / f"tokens-{number:05d}.parquet"


def _table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, pa.DataType]) -> pa.Table:
    unknown = sorted({name for row in rows for name in row} - columns.keys())
    if unknown:
        raise TraceError(f"completions have {', '.join(unknown)}, which a trace has no column for")
    try:
        table = pa.Table.from_pylist(list(rows), schema=pa.schema(list(columns.items())))
    except (pa.ArrowException, TypeError) as error:
        raise TraceError(f"a completion does not fit the trace: {error}") from error
    absent = [name for name in REQUIRED if table[name].null_count]
    if absent:
        raise TraceError(f"a completion has no {', '.join(absent)}")
    return table


def _token_table(tokens: Mapping[str, Any]) -> pa.Table:
    unknown = sorted(tokens.keys() - TOKEN_COLUMNS.keys())
    if unknown or "token_id" not in tokens:
        raise TraceError(f"token columns {', '.join(unknown) or '(no token_id)'} are not a trace's")
    try:
        arrays = {name: _array(name, values) for name, values in tokens.items()}
        return pa.table(arrays)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise TraceError(f"token columns do not fit the trace: {error}") from error


def _array(name: str, values: Any) -> pa.Array:
    kind = TOKEN_COLUMNS[name]
    if isinstance(values, np.ndarray) and values.ndim == 2:
        flat = pa.array(values.ravel(), kind.value_type)
        ends = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
        return pa.ListArray.from_arrays(ends, flat, type=kind)
    return pa.array(values, kind)


def _write(table: pa.Table, file: Path) -> None:
    """Uncompressed where numbers are: they are read by memory map."""
    words = [
        field.name for field in table.schema if field.name in NESTED or field.type == pa.string()
    ]
    partial = file.with_suffix(".partial")
    with partial.open("wb") as stream:
        pq.write_table(
            table,
            stream,
            use_dictionary=[_leaf(table, name) for name in words],
            compression={_leaf(table, name): "zstd" for name in words} or "none",
        )
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)


def _leaf(table: pa.Table, name: str) -> str:
    """Parquet's name of a column's values."""
    return f"{name}.list.element" if pa.types.is_list(table.schema.field(name).type) else name


def _schema(file: Path) -> pa.Schema:
    try:
        return pq.read_schema(file)
    except (OSError, pa.ArrowException) as error:
        raise TraceError(f"{file} cannot be read ({error}): the trace is damaged") from error


def _read(file: Path, names: list[str], columns: Mapping[str, pa.DataType]) -> pa.Table:
    present = _schema(file).names
    schema = pa.schema([(name, columns[name]) for name in names if name in present])
    try:
        table = pq.read_table(file, columns=schema.names, memory_map=True, partitioning=None)
        table = table.select(schema.names).cast(schema)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise TraceError(f"{file} cannot be read ({error}): the trace is damaged") from error
    for name in names:
        if name not in present:
            table = table.append_column(name, pa.nulls(table.num_rows, columns[name]))
    return table.select(names)
