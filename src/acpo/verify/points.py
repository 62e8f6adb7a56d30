"""Where expressions with symbols are compared: at points nobody can foresee."""

from collections.abc import Iterator
from fractions import Fraction
from random import SystemRandom

NEAR_SCALES, FAR_SCALES = (1, 3), (10, 100, 1000)
_INTEGER_SYMBOLS = frozenset("jkmn")
_RESIDUES = 12

Point = dict[str, Fraction]


class Points:
    """Places to compare at, one for every turn; nobody can foresee them.

    From turn to turn the signs of the first two symbols go through all their combinations, and so
    do the parities of whole numbers, which meet most remainders on the way. Far from zero every
    number is whole, since only whole numbers tell a ceiling from the floor and one more. `j`, `k`,
    `m` and `n` are positive, unless `signed`.
    """

    def __init__(self, symbols: frozenset[str], *, signed: bool) -> None:
        self._random = SystemRandom()
        self._positive: frozenset[str] = frozenset() if signed else _INTEGER_SYMBOLS
        self._starts = {name: self._random.randrange(_RESIDUES) for name in sorted(symbols)}

    def turns(self) -> Iterator[tuple[int, int]]:
        """(number of the turn, scale), from the nearest to the farthest."""
        combinations = 2 ** min(len(self._starts), 2)
        scales = (*NEAR_SCALES, *FAR_SCALES) if self._starts else NEAR_SCALES[:1]
        return enumerate(scale for scale in scales for _ in range(combinations))

    def draw(self, turn: int, scale: int) -> Point:
        """A point at about `scale`; another one each time."""
        point = {}
        far = scale in FAR_SCALES
        for index, (name, start) in enumerate(self._starts.items()):
            if name in _INTEGER_SYMBOLS or far:
                low = self._random.randrange(*((scale // 2, scale) if far else (2, 48)))
                size = Fraction(low + (start + (turn >> index) - low) % _RESIDUES)
            else:
                size = Fraction(scale * self._random.randrange(1, 1999), 1999)
            is_negative = turn >> index & 1 if index < 2 else self._random.randrange(2)
            point[name] = -size if is_negative and name not in self._positive else size
        return point
