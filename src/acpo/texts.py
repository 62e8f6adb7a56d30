"""Texts from data, made fit to be written and shown, and tables of them."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path


def whole_characters(text: str) -> str:
    """Without halves of characters, which JSON can hold and no file or tokenizer takes."""
    return text.encode("utf-8", "replace").decode()


def shared_beginning(texts: Iterable[str]) -> str:
    """What all of them begin with."""
    return os.path.commonprefix([*texts])  # noqa: RUF071 (they are no paths)


def printable(text: str, keep: str = "") -> str:
    """With spaces for what a terminal would obey; characters in `keep` stay."""
    return "".join(c if c.isprintable() or c in keep else " " for c in text)


def one_line(text: str, limit: int = 2000) -> str:
    """Without line breaks and other control characters, and not endless."""
    text = printable(text)
    return text if len(text) <= limit else text[:limit] + " ..."


def csv_cell(text: str) -> str:
    """A name in one line that no spreadsheet takes for a formula."""
    formula = text.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{one_line(text)}" if formula else one_line(text)


def markdown_table(heads: Sequence[object], rows: Iterable[Iterable[object]]) -> list[str]:
    """A table in Markdown, line by line."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (heads, *rows)]
    return [lines[0], "|" + "---|" * len(heads), *lines[1:]]


def folder_name(model: str) -> str:
    """What a folder of this model's results is called."""
    named = model if model.strip("./") else Path(model).resolve().name  # `.` is no name
    return re.sub(r"[^\w.-]+", "_", named).strip("_.") or "model"
