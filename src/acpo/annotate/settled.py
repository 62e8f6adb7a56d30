"""Which places count: verified by a person, computed, or merely proposed."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from acpo.annotate.annotations import Annotations, Decision, Item
from acpo.annotate.exact import KIND as EXACT
from acpo.annotate.pairs import Selection, Span, Trajectory
from acpo.errors import ACPOError


class Evidence(StrEnum):
    """Why a place counts, the strongest first."""

    VERIFIED = "verified"  # a person accepted or moved it
    COMPUTED = "computed"  # the first wrong step of a procedural task
    PROPOSED = "proposed"  # a model's word


class Accept(StrEnum):
    """Which evidence an analysis takes."""

    SOUND = "sound"  # verified or computed
    VERIFIED_ONLY = "verified_only"
    ALL_PROPOSALS = "all_proposals"


@dataclass(frozen=True)
class Place:
    """A place that counts, and whose it is: an annotator's or, where moved, a person's."""

    span: Span
    evidence: Evidence
    annotator: str | None


@dataclass(frozen=True)
class AlignedPair:
    """A wrong and a right completion, and where each is at the error."""

    prompt_id: str
    wrong: Trajectory
    right: Trajectory
    error: Place
    corresponding: Place

    @property
    def evidence(self) -> Evidence:
        """The weaker of the two."""
        order = list(Evidence)
        return max(self.error.evidence, self.corresponding.evidence, key=order.index)


def aligned_pairs(
    selection: Selection, annotations: Annotations, accept: Accept
) -> tuple[list[AlignedPair], dict[str, int]]:
    """Pairs with a place in both completions that counts, and what became of every pair.

    An annotator's place in the right completion is only used beside the same annotator's error: it
    is what corresponds to that error, and to no other.

    Raises:
        ACPOError: There is no such pair.
    """
    annotations.require(selection)
    pairs: list[AlignedPair] = []
    outcomes: Counter[str] = Counter()
    for group, wrong, right in selection.pairs:
        error = _place(annotations, Item(group.prompt_id, wrong.sample), accept)
        if isinstance(error, str):
            outcomes[f"error: {error}"] += 1
            continue
        item = Item(group.prompt_id, wrong.sample, right.sample)
        match = _place(annotations, item, accept, beside=error)
        if isinstance(match, str):
            outcomes[f"corresponding place: {match}"] += 1
            continue
        pairs.append(AlignedPair(group.prompt_id, wrong, right, error, match))
        outcomes[pairs[-1].evidence] += 1
    if not pairs:
        listed = ", ".join(f"{count} {name}" for name, count in outcomes.items())
        raise ACPOError(
            f"{annotations.path}: no pair counts ({listed}): verify proposals with `acpo annotate "
            "review` and `apply`, or pass --all-proposals to use what nobody has verified"
        )
    return pairs, dict(outcomes)


def _place(
    annotations: Annotations, item: Item, accept: Accept, beside: Place | None = None
) -> Place | str:
    """The place that counts, or why none does."""
    record = annotations.items.get(item)
    if record is None:
        return "not proposed"
    review = record.review
    if review is not None:
        if review.decision is Decision.REJECT or review.span is None:
            return "rejected"
        return Place(review.span, Evidence.VERIFIED, review.annotator)
    if accept is Accept.VERIFIED_ONLY:
        return "not verified"
    names = list(annotations.annotators)
    if beside is not None:
        if beside.annotator is None:
            return "of a moved error, not verified"
        names = [beside.annotator]
    places = [
        Place(record.proposed[name], _evidence(annotations, name), name)
        for name in names
        if name in record.proposed
    ]
    places.sort(key=lambda place: list(Evidence).index(place.evidence))
    if not places:
        said = [record.proposals[name].status for name in names if name in record.proposals]
        return said[0].value if said else "not proposed"
    if places[0].evidence is Evidence.PROPOSED and accept is Accept.SOUND:
        return "not verified"
    return places[0]


def _evidence(annotations: Annotations, name: str) -> Evidence:
    computed = annotations.annotators[name].get("kind") == EXACT
    return Evidence.COMPUTED if computed else Evidence.PROPOSED
