"""The columns of a trace, as tables and as Parquet files."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from acpo.errors import ACPOError, writing
from acpo.linefile import flush_path
from acpo.texts import whole_characters

ROLLOUT_COLUMNS: dict[str, pa.DataType] = {
    "prompt_id": pa.string(),  # completions of one prompt share it
    "sample": pa.int32(),  # number of the completion among its prompt's
    "step": pa.int32(),  # optimizer step the policy had reached
    "update": pa.int32(),  # updates made on this rollout since; null and 0: as it was sampled
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

COUNTS = ("sample", "step", "tokens")
REQUIRED = ("prompt_id", *COUNTS)
NESTED = ("piece", "top_ids", "top_logps", "top_pieces")


def rollout_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Completions as a table."""
    columns = ROLLOUT_COLUMNS
    unknown = sorted({name for row in rows for name in row} - columns.keys())
    if unknown:
        raise ACPOError(f"completions have {', '.join(unknown)}, which a trace has no column for")
    try:
        texts = [{name: _text(value) for name, value in row.items()} for row in rows]
        table = pa.Table.from_pylist(texts, schema=pa.schema(list(columns.items())))
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise ACPOError(f"a completion does not fit the trace: {error}") from error
    absent = [name for name in REQUIRED if table[name].null_count]
    if absent:
        raise ACPOError(f"a completion has no {', '.join(absent)}")
    for name in COUNTS:
        if (table[name].to_numpy() < 0).any():
            raise ACPOError(f"a completion has {name} below 0")
    return table


def _text(value: Any) -> Any:
    return whole_characters(value) if isinstance(value, str) else value


def token_table(tokens: Mapping[str, Any]) -> pa.Table:
    """Token columns as a table."""
    unknown = sorted(tokens.keys() - TOKEN_COLUMNS.keys())
    if unknown or "token_id" not in tokens:
        raise ACPOError(f"token columns {', '.join(unknown) or '(no token_id)'} are not a trace's")
    try:
        arrays = {name: _array(name, values) for name, values in tokens.items()}
        return pa.table(arrays)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ACPOError(f"token columns do not fit the trace: {error}") from error


def _array(name: str, values: Any) -> pa.Array:
    kind = TOKEN_COLUMNS[name]
    if isinstance(values, np.ndarray) and values.ndim == 2:
        flat = pa.array(values.ravel(), kind.value_type)
        ends = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
        return pa.ListArray.from_arrays(ends, flat, type=kind)
    return pa.array(values, kind)


def write_table(table: pa.Table, file: Path) -> None:
    """Write a file, all of it or none. Uncompressed where numbers are: they are memory-mapped."""
    words = [
        field.name for field in table.schema if field.name in NESTED or field.type == pa.string()
    ]
    partial = file.with_suffix(".partial")
    with writing(file), partial.open("wb") as stream:
        pq.write_table(
            table,
            stream,
            use_dictionary=[_leaf(table, name) for name in words],
            compression={_leaf(table, name): "zstd" for name in words} or "none",
        )
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)
    flush_path(file.parent)


def _leaf(table: pa.Table, name: str) -> str:
    """Parquet's name of a column's values."""
    return f"{name}.list.element" if pa.types.is_list(table.schema.field(name).type) else name


def _open(file: Path) -> pq.ParquetFile:
    """One file by itself: a data set's reader takes many times as long to open one."""
    try:
        return pq.ParquetFile(file, memory_map=True)
    except (OSError, pa.ArrowException) as error:
        raise ACPOError(f"{file} cannot be read ({error}): the trace is damaged") from error


def column_names(file: Path) -> list[str]:
    """The columns of a file."""
    with _open(file) as parquet:
        return list(parquet.schema_arrow.names)


def read_table(file: Path, names: list[str], columns: Mapping[str, pa.DataType]) -> pa.Table:
    """Columns of a file; absent ones are null, and text that is not UTF-8 is refused."""
    with _open(file) as parquet:
        present = set(parquet.schema_arrow.names)
        schema = pa.schema([(name, columns[name]) for name in names if name in present])
        try:
            table = parquet.read(columns=schema.names, use_threads=False)
            table = table.select(schema.names).cast(schema)
            for name in schema.names:
                if schema.field(name).type == pa.string():
                    table[name].validate(full=True)
        except (OSError, pa.ArrowException, KeyError) as error:
            raise ACPOError(f"{file} cannot be read ({error}): the trace is damaged") from error
    for name in names:
        if name not in present:
            table = table.append_column(name, pa.nulls(table.num_rows, columns[name]))
    return table.select(names)
