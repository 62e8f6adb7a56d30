"""Texts from data, made fit to be written and shown."""


def whole_characters(text: str) -> str:
    """Without halves of characters, which JSON can hold and no file or tokenizer takes."""
    return text.encode("utf-8", "replace").decode()


def printable(text: str, keep: str = "") -> str:
    """With spaces for what a terminal would obey; characters in `keep` stay."""
    return "".join(c if c.isprintable() or c in keep else " " for c in text)
