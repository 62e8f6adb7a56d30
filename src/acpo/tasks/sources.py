"""Rows from where they lie: a file, a data set on the hub, or a pinned file on GitHub."""

import csv
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from acpo.errors import ACPOError
from acpo.jsonl import json_value, read_jsonl, text_lines
from acpo.linefile import write_whole
from acpo.tasks.task import Pinned, Row

csv.field_size_limit(sys.maxsize)  # 131,072 characters, where nobody says otherwise
FORMATS = (".jsonl", ".json", ".parquet", ".csv")
_DOWNLOAD_SECONDS = 60.0


def is_file(source: str) -> bool:
    """Whether a source is a file, there or not, and no hub id."""
    return Path(source).suffix in FORMATS


def read_rows(
    source: str, *, config: str | None = None, split: str = "train", most: int | None = None
) -> Sequence[Row]:
    """Every row of a file of `FORMATS`, or of a configuration and split of a hub data set.

    `most` says how many rows of a file are enough.
    """
    path = Path(source)
    rows: Sequence[Row]
    if is_file(source):
        rows = _read_file(path, most)
    elif path.exists():
        raise ACPOError(f"data={source!r} must end in one of {', '.join(FORMATS)}")
    else:
        rows = _read_hub(source, config, split)
    if not len(rows):
        raise ACPOError(f"data={source!r} holds no rows; a task needs at least one problem")
    return rows


def _read_file(path: Path, most: int | None) -> list[Row]:
    if not path.is_file():
        raise ACPOError(f"data={str(path)!r} is not a file; check the path, or give a hub id")
    if path.suffix == ".jsonl":
        return list(read_jsonl(path, most))
    if path.suffix == ".json":
        return _read_json(path)
    try:
        if path.suffix == ".csv":
            return _read_csv(path, most)
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            batches = file.iter_batches(most or 65_536)
            return list(islice((row for batch in batches for row in batch.to_pylist()), most))
    except ACPOError:
        raise
    except (ValueError, csv.Error) as error:  # pyarrow's are ValueErrors
        raise ACPOError(
            f"data={str(path)!r} cannot be read as {path.suffix[1:]}: {error}"
        ) from error


def _read_csv(path: Path, most: int | None) -> list[Row]:
    """Every cell as the text it is: a gold answer of 12:30 or 007 is no time and no number."""
    rows: list[Row] = list(islice(csv.DictReader(text_lines(path), strict=True), most))
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise ValueError(f"row {number} has not as many cells as there are columns")
    return rows


def _read_json(path: Path) -> list[Row]:
    try:
        rows = json_value("".join(text_lines(path)))
    except ACPOError:
        raise
    except ValueError as error:
        raise ACPOError(f"data={str(path)!r} is not JSON: {error}") from error
    if not isinstance(rows, list):
        raise ACPOError(f"data={str(path)!r} must hold a list of rows, not a {type(rows).__name__}")
    return mappings(rows, f"data={str(path)!r}")


def mappings(rows: Iterable[Any], where: str) -> list[Row]:
    """The rows, each of which has to have columns."""
    rows = list(rows)
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise ACPOError(f"{where}, row {number}: expected an object, found {row!r}")
    return rows


def _read_hub(source: str, config: str | None, split: str) -> Sequence[Row]:
    """The rows, left on disk: DAPO-Math-17k comes a hundred times over, 1.8 million of them."""
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        return datasets.load_dataset(source, name=config, split=split)
    except (OSError, ValueError, RuntimeError, ImportError, DatasetsError) as error:
        raise ACPOError(
            f"data={source!r} is neither a file here nor a data set the hub gives: {error}"
        ) from error


def column(row: Row, name: str) -> Any:
    """The value at a column; dots reach into nested objects (`reward_model.ground_truth`).

    Raises:
        KeyError: when the row has no such column.
    """
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise KeyError(name)
        value = value[part]
    return value


def has_column(row: Row, name: str) -> bool:
    """Whether a row has a column, nested or not."""
    try:
        column(row, name)
    except KeyError:
        return False
    return True


def read_pinned(name: str, source: Pinned, folder: Path | None) -> list[Row]:
    """The rows of a published benchmark: `NAME.jsonl` of a folder, or fetched once per user."""
    if folder is not None:
        return read_kept(name, folder)
    kept = _downloaded(name, source)
    with kept.open(encoding="utf-8") as file:
        first = next((line for line in file if line.strip()), "")
    return _read_json(kept) if first.lstrip().startswith("[") else list(read_jsonl(kept))


def read_kept(name: str, folder: Path) -> list[Row]:
    """The rows of `NAME.jsonl`, or `NAME_test.jsonl`, of a folder."""
    for stem in (name, f"{name}_test"):
        if (folder / f"{stem}.jsonl").is_file():
            return list(read_jsonl(folder / f"{stem}.jsonl"))
    raise ACPOError(f"--data-dir {folder}: no {name}.jsonl in it")


def _downloaded(name: str, source: Pinned) -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "acpo"
    kept = home / f"{name}-{source.commit[:12]}"
    if kept.is_file():
        return kept
    try:
        with urllib.request.urlopen(source.url, timeout=_DOWNLOAD_SECONDS) as reply:
            text: str = reply.read().decode("utf-8")
    except (urllib.error.URLError, OSError, UnicodeDecodeError) as error:
        raise ACPOError(
            f"{name}: cannot fetch {source.url} ({error}). Without a network, put {name}.jsonl "
            "into a folder and pass it as --data-dir"
        ) from error
    write_whole(kept, text)
    return kept
