"""The file of annotations: what was proposed and what a person said, line after line.

    line 1   which trace it belongs to
    others   an annotator, one of its proposals, or a person's decision

Nothing is ever changed: a later line replaces an earlier one, which stays to be read. A writer may
be killed at any moment; half a line does not count.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from acpo.annotate.annotators import Status
from acpo.annotate.pairs import Selection, Span
from acpo.errors import ACPOError, reason
from acpo.jsonl import json_line, json_value
from acpo.linefile import Closing, LineFile
from acpo.records import Trace

FORMAT = "acpo-annotations"
VERSION = 1
MAX_TEXT = 4000
"""Characters of a name, a rationale or a note."""


class Item(NamedTuple):
    """What is to be placed: the first error of a wrong completion, or, with `right`, what
    corresponds to it in a right one."""

    prompt_id: str
    wrong: int
    right: int | None = None


class Proposal(NamedTuple):
    """What one annotator said about one item."""

    annotator: str
    status: Status
    span: Span | None
    rationale: str
    detail: str
    when: str


class Decision(StrEnum):
    """What a person may say."""

    ACCEPT = "accept"
    MOVE = "move"
    REJECT = "reject"


class Review(NamedTuple):
    """What a person said about one item."""

    decision: Decision
    span: Span | None  # the place that counts from now on; None for a rejection
    annotator: str | None  # whose proposal was accepted; None otherwise
    proposed: dict[str, Span]  # every place proposed when the person decided, by annotator
    reviewer: str
    note: str  # why, if they said
    when: str  # the time the page gave
    applied: str  # the time it was merged
    # For a corresponding place, the error it was decided beside; it corresponds to no other.
    error: Span | None = None


@dataclass
class Record:
    """All that was said about one item."""

    length: int  # tokens of the completion the place is in
    proposals: dict[str, Proposal] = field(default_factory=dict)  # by annotator, the latest of each
    reviews: list[Review] = field(default_factory=list)  # by time of merging

    @property
    def proposed(self) -> dict[str, Span]:
        """Places proposed, by annotator."""
        return {name: p.span for name, p in self.proposals.items() if p.span is not None}

    @property
    def review(self) -> Review | None:
        """The decision that counts."""
        return self.reviews[-1] if self.reviews else None


@dataclass
class Annotations:
    """A file of annotations as it was when it was read."""

    path: Path
    header: dict[str, Any]
    annotators: dict[str, dict[str, Any]] = field(default_factory=dict)
    items: dict[Item, Record] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | str) -> "Annotations":
        """Read a file; half a last line is left out."""
        path = Path(path)
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ACPOError(
                f"{path}: {error.strerror}; `acpo annotate propose` makes one"
            ) from error
        return parse(path, text[: text.rfind(b"\n") + 1])

    def require(self, selection: Selection) -> None:
        """Refuse a trace these annotations are not about, and places outside its completions."""
        if self.header["trace"] != selection.fingerprint:
            raise ACPOError(
                f"{self.path} belongs to another trace, or the trace has changed since: give the "
                "trace it was made from, or propose anew into another file"
            )
        for wrong, right in selection.pairs:
            error = Item(wrong.prompt_id, wrong.sample)
            for item, one in ((error, wrong), (error._replace(right=right.sample), right)):
                record = self.items.get(item)
                if record is not None and record.length != one.length:
                    raise ACPOError(
                        f"{self.path}: {item} has {record.length} tokens there and {one.length} in "
                        "the trace: the file was changed; propose anew into another file"
                    )

    def require_step(self, trace: Trace) -> None:
        """Refuse a trace that does not hold the step these annotations are of."""
        steps = sorted({part["step"] for part in trace.parts})
        if self.step not in steps:
            raise ACPOError(
                f"the annotations are of step {self.step}, and {trace.path} is looked at in step "
                f"{', '.join(map(str, steps))}"
            )

    @property
    def step(self) -> int:
        """The optimizer step of the completions."""
        return int(self.header["step"])

    def error_of(self, item: Item) -> "Record | None":
        """The record of the error that a corresponding place belongs to."""
        return self.items.get(item._replace(right=None)) if item.right is not None else None

    def waits(self, item: Item) -> bool:
        """Whether a person has still to decide: nothing corresponds to a rejected error, and a
        place decided beside one error does not count beside another."""
        review, error = self.items[item].review, self.error_of(item)
        decided = error.review if error else None
        if error is None or decided is None:
            return review is None
        if decided.span is None:
            return False
        return review is None or review.error != decided.span


class AnnotationWriter(Closing):
    """Appends to a file of annotations; a line is with the system when a method returns.

    An existing file is continued: one about `selection`, or whatever is there without one.
    """

    def __init__(self, path: Path, selection: Selection | None = None) -> None:
        first = b""
        if selection is None:
            Annotations.read(path)  # names the command that makes one
        else:
            about = {"trace": selection.fingerprint, "step": selection.step}
            first = json_line({"format": FORMAT, "version": VERSION, **about})

        def take(text: bytes) -> Annotations:
            annotations = parse(path, text)
            if selection is not None:
                annotations.require(selection)
            return annotations

        self._lines = LineFile(path)
        self.annotations = self._lines.resume(first, take)

    def add_annotator(self, name: str, settings: Mapping[str, Any]) -> None:
        """Introduce an annotator; one of the same name must be the same."""
        kept: dict[str, Any] = json.loads(json.dumps(dict(settings)))
        known = self.annotations.annotators.get(name)
        if known is None:
            self._write({"kind": "annotator", "name": name, "settings": kept})
            self.annotations.annotators[name] = kept
        elif known != kept:
            raise ACPOError(
                f"{self.annotations.path}: annotator {name!r} was {known}, now it is {kept}: "
                "give the new one another name"
            )

    def add_proposal(self, item: Item, length: int, proposal: Proposal) -> None:
        """Keep what an annotator said."""
        line = {**item._asdict(), "length": length, **proposal._asdict()}
        self._write({"kind": "proposal", **line})
        record = self.annotations.items.setdefault(item, Record(length))
        record.proposals[proposal.annotator] = proposal

    def add_reviews(self, reviews: Sequence[tuple[Item, Review]]) -> None:
        """Keep what a person said: all of it, or none."""
        self._write(*({"kind": "review", **i._asdict(), **r._asdict()} for i, r in reviews))
        for item, review in reviews:
            self.annotations.items[item].reviews.append(review)

    def _write(self, *rows: Mapping[str, Any]) -> None:
        self._lines.append(b"".join(map(json_line, rows)))

    def close(self) -> None:
        self._lines.close()


def parse(path: Path, text: bytes) -> Annotations:
    """Annotations from whole lines."""
    annotations: Annotations | None = None
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        try:
            row = json_value(line)
            if annotations is None:
                annotations = Annotations(path, _header(path, row))
            else:
                _take(annotations, row)
        except ACPOError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ACPOError(
                f"{path}:{number} is not a line of annotations ({reason(error)}): give a file "
                "that `acpo annotate propose` made"
            ) from error
    if annotations is None:
        raise ACPOError(f"{path} is empty: it was cut off before it began")
    return annotations


def _header(path: Path, row: dict[str, Any]) -> dict[str, Any]:
    if row["format"] != FORMAT or type(row["version"]) is not int:
        raise ValueError("format")
    if row["version"] > VERSION:
        raise ACPOError(f"{path}: version {row['version']} is newer than {VERSION}: update acpo")
    if type(row["trace"]) is not str or type(row["step"]) is not int:
        raise ValueError("trace or step")
    return row


def _take(annotations: Annotations, row: dict[str, Any]) -> None:
    if row["kind"] == "annotator":
        name = text_in(row["name"], "name")
        if not name.isprintable():  # it is shown in terminals, which obey other characters
            raise ValueError(f"name {name!r:.50}")
        annotations.annotators[name] = dict(row["settings"])
        return
    right = None if row["right"] is None else _whole(row["right"])
    item = Item(text_in(row["prompt_id"], "prompt_id", math.inf), _whole(row["wrong"]), right)
    if row["kind"] == "proposal":
        length = _whole(row["length"])
        record = annotations.items.setdefault(item, Record(length))
        if record.length != length or row["annotator"] not in annotations.annotators:
            raise ValueError("length or annotator")
        record.proposals[row["annotator"]] = Proposal(
            row["annotator"],
            Status(row["status"]),
            span_in(row["span"], length),
            *(text_in(row[name], name) for name in ("rationale", "detail", "when")),
        )
    elif row["kind"] == "review":
        record = annotations.items[item]
        decision, span = Decision(row["decision"]), span_in(row["span"], record.length)
        if (span is None) != (decision is Decision.REJECT):
            raise ValueError("span")
        said = ("reviewer", "note", "when", "applied")
        record.reviews.append(
            Review(
                decision,
                span,
                None if row["annotator"] is None else text_in(row["annotator"], "annotator"),
                {text_in(name, "proposed"): _some_span(x) for name, x in row["proposed"].items()},
                **{name: text_in(row[name], name) for name in said},
                error=None if row["error"] is None else _some_span(row["error"]),
            )
        )
    else:
        raise ValueError(row["kind"])


def span_in(value: Any, length: int) -> Span | None:
    """A span from two numbers, or None from None; a ValueError where it leaves `length` tokens."""
    if value is None:
        return None
    span = _some_span(value)
    if not 0 <= span.first < span.end <= length:
        raise ValueError(f"tokens {span.first} to {span.end} are not within {length}")
    return span


def _some_span(value: Any) -> Span:
    if type(value) is not list or len(value) != 2:
        raise ValueError("a span is a list of two numbers")
    return Span(_whole(value[0]), _whole(value[1]))


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.50} is not a whole number")
    return value


def text_in(value: Any, name: str, limit: float = MAX_TEXT) -> str:
    """A text, not too long; a ValueError that names it otherwise."""
    if type(value) is not str:
        raise ValueError(f"{name}={value!r:.50} is not a text")
    if len(value) > limit:
        raise ValueError(f"{name}={value!r:.50} is longer than {limit} characters")
    try:
        value.encode()  # JSON can hold half a character, which no page and no terminal can
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}={value!r:.50}: {error.reason}") from error
    return value
