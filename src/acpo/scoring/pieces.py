"""The bytes of a token, and the characters of a text they belong to.

A token need not be text: byte-level vocabularies split a character over several tokens, and a
model may write bytes that are no characters at all. So a token's piece is bytes, and its place in
the text is the characters those bytes are part of; tokens that share a character share its place.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from transformers.convert_slow_tokenizer import bytes_to_unicode

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\N{LOWER ONE EIGHTH BLOCK}"  # sentencepiece's space


class Placed(NamedTuple):
    """A text and where its tokens are in it."""

    text: str  # what the pieces say together, U+FFFD where they are not UTF-8
    starts: np.ndarray  # [N] characters of `text` each token belongs to
    ends: np.ndarray


class Pieces:
    """The pieces of the tokens of one transformers tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {i: str(t.content) for i, t in tokenizer.added_tokens_decoder.items()}
        marked = (i for i, t in tokenizer.added_tokens_decoder.items() if t.special)
        self._special = frozenset([*marked, *tokenizer.all_special_ids])
        self._known: dict[int, bytes] = {}
        self._convert = _converter(tokenizer)

    def of(self, ids: np.ndarray | Sequence[int]) -> np.ndarray:
        """The piece of each id, in an array of `bytes` of the same shape; empty for no token."""
        unique, where = np.unique(np.asarray(ids, dtype=np.int64), return_inverse=True)
        pieces = np.empty(len(unique), dtype=object)
        for number, token in enumerate(unique.tolist()):
            if token not in self._known:
                self._known[token] = self._piece(token)
            pieces[number] = self._known[token]
        return pieces[where].reshape(np.shape(ids))

    def place(self, ids: Sequence[int]) -> Placed:
        """The text of a completion; special tokens are between its characters."""
        pieces = self.of(ids)
        return place([b"" if i in self._special else p for i, p in zip(ids, pieces, strict=True)])

    def read(self, ids: Sequence[int]) -> str:
        """What the model reads: every token, special ones too."""
        return b"".join(self.of(ids)).decode("utf-8", "replace")

    def _piece(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode("utf-8", "replace")
        word = self._tokenizer.convert_ids_to_tokens(token)
        if word is None:  # models have more rows than their tokenizers have tokens
            return b""
        if self._convert is None:
            return bytes(self._tokenizer.decode([token]).encode("utf-8", "replace"))
        return self._convert(word)


def place(pieces: Sequence[bytes]) -> Placed:
    """Join pieces to a text and find each in it."""
    data = b"".join(pieces)
    text, character = _characters(data)
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    begins = ends - np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    character = np.append(character, len(text))
    starts = character[begins]
    last = np.where(ends > begins, character[np.maximum(ends - 1, 0)] + 1, starts)
    return Placed(text, starts.astype(np.int32), last.astype(np.int32))


def _characters(data: bytes) -> tuple[str, np.ndarray]:
    """The text of `data`, and the character each byte belongs to."""
    text = data.decode("utf-8", "replace")
    if REPLACEMENT not in text:
        begins = (np.frombuffer(data, dtype=np.uint8) & 0xC0) != 0x80
        return text, np.cumsum(begins) - 1
    lengths = []
    position = 0
    for character in text:
        length = len(character.encode())
        if character == REPLACEMENT and data[position : position + 3] != character.encode():
            length = _invalid_length(data[position : position + 4])
        lengths.append(length)
        position += length
    return text, np.repeat(np.arange(len(text)), lengths)


def _invalid_length(data: bytes) -> int:
    """How many of the first bytes one replacement character stands for."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.end
    raise AssertionError(f"{data!r} is valid UTF-8")


def _converter(tokenizer: Any) -> Callable[[str], bytes] | None:
    """How this vocabulary writes bytes, from the decoder that would join its tokens; None where
    only the tokenizer can say."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    parts = _parts(json.loads(backend.to_str())["decoder"])
    kinds = {part["type"] for part in parts}
    if "ByteLevel" in kinds:
        return _byte_level
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return _sentencepiece
    if not parts:  # joined by spaces
        return lambda word: f" {word}".encode()
    if kinds == {"Fuse"}:
        return lambda word: word.encode()
    if kinds == {"WordPiece"}:
        prefix = parts[0]["prefix"]
        return lambda word: (
            word.removeprefix(prefix) if word.startswith(prefix) else f" {word}"
        ).encode()
    return None


def _parts(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [part for inner in decoder["decoders"] for part in _parts(inner)]
    return [decoder]


_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}
"""From the characters that byte-level vocabularies write to the bytes they stand for."""


def _byte_level(word: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in word)
    except KeyError:
        return word.encode("utf-8", "replace")


def _sentencepiece(word: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(word)
    if byte is not None:
        return bytes([int(byte[1], 16)])
    return word.replace(_SPACE_MARK, " ").encode("utf-8", "replace")
