"""What the start policies of study L are taught: how likely every token of a solution is.

Every fact (a digit, an operation, an operand; or the two digits of a column and its carry) has a
margin in nats by which its right digit is likelier than one particular wrong one. A corrupted fact
has the wrong digit in front. Copied symbols have a margin too, and a miscopied one does no harm,
since the result is that of the prompt. All margins are divided by a temperature. So the temperature
sets how sure a policy is, the number of corrupted facts how often it is right, and both follow
exactly from the tables, before anything is trained.
"""

from dataclasses import dataclass, field

import numpy as np
from law_carry import COLUMN_LENGTH, COLUMNS
from numpy.typing import NDArray

from acpo.tasks.chain import ALPHABET, STEP_LENGTH

Array = NDArray[np.float64]
Ids = NDArray[np.int64]

STEPS = 6
DIGITS = np.array([ALPHABET.index(digit) + 2 for digit in "0123456789"])
OPERATORS = np.array([ALPHABET.index(sign) + 2 for sign in "+-*"])
PLUS, EQUALS, COLON = (ALPHABET.index(sign) + 2 for sign in "+=:")
EOS = 1
VOCABULARY = len(ALPHABET) + 2

SOUND, CORRUPTED, OTHER, COPY = (1.2, 2.2), (0.0, 1.0), 3.0, 2.1
"""Margins: ranges for the likeliest digit over its rival, then all other digits, then copies."""


