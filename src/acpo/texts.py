"""Texts from data, made fit to be written and shown."""

import os
from collections.abc import Iterable


def whole_characters(text: str) -> str:
    """Without halves of characters, which JSON can hold and no file or tokenizer takes."""
    return text.encode("utf-8", "replace").decode()


def shared_beginning(texts: Iterable[str]) -> str:
    """What all of them begin with."""
    return os.path.commonprefix([*texts])  # noqa: RUF071 (they are no paths)


def printable(text: str, keep: str = "") -> str:
    """With spaces for what a terminal would obey; characters in `keep` stay."""
    return "".join(c if c.isprintable() or c in keep else " " for c in text)
