"""Decisions exported from a review page, checked and merged. The file may come from anybody."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from acpo.annotate.annotations import (
    Annotations,
    AnnotationWriter,
    Decision,
    Item,
    Record,
    Review,
    span_in,
    text_in,
)
from acpo.errors import ACPOError, reason
from acpo.jsonl import json_value

FORMAT = "acpo-review"
VERSION = 2
MAX_BYTES = 64 << 20
MAX_NAME = 200

_FIELDS = {"format", "version", "trace", "step", "reviewer", "exported", "decisions"}
_DECISION_FIELDS = {
    *("prompt_id", "wrong", "right", "decision", "span"),
    *("annotator", "error", "proposed", "note", "when"),
}


class Merged(NamedTuple):
    """What became of the decisions of a file."""

    accepted: int
    moved: int
    rejected: int
    replaced: int  # of those, decisions on items that had one
    unchanged: int  # decisions that had been merged before, or are older than the one that counts
    undecided: int  # items nobody has decided yet

    def sentence(self, path: Path) -> str:
        """The same for a person."""
        return (
            f"{self.accepted} accepted, {self.moved} moved, {self.rejected} rejected; "
            f"{self.replaced} of these replace an earlier decision, {self.unchanged} were known or "
            "made before the one that counts. "
            f"{self.undecided} items of {path} wait for a person"
        )


def apply(path: Path, exported: Path) -> Merged:
    """Merge what the review page exported into a file of annotations: all of it, or nothing."""
    with AnnotationWriter(path) as writer:
        items = writer.annotations.items
        merged, unchanged = read_decisions(exported, writer.annotations)
        replaced = sum(items[item].review is not None for item in merged)
        writer.add_reviews(list(merged.items()))
        undecided = sum(map(writer.annotations.waits, items))
    counts = Counter(review.decision for review in merged.values())
    accepted, moved, rejected = (counts[decision] for decision in Decision)
    return Merged(accepted, moved, rejected, replaced, unchanged, undecided)


def read_decisions(exported: Path, annotations: Annotations) -> tuple[dict[Item, Review], int]:
    """The new decisions of an exported file, each checked against what was proposed; and how many
    others it holds."""
    value = _read(exported)
    _fields(exported, "the file", value, _FIELDS)
    if value["format"] != FORMAT or value["version"] != VERSION:
        raise ACPOError(
            f"{exported}: format {value['format']!r:.50} version {value['version']!r:.50} is not "
            f"{FORMAT} {VERSION}: export it from a page made by this version of acpo"
        )
    if value["trace"] != annotations.header["trace"] or value["step"] != annotations.step:
        raise ACPOError(f"{exported} is a review of another trace than {annotations.path}")
    reviewer = value["reviewer"]
    named = type(reviewer) is str and len(reviewer) <= MAX_NAME and reviewer.isprintable()
    if not named or not reviewer.strip():
        raise ACPOError(f"{exported}: reviewer={reviewer!r:.50} is not a name: say who decided")
    if type(value["decisions"]) is not list:
        raise ACPOError(f"{exported}: decisions is not a list")
    applied = datetime.now(UTC).isoformat(timespec="seconds")
    decided: dict[Item, Review] = {}
    for number, row in enumerate(value["decisions"], start=1):
        where = f"decision {number}"
        _fields(exported, where, row, _DECISION_FIELDS)
        try:
            item, review = _decision(row, annotations, reviewer.strip(), applied)
        except (ValueError, TypeError, AttributeError) as error:
            raise ACPOError(f"{exported}, {where}: {error}") from error
        if item in decided:
            raise ACPOError(f"{exported}, {where}: a second decision on {item}")
        decided[item] = review
    new = {item: made for item, made in decided.items() if _is_new(made, annotations.items[item])}
    for number, (item, review) in enumerate(decided.items(), start=1):
        if item in new and (wrong := _beside_another_error(item, review, annotations, new)):
            raise ACPOError(f"{exported}, decision {number}: {wrong}")
    return new, len(decided) - len(new)


def _is_new(review: Review, record: Record) -> bool:
    """Whether a decision is neither on record nor made before the one that counts."""
    if record.review is None:
        return True
    known = (before._replace(applied=review.applied) for before in record.reviews)
    return review.when >= record.review.when and review not in known


def _beside_another_error(
    item: Item, review: Review, annotations: Annotations, decided: dict[Item, Review]
) -> str | None:
    """What is wrong with a corresponding place: it is one of the error that counts, or of none."""
    error = annotations.error_of(item)
    if error is None:
        return None
    made = decided.get(item._replace(right=None)) or error.review
    if made is not None and made.span is None:
        return "nothing corresponds to an error that was rejected: leave it out"
    count = [made.span] if made is not None else list(error.proposed.values())
    if review.error not in count:
        return f"it was decided beside the error at {review.error}, not {count[:9]}: decide it anew"
    if review.annotator and error.proposed.get(review.annotator) != review.error:
        return (
            f"what {review.annotator!r} proposed corresponds to its own error at "
            f"{error.proposed.get(review.annotator)}, not to {review.error}: place it by hand"
        )
    return None


def _read(exported: Path) -> Any:
    try:
        if exported.stat().st_size > MAX_BYTES:
            raise ACPOError(f"{exported} is larger than {MAX_BYTES >> 20} MiB: not a review")
        return json_value(exported.read_bytes())
    except OSError as error:
        raise ACPOError(f"{exported}: {error.strerror}") from error
    except ACPOError:
        raise
    except ValueError as error:
        raise ACPOError(f"{exported} is not JSON ({reason(error)}): export it again") from error


def _fields(exported: Path, where: str, value: Any, names: set[str]) -> None:
    if type(value) is not dict:
        raise ACPOError(f"{exported}: {where} is not an object")
    if odd := sorted(map(str, value.keys() ^ names)):
        kind = "unknown" if odd[0] in value else "missing"
        raise ACPOError(f"{exported}: {where}: {odd[0]!r:.50} is {kind}")


def _decision(
    row: dict[str, Any], annotations: Annotations, reviewer: str, applied: str
) -> tuple[Item, Review]:
    item = Item(row["prompt_id"], row["wrong"], row["right"])
    numbers = (item.wrong,) if item.right is None else (item.wrong, item.right)
    if type(item.prompt_id) is not str or any(type(number) is not int for number in numbers):
        raise ValueError("prompt_id, wrong and right do not name completions")
    record = annotations.items.get(item)
    if record is None:
        raise ValueError(f"{item!r:.200} is not in {annotations.path}")
    decision = Decision(row["decision"])
    span = span_in(row["span"], record.length)
    _require_seen(row["proposed"], record)
    if (span is None) != (decision is Decision.REJECT):
        raise ValueError(f"span={row['span']!r:.50} does not go with {decision}")
    annotator = row["annotator"]
    if decision is Decision.ACCEPT:
        if type(annotator) is not str or record.proposed.get(annotator) != span:
            raise ValueError(f"annotator={annotator!r:.50} did not propose {row['span']!r:.50}")
    elif annotator is not None:
        raise ValueError(f"annotator={annotator!r:.50} does not go with {decision}")
    note = text_in(row["note"], "note")
    error = annotations.error_of(item)
    beside = span_in(row["error"], error.length) if error else None
    if error is None and row["error"] is not None:
        raise ValueError(f"error={row['error']!r:.50} goes with a corresponding place only")
    place = (decision, span, annotator, record.proposed)
    return item, Review(*place, reviewer, note, _time(row["when"]), applied, beside)


def _require_seen(seen: Any, record: Record) -> None:
    """A decision is about the proposals a person saw, not about later ones."""
    proposed = {name: list(span) for name, span in record.proposed.items()}
    if seen != proposed or any(type(n) is not int for span in seen.values() for n in span):
        raise ValueError(
            f"proposed={seen!r:.100} is not what the annotations hold, {proposed!r:.100}: make the "
            "review page anew"
        )


def _time(value: Any) -> str:
    if type(value) is not str or len(value) > 40:
        raise ValueError(f"when={value!r:.50} is not a time")
    try:
        return datetime.fromisoformat(value).astimezone(UTC).isoformat(timespec="seconds")
    except OverflowError as error:  # the first and last hours of the calendar
        raise ValueError(f"when={value!r:.50} is not a time") from error
