"""A trace as the page's blocks: completions grouped by prompt, columns as typed arrays.

A token's bytes need not be UTF-8: characters are split between tokens. A byte that is no text
becomes the code point U+DC00 + byte (Python's `surrogateescape`), which the page shows as a boxed
hex number. No valid text holds these code points.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from acpo.annotate.evidence import Place
from acpo.jsonl import plain
from acpo.records import Trace
from acpo.texts import shared_beginning
from acpo.viewer.shell import packed

NUMBERS: dict[str, tuple[type[np.generic], Any]] = {
    "token_id": (np.int32, -1),
    "is_mode": (np.uint8, True),
    **dict.fromkeys(
        ("logp", "old_logp", "log_pmax", "entropy", "delta", "credit", "advantage"),
        (np.float32, math.nan),
    ),
}
"""Columns of numbers that a page shows: their type there, and what stands for null."""
TOPS = ("top_ids", "top_logps", "top_pieces")
MOST_TOP = 10
"""Of the likeliest tokens; a trace may hold any number, and each weighs as much as a column."""
TEXT_ONLY = ("token_id", "piece")
FACTS = ("sample", "step", "reward", "verdict", "advantage", "truncated")

Columns = Mapping[str, np.ndarray]
"""Of one method, as long as the trace: `credit`, `advantage`, `update`."""


def prompt_groups(trace: Trace) -> list[list[int]]:
    """The completions of each prompt, at all steps, as rows of the trace.

    Prompts are in the order in which the trace first has them; completions by step and sample.
    """
    rows: dict[str, list[tuple[int, int, int]]] = {}
    columns = (trace.rollouts[name].to_pylist() for name in ("prompt_id", "step", "sample"))
    for row, (prompt_id, step, sample) in enumerate(zip(*columns, strict=True)):
        rows.setdefault(prompt_id, []).append((step, sample, row))
    return [[row for _, _, row in sorted(members)] for members in rows.values()]


class TracePayload:
    """Reads the columns of a trace that its pages show, once, and cuts them by completion."""

    def __init__(
        self,
        trace: Trace,
        methods: Mapping[str, Columns] | None = None,
        errors: Mapping[int, Place] | None = None,
        shown: Collection[str] = ("piece", *NUMBERS, *TOPS),
    ) -> None:
        self.methods = methods or {}
        self.errors = errors or {}
        self.rollouts = {
            name: trace.rollouts[name].to_pylist()
            for name in (*FACTS, "prompt_id", "prompt", "answer")
        }
        self.starts = trace.starts
        self._template = chat_template({p for p in self.rollouts["prompt"] if p is not None})
        needed = trace.columns | {"token_id"}  # without which no trace can be shown
        table = trace.table(*(name for name in shown if name in needed))
        self.table = {name: table[name] for name in table.column_names}
        self.numbers = {
            name: self.table[name].fill_null(blank).to_numpy().astype(kind)
            for name, (kind, blank) in NUMBERS.items()
            if name in self.table
        }

    def prompt(self, row: int) -> dict[str, Any]:
        """A completion's prompt: its own text, and the template around it; None without one."""
        prompt = self.rollouts["prompt"][row]
        if prompt is None:
            return {"before": "", "text": "", "after": "", "known": False}
        before, after = self._template
        if not (before or after):
            before, after = last_user_turn(prompt)
        text = prompt[len(before) : len(prompt) - len(after)]
        return {"before": before, "text": text, "after": after, "known": True}

    def group(self, rows: Sequence[int]) -> dict[str, Any]:
        """The block of one prompt; it needs no other."""
        vocabulary: dict[bytes, int] = {}
        completions = [self._completion(row, vocabulary) for row in rows]
        return {
            "prompt": self.prompt(rows[0]),
            "answer": self.rollouts["answer"][rows[0]],
            "completions": completions,
            "pieces": [piece_text(piece) for piece in vocabulary],
        }

    def _completion(self, row: int, vocabulary: dict[bytes, int]) -> dict[str, Any]:
        first, last = int(self.starts[row]), int(self.starts[row + 1])
        pieces = self._pieces(first, last)
        facts = {name: plain(self.rollouts[name][row]) for name in FACTS}
        place = self.errors.get(row)
        facts["error"] = place and {"span": place.span, "evidence": str(place.evidence)}
        cut = {name: packed(values[first:last]) for name, values in self.numbers.items()}
        methods = {
            method: {
                name: packed(values[first:last].astype(np.float32)) for name, values in c.items()
            }
            for method, c in self.methods.items()
        }
        return {
            "facts": facts,
            "length": last - first,
            "piece": packed(_numbered(pieces, vocabulary)),
            "joined": joined_characters(pieces),
            "columns": cut,
            "methods": methods,
            "top": self._top(first, last, vocabulary),
        }

    def _pieces(self, first: int, last: int) -> list[bytes]:
        ids = self.numbers["token_id"][first:last]
        pieces = self._cut("piece", first, last) if "piece" in self.table else [None] * len(ids)
        return [
            f"⟨{token}⟩".encode() if piece is None else piece
            for piece, token in zip(pieces, ids, strict=True)
        ]

    def _cut(self, name: str, first: int, last: int) -> list[Any]:
        return self.table[name].slice(first, last - first).to_pylist()

    def _top(self, first: int, last: int, vocabulary: dict[bytes, int]) -> dict[str, Any] | None:
        if not {"top_ids", "top_logps"} <= self.table.keys():
            return None
        cut = {name: self._cut(name, first, last) for name in TOPS if name in self.table}
        k = max((len(row) for row in cut["top_ids"] if row is not None), default=0)
        k = min(k, MOST_TOP)
        if not k:
            return None
        top = {
            "k": k,
            "id": packed(_rectangle(cut["top_ids"], k, -1, np.int32)),
            "logp": packed(_rectangle(cut["top_logps"], k, math.nan, np.float32)),
        }
        if "top_pieces" in cut:
            flat = [piece for row in cut["top_pieces"] for piece in _padded(row, k, b"")]
            top["piece"] = packed(_numbered(flat, vocabulary))
        return top


