"""An annotator's text to a place in the completion, or to the reason why there is none."""

import json
import re
from typing import Any

from acpo.annotate.outcomes import Answer, Status
from acpo.annotate.pairs import Chars

MAX_QUOTE = 4000
MAX_RATIONALE = 2000
"""Characters; a longer rationale is cut, a longer quote is none."""

_FENCE = "```"


def read_reply(text: str, completion: str) -> Answer:
    """What a reply says about a completion.

    The whole reply has to be the one object that was asked for. An object somewhere inside other
    text is not looked for: that text may quote the completion, which may hold an object of its own.
    """
    try:
        value = json.loads(_without_code_fence(text))
    except (ValueError, RecursionError) as error:
        return Answer(Status.MALFORMED, detail=f"{error}: {text[:200]!r}"[:300])
    problem = _problem(value)
    if problem:
        return Answer(Status.MALFORMED, detail=f"{problem}: {text[:200]!r}"[:300])
    rationale = value["rationale"][:MAX_RATIONALE].encode(errors="replace").decode()
    if not value["found"]:
        return Answer(Status.NOTHING, rationale=rationale)
    place = locate(completion, value["line"], value["quote"])
    if isinstance(place, Status):
        return Answer(
            place, rationale=rationale, detail=f"line {value['line']}: {value['quote'][:200]!r}"
        )
    return Answer(Status.LOCATED, place, rationale)


def locate(text: str, line: int, quote: str) -> Chars | Status:
    """The one place in a line of `text`, counted from 1, where `quote` begins.

    White space in the quote stands for any white space: models break lines anew.
    """
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return Status.OUT_OF_RANGE
    words = quote.split()
    if not words or len(quote) > MAX_QUOTE:
        return Status.NOT_FOUND
    start = sum(len(before) + 1 for before in lines[: line - 1])
    end = start + len(lines[line - 1])
    pattern = re.compile(r"\s+".join(map(re.escape, words)))
    match = pattern.search(text, start)
    if match is None or match.start() >= end:
        return Status.NOT_FOUND
    again = pattern.search(text, match.start() + 1)
    if again is not None and again.start() < end:
        return Status.AMBIGUOUS
    return Chars(*match.span())


def _without_code_fence(text: str) -> str:
    """By hand: a pattern that skips white space tries every way to divide a megabyte of it."""
    opening, newline, inside = text.strip().partition("\n")
    fenced = opening.rstrip() in (_FENCE, f"{_FENCE}json") and inside.endswith(_FENCE)
    return inside.removesuffix(_FENCE) if newline and fenced else text


def _problem(value: Any) -> str | None:
    """What of the form is not as asked."""
    kinds = {"found": bool, "line": int, "quote": str, "rationale": str}
    if not isinstance(value, dict):
        return "not an object"
    if value.keys() != kinds.keys():
        return f"fields {', '.join(sorted(map(str, value)))[:100]}"
    wrong = [name for name, kind in kinds.items() if type(value[name]) is not kind]
    return f"{wrong[0]} is of the wrong kind" if wrong else None
