"""JSON from people, servers and files: values, rows of JSON Lines, and objects."""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from acpo.errors import ACPOError, reason

Row = dict[str, Any]


class WrittenNumber(float):
    """A number of more digits than a float has, whose text is the one that was written."""

    text: str

    def __str__(self) -> str:
        return self.text


def _real(text: str) -> float:
    value = float(text)
    if (len(text) <= 16 and 1e-290 < abs(value) < math.inf) or repr(value) == text:
        return value
    if value == 0 and not text.lower().partition("e")[0].strip("-.0"):
        return value
    if value and math.isfinite(value) and Decimal(text) == Decimal(repr(value)):
        return value
    written = WrittenNumber(value)
    written.text = text
    return written


def _whole(text: str) -> int | str:
    most = sys.get_int_max_str_digits()
    return text if 0 < most < len(text.lstrip("-")) else int(text)


def json_value(text: str | bytes, **options: Any) -> Any:
    """What a text says in JSON; a ValueError where that is nothing, or nested too deeply.

    No digit is lost: `str` of a number is the number that was written. Whole ones too long for
    Python to read stay text.
    """
    try:
        return json.loads(text, parse_float=_real, parse_int=_whole, **options)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def json_object(text: str | bytes) -> Row:
    """The object that a text says; a ValueError where it says anything else."""
    value = json_value(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a text file with their ends.

    Raises:
        ACPOError: The file cannot be read, or a line, which is named, is not UTF-8.
    """
    try:
        # Escaped, and found again line by line: decoding goes by blocks, and knows no lines.
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    line.encode()
                except UnicodeEncodeError as error:
                    byte = ord(line[error.start]) & 0xFF
                    raise ACPOError(
                        f"{path}:{number}: not UTF-8: byte 0x{byte:02x} at column "
                        f"{error.start + 1}; save the file as UTF-8"
                    ) from None
                yield line
    except OSError as error:
        raise ACPOError(f"{path}: {reason(error)}") from error


def read_jsonl(path: Path, most: int | None = None) -> list[Row]:
    """The rows of a JSONL file, or the first `most`.

    Raises:
        ACPOError: The file cannot be read, is empty, or a line is not a JSON object.
    """
    rows: list[Row] = []
    # Not splitlines: JSON strings may hold line separators other than the newline.
    for number, line in enumerate(text_lines(path), start=1):
        if line.strip():
            rows.append(_row(line.rstrip(), f"{path}:{number}"))
        if len(rows) == most:
            break
    if not rows:
        raise ACPOError(f"{path}: no rows; write one JSON object per line into it")
    return rows


def _row(line: str, where: str) -> Row:
    try:
        row = json_value(line, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ACPOError(
            f"{where}: not JSON: {error.msg} at column {error.colno}; repair the line, or remove it"
        ) from error
    except ValueError as error:
        raise ACPOError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ACPOError(f"{where}: {type(row).__name__}, not a JSON object")
    return row


def _once(pairs: list[tuple[str, Any]]) -> Row:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is given twice; keep one")
    return row


def as_written(value: Any) -> Any:
    """A value whose numbers of more digits than a float has are the texts that were written."""
    whole = [value]
    waiting: list[tuple[Any, Any]] = [(whole, 0)]
    while waiting:  # JSON may be nested deeper than functions may
        around, place = waiting.pop()
        own = around[place]
        if isinstance(own, WrittenNumber):
            around[place] = own.text
        elif isinstance(own, dict | list):
            around[place] = copy = own.copy()
            places = own if isinstance(own, dict) else range(len(own))
            waiting += ((copy, inside) for inside in places)
    return whole[0]


def plain(value: Any) -> Any:
    """A value as JSON has it, which knows no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row as one line of a JSONL file."""
    return json.dumps(row).encode() + b"\n"


def read_json(path: Path) -> Row:
    """The JSON object that a run left in a file, perhaps on another machine.

    Raises:
        ACPOError: The file cannot be read, or holds anything else.
    """
    try:
        return json_object(path.read_bytes())
    except OSError as error:
        raise ACPOError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ACPOError(f"{path} is damaged ({error}); remove it") from error


def read_if_json(path: Path) -> Row | None:
    """The JSON object in a file; None where none can be read."""
    try:
        return json_object(path.read_bytes())
    except (OSError, ValueError):
        return None