class Page:
    """Completions as they are written: the distribution at every place, and what was drawn."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.count, self.rng = count, rng
        self.chances: list[Array] = []  # [B, V] each
        self.drawn: list[Ids] = []

    def write(self, chances: Array, symbols: Ids) -> Ids:
        """Draw from `chances` [B, K] over `symbols` [K]; returns which of them, `[B]`."""
        threshold = self.rng.random((self.count, 1))
        index = (chances.cumsum(1) < threshold).sum(1).clip(max=len(symbols) - 1)
        whole = np.zeros((self.count, VOCABULARY))
        whole[:, symbols] = chances
        self.chances.append(whole)
        self.drawn.append(symbols[index])
        return index

    def sign(self, symbol: int) -> None:
        """A symbol that is always the same."""
        self.write(np.ones((self.count, 1)), np.array([symbol]))


@dataclass(frozen=True)
class Mind:
    """A task's tables at a temperature, with so many facts corrupted.

    Attributes:
        temperature: divides every margin.
        corrupted: how many facts have the wrong digit in front.
        seed: decides margins, and in which order facts are corrupted.
    """

    temperature: float
    corrupted: int
    seed: int = 0
    chances: Array = field(init=False, repr=False)  # [*facts, 10]

    def __post_init__(self) -> None:
        right, rival = self.facts()
        rng = np.random.default_rng(self.seed)
        order, luck = rng.permutation(right.size), rng.random(right.size)
        wrong = np.zeros(right.size, bool)
        wrong[order[: self.corrupted]] = True
        low, high = np.where(wrong[:, None], CORRUPTED, SOUND).T
        margin = low + luck * (high - low)
        rows = np.arange(right.size)
        scores = np.full((right.size, 10), -OTHER)
        scores[rows, right.ravel()] = np.where(wrong, -margin, 0)
        scores[rows, rival.ravel()] = np.where(wrong, 0, -margin)
        weights = np.exp(scores / self.temperature)
        chances = weights / weights.sum(1, keepdims=True)
        object.__setattr__(self, "chances", chances.reshape(*right.shape, 10))

    @classmethod
    def facts(cls) -> tuple[Ids, Ids]:
        """The right digit of every fact and the wrong one it is taken for."""
        raise NotImplementedError

    def expected(self) -> tuple[float, float]:
        """Exact accuracy, and exact entropy per token in nats."""
        raise NotImplementedError

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Ids, Page]:
        """Prompts `[B, P]` of random problems, and completions drawn from the tables."""
        raise NotImplementedError

    def copy(self, choices: int) -> tuple[float, float]:
        """The chance of copying a symbol rightly, and the entropy of doing so."""
        others = (choices - 1) * np.exp(-COPY / self.temperature)
        right = 1 / (1 + others)
        return right, entropy(np.array([right, *[(1 - right) / (choices - 1)] * (choices - 1)]))

    def copied(self, index: Ids, choices: int) -> Array:
        """`[B, K]`: chances of the symbols when `index` is the right one."""
        right, _ = self.copy(choices)
        chances = np.full((len(index), choices), (1 - right) / (choices - 1))
        chances[np.arange(len(index)), index] = right
        return chances


def entropy(chances: Array) -> float | Array:
    """Over the last axis, in nats."""
    return -(chances * np.log(np.maximum(chances, 1e-300))).sum(-1)


class ChainMind(Mind):
    """Chains of last-digit arithmetic; a wrong result is carried on."""

    @classmethod
    def facts(cls) -> tuple[Ids, Ids]:
        left, operand = np.arange(10)[:, None], np.arange(2, 10)[None, :]

        def results(by: Ids) -> Ids:
            return np.stack([left + by, left - by, left * by], 1) % 10

        right, rival = results(operand), results(operand - 1)
        return right, np.where(rival == right, (right + 1) % 10, rival)

    def expected(self) -> tuple[float, float]:
        right, _ = self.facts()
        moves = np.zeros((10, 10, 10, 10))  # true, written -> next true, next written
        chances = self.chances.reshape(10, 24, 10)
        for fact, truth in enumerate(right.reshape(10, 24).T):
            moves[np.arange(10), :, truth, :] += chances[None, :, fact, :] / 24
        states, nats = np.eye(10) / 10, 0.0
        by_digit = np.asarray(entropy(chances)).mean(1)
        for _ in range(STEPS):
            nats += float(states.sum(0) @ by_digit) + self.copy(3)[1] + self.copy(8)[1]
            states = np.einsum("tw,twuv->uv", states, moves)
        return float(np.trace(states)), nats / (STEPS * STEP_LENGTH + 2)

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Ids, Page]:
        value = rng.integers(10, size=count)
        operators, operands = (rng.integers(size, size=(STEPS, count)) for size in (3, 8))
        columns = [DIGITS[value]]
        for operator, operand in zip(operators, operands, strict=True):
            columns += [OPERATORS[operator], DIGITS[operand + 2]]
        columns.append(np.full(count, COLON))
        page = Page(count, rng)
        page.write(np.eye(10)[value], DIGITS)
        for operator, operand in zip(operators, operands, strict=True):
            page.write(self.copied(operator, 3), OPERATORS)
            page.write(self.copied(operand, 8), DIGITS[2:])
            page.sign(EQUALS)
            value = page.write(self.chances[value, operator, operand], DIGITS)
        page.sign(EOS)
        return np.stack(columns, 1), page


class CarryMind(Mind):
    """Column sums; the wrong digit is that of a carry forgotten or made up, and does not spread."""

    @classmethod
    def facts(cls) -> tuple[Ids, Ids]:
        a, b, carry = np.ogrid[:10, :10, :2]
        return (a + b + carry) % 10, (a + b + 1 - carry) % 10

    def expected(self) -> tuple[float, float]:
        a, b, carry = np.ogrid[:10, :10, :2]
        right, _ = self.facts()
        hit = np.take_along_axis(self.chances, right[..., None], -1)[..., 0]
        nats_of = np.asarray(entropy(self.chances)).mean((0, 1))
        over = (a + b + carry) // 10
        moves = np.stack([((over == c) * 0.01).sum((0, 1)) for c in (0, 1)], 1)
        hits = np.stack([((over == c) * hit * 0.01).sum((0, 1)) for c in (0, 1)], 1)
        carries, correct, nats = np.array([1.0, 0.0]), np.array([1.0, 0.0]), 0.0
        for _ in range(COLUMNS):
            nats += float(carries @ nats_of) + 2 * self.copy(10)[1]
            carries, correct = carries @ moves, correct @ hits
        return float(correct.sum()), nats / (COLUMN_LENGTH * COLUMNS + 1)

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Ids, Page]:
        first, second = rng.integers(10, size=(2, COLUMNS, count))
        plus, colon = np.full(count, PLUS), np.full(count, COLON)
        prompt = np.stack([*DIGITS[first], plus, *DIGITS[second], colon], 1)
        page, carry = Page(count, rng), np.zeros(count, np.int64)
        for a, b in zip(first, second, strict=True):
            page.write(self.copied(a, 10), DIGITS)
            page.sign(PLUS)
            page.write(self.copied(b, 10), DIGITS)
            page.sign(EQUALS)
            page.write(self.chances[a, b, carry], DIGITS)
            carry = (a + b + carry) // 10
        page.sign(EOS)
        return prompt, page


MINDS: dict[str, type[Mind]] = {"chain": ChainMind, "carry": CarryMind}


def find_mind(
    task: str, *, entropy: float, accuracy: float, seed: int = 0, nearest: bool = False
) -> Mind:
    """The mind with this entropy per token and, as near as one fact allows, this accuracy.

    Raises:
        ValueError: no number of corrupted facts gives that accuracy at that entropy, and the
            nearest would not do.
    """
    kind = MINDS[task]
    low, high = 0, kind.facts()[0].size // 2
    while low < high:
        middle = (low + high) // 2
        found = _at_entropy(kind, middle, entropy, seed)
        low, high = (middle + 1, high) if found.expected()[0] > accuracy else (low, middle)
    around = [_at_entropy(kind, max(low - less, 0), entropy, seed) for less in (0, 1)]
    best = min(around, key=lambda mind: abs(mind.expected()[0] - accuracy))
    if not nearest and abs(best.expected()[0] - accuracy) > 0.03:
        raise ValueError(
            f"{task}: entropy={entropy} and accuracy={accuracy} do not go together; "
            f"the nearest accuracy is {best.expected()[0]:.2f}"
        )
    return best


def _at_entropy(kind: type[Mind], corrupted: int, wanted: float, seed: int) -> Mind:
    low, high = 0.02, 5.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        nats = kind(middle, corrupted, seed).expected()[1]
        low, high = (middle, high) if nats < wanted else (low, middle)
    return kind(low, corrupted, seed)
