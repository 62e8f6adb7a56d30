"""Files of JSON: rows of JSON Lines, and objects."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acpo.errors import ACPOError

Row = dict[str, Any]


def read_jsonl(path: Path) -> list[Row]:
    """The rows of a JSONL file.

    Raises:
        ACPOError: The file cannot be read, is empty, or a line is not a JSON object.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ACPOError(f"{path}: {error}") from error
    rows = []
    # Not splitlines: JSON strings may hold line separators other than the newline.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ACPOError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ACPOError(f"{path}:{number}: {type(row).__name__}, not a JSON object")
        rows.append(row)
    if not rows:
        raise ACPOError(f"{path}: no rows")
    return rows


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row as one line of a JSONL file."""
    return json.dumps(row).encode() + b"\n"


def read_json(path: Path) -> Row:
    """The JSON object that a run left in a file, perhaps on another machine.

    Raises:
        ACPOError: The file cannot be read, or holds anything else.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ACPOError(f"{path} is damaged ({error}); remove it") from error
    if not isinstance(content, dict):
        raise ACPOError(f"{path} is damaged (not a JSON object); remove it")
    return content
