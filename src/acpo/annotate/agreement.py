"""How well two annotators agree, before any person has looked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from acpo.annotate.annotations import Annotations, Item, Record


@dataclass(frozen=True)
class Agreement:
    """Two annotators on the items both were asked about.

    Attributes:
        names: The two.
        what: `first error` or `corresponding`.
        asked: Items both answered.
        both: Items both placed; all further numbers are about these.
        neither: Items neither placed.
        prompts: Prompts the items of `both` are of.
        exact: Share whose first tokens are the same.
        near: Share whose first tokens are at most `within` apart.
        within: That distance.
        distance: Mean distance of the first tokens.
        by_chance: What `near` would be if one of the two had drawn its first token at random.
    """

    names: tuple[str, str]
    what: str
    asked: int
    both: int
    neither: int
    prompts: int
    exact: float | None
    near: float | None
    within: int
    distance: float | None
    by_chance: float | None


def agreements(annotations: Annotations, *, within: int) -> list[Agreement]:
    """Agreement of every two annotators, on first errors and on what corresponds to them."""
    kinds: dict[str, Callable[[Item], bool]] = {
        "first error": lambda item: item.right is None,
        "corresponding": lambda item: item.right is not None,
    }
    return [
        _agreement(
            names, what, [entry for entry in annotations.items.items() if kind(entry[0])], within
        )
        for names in combinations(annotations.annotators, 2)
        for what, kind in kinds.items()
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
