"""Which places count (verified by a person, computed, or merely proposed), and who agrees."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from acpo.annotate.annotations import Annotations, Decision, Item, Record
from acpo.annotate.annotators import EXACT
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

    wrong: Trajectory
    right: Trajectory
    error: Place
    corresponding: Place

    @property
    def sides(self) -> tuple[tuple[Trajectory, Place], tuple[Trajectory, Place]]:
        """The wrong one and its error, the right one and what corresponds to it."""
        return (self.wrong, self.error), (self.right, self.corresponding)

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
    """
    annotations.require(selection)
    pairs: list[AlignedPair] = []
    outcomes: Counter[str] = Counter()
    for wrong, right in selection.pairs:
        item = Item(wrong.prompt_id, wrong.sample)
        error = _place(annotations, item, accept)
        if isinstance(error, str):
            outcomes[f"error: {error}"] += 1
            continue
        match = _place(annotations, item._replace(right=right.sample), accept, beside=error)
        if isinstance(match, str):
            outcomes[f"corresponding place: {match}"] += 1
            continue
        pairs.append(AlignedPair(wrong, right, error, match))
        outcomes[pairs[-1].evidence] += 1
    if not pairs:
        raise _nothing_counts(annotations, "pair", outcomes, accept)
    return pairs, dict(outcomes)


def error_places(
    selection: Selection, annotations: Annotations, accept: Accept
) -> tuple[list[tuple[Trajectory, Place]], dict[str, int]]:
    """Wrong completions with a first error that counts, and what became of every one."""
    annotations.require(selection)
    found: list[tuple[Trajectory, Place]] = []
    outcomes: Counter[str] = Counter()
    for group in selection.groups:
        for wrong in group.wrong:
            place = _place(annotations, Item(group.prompt_id, wrong.sample), accept)
            if isinstance(place, str):
                outcomes[place] += 1
            else:
                found.append((wrong, place))
                outcomes[place.evidence] += 1
    if not found:
        raise _nothing_counts(annotations, "error", outcomes, accept)
    return found, dict(outcomes)


def _nothing_counts(
    annotations: Annotations, what: str, outcomes: Counter[str], accept: Accept
) -> ACPOError:
    listed = ", ".join(f"{count} {name}" for name, count in outcomes.items())
    verify = "verify proposals with `acpo annotate review` and `apply`"
    remedies = {
        Accept.SOUND: f"{verify}, or pass --all-proposals to `acpo diagnose blame` or `first-error`"
        ", which then use what nobody has verified",
        Accept.VERIFIED_ONLY: f"{verify}, or leave --verified-only out",
        Accept.ALL_PROPOSALS: "ask another annotator with `acpo annotate propose`",
    }
    return ACPOError(f"{annotations.path}: no {what} counts ({listed}): {remedies[accept]}")


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
        if beside is not None and review.error != beside.span:
            return "verified beside another error"
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


@dataclass(frozen=True)
class Agreement:
    """Two annotators on the items both were asked about."""

    names: tuple[str, str]
    what: str  # first error or corresponding
    asked: int  # items both answered
    both: int  # items both placed; all further numbers are about these
    neither: int  # items neither placed
    prompts: int
    exact: float | None  # share whose first tokens are the same
    near: float | None  # share whose first tokens are at most `within` apart
    within: int
    distance: float | None  # mean, of the first tokens
    by_chance: float | None  # what `near` would be if one of the two had drawn at random


def agreements(annotations: Annotations, *, within: int) -> list[Agreement]:
    """Agreement of every two annotators, on first errors and on what corresponds to them."""
    kinds: dict[str, list[tuple[Item, Record]]] = {"first error": [], "corresponding": []}
    for item, record in annotations.items.items():
        kinds["first error" if item.right is None else "corresponding"].append((item, record))
    return [
        _agreement(names, what, entries, within)
        for names in combinations(annotations.annotators, 2)
        for what, entries in kinds.items()
    ]


def _agreement(
    names: tuple[str, str], what: str, entries: Sequence[tuple[Item, Record]], within: int
) -> Agreement:
    asked = [(i, record) for i, record in entries if all(n in record.proposals for n in names)]
    placed = [(i, record) for i, record in asked if all(n in record.proposed for n in names)]
    nobody = [record for _, record in asked if not any(n in record.proposed for n in names)]
    distances, chances = [], []
    for _, record in placed:
        first, second = (record.proposed[name].first for name in names)
        distances.append(abs(first - second))
        low, high = max(0, first - within), min(record.length, first + within + 1)
        chances.append((high - low) / record.length)
    return Agreement(
        names=names,
        what=what,
        asked=len(asked),
        both=len(placed),
        neither=len(nobody),
        prompts=len({item.prompt_id for item, _ in placed}),
        exact=_mean([float(distance == 0) for distance in distances]),
        near=_mean([float(distance <= within) for distance in distances]),
        within=within,
        distance=_mean(distances),
        by_chance=_mean(chances),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