_BOUNDARY = "\n>]"
"""Where a template may end: after a line or a marker, not in the middle of a word."""
_USER_TURNS = {
    "<|im_start|>user\n": "<|im_end|>",
    "<|start_header_id|>user<|end_header_id|>\n\n": "<|eot_id|>",
    "<start_of_turn>user\n": "<end_of_turn>",
    "<|user|>\n": "<|",
    "[INST]": "[/INST]",
}
"""How chat templates open a user's turn, and close it."""


def chat_template(prompts: Collection[str]) -> tuple[str, str]:
    """What all prompts begin and end with, cut back to whole lines and markers."""
    if len(prompts) < 2:
        return "", ""
    before = shared_beginning(prompts)
    before = before[: max(before.rfind(mark) for mark in _BOUNDARY) + 1]
    room = min(map(len, prompts)) - len(before)
    after = shared_beginning(prompt[::-1] for prompt in prompts)[:room][::-1]
    starts = [place for mark in "\n<[" if (place := after.find(mark)) >= 0]
    return before, after[min(starts) :] if starts else ""


def last_user_turn(prompt: str) -> tuple[str, str]:
    """The template around a single prompt, where it is of a known kind."""
    for opening, closing in _USER_TURNS.items():
        before, opened, rest = prompt.rpartition(opening)
        _, closed, after = rest.partition(closing)
        if opened and closed:
            return before + opened, closed + after
    return "", ""


def _numbered(pieces: Sequence[bytes], vocabulary: dict[bytes, int]) -> np.ndarray:
    """The pieces as places in a vocabulary, which grows as they come."""
    found = [vocabulary.setdefault(piece, len(vocabulary)) for piece in pieces]
    return np.array(found, dtype=np.uint32)


def _padded(row: Sequence[Any] | None, k: int, blank: Any) -> list[Any]:
    values = [blank if value is None else value for value in row or ()][:k]
    return values + [blank] * (k - len(values))


def _rectangle(rows: Sequence[Any], k: int, blank: Any, dtype: Any) -> np.ndarray:
    return np.array([_padded(row, k, blank) for row in rows], dtype=dtype)


def piece_text(piece: bytes) -> str:
    """A token's bytes on their own."""
    return piece.decode("utf-8", "surrogateescape")


def joined_characters(pieces: Sequence[bytes]) -> dict[int, str]:
    """What to show for tokens that share a character, by position.

    The token with a character's first byte shows it; the others show their bytes.
    """
    joined: dict[int, str] = {}
    run: list[int] = []
    for position, piece in enumerate((*pieces, b"")):
        if _is_text(piece):
            if len(run) > 1:
                joined |= _join(run, pieces)
            run = []
        else:
            run.append(position)
    return joined


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _join(run: Sequence[int], pieces: Sequence[bytes]) -> Mapping[int, str]:
    data = b"".join(pieces[position] for position in run)
    owners = [position for position in run for _ in pieces[position]]
    shown = dict.fromkeys(run, "")
    shared: set[int] = set()
    at = 0
    for character in piece_text(data):  # or a byte that is part of none
        end = at + len(character.encode("utf-8", "surrogateescape"))
        shown[owners[at]] += character
        for byte in range(at + 1, end):
            if owners[byte] != owners[at]:
                shown[owners[byte]] += piece_text(data[byte : byte + 1])
                shared |= {owners[at], owners[byte]}
        at = end
    return {position: shown[position] for position in sorted(shared)}
