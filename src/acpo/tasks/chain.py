"""The procedural task: chains of last-digit arithmetic, written out step by step.

A prompt is a chain evaluated from left to right, keeping only the last digit: `7*8+6-9:`. A
completion writes the running result after every operation: `7*8=6+6=2-9=3`; the last digit is the
answer. Every step can be checked, so the first wrong one is known exactly.
"""

import random
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from acpo.errors import ACPOError
from acpo.tasks.task import Task

HELD_OUT_SEED = 1

ALPHABET = "0123456789+-*=:"
"""Every character a prompt or a completion may contain."""

STEP_LENGTH = 4
"""Characters a step adds to a completion: `+6=2`. The first digit comes before the first step."""

_OPERATORS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
_OPERANDS = range(2, 10)  # +0, *0 and *1 teach nothing
_PROMPT = re.compile(r"(\d)((?:[-+*]\d)+):")


class Step(NamedTuple):
    """One step of a trace: `left operator right = result`, last digits only."""

    left: int
    operator: str
    right: int
    result: int

    def __str__(self) -> str:
        return f"{self.left}{self.operator}{self.right}={self.result}"


def apply(left: int, operator: str, right: int) -> int:
    """The last digit of `left operator right`."""
    return _OPERATORS[operator](left, right) % 10


@dataclass(frozen=True)
class ChainProblem:
    """One chain: its first digit, and the (operator, digit) pairs applied from left to right."""

    start: int
    operations: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, prompt: str) -> "ChainProblem":
        """The problem a prompt states."""
        match = _PROMPT.fullmatch(prompt)
        if match is None:
            raise ACPOError(f"prompt={prompt!r} is not a chain; one looks like '7*8+6-9:'")
        tail = match[2]
        return cls(int(match[1]), tuple(zip(tail[::2], map(int, tail[1::2]), strict=True)))

    @property
    def prompt(self) -> str:
        """What the model reads."""
        return f"{self.start}{''.join(f'{op}{digit}' for op, digit in self.operations)}:"

    @property
    def steps(self) -> list[Step]:
        """The right steps."""
        steps, value = [], self.start
        for operator, digit in self.operations:
            steps.append(Step(value, operator, digit, apply(value, operator, digit)))
            value = steps[-1].result
        return steps

    @property
    def answer(self) -> str:
        """The last digit of the whole chain."""
        return str(self.steps[-1].result)

    @property
    def solution(self) -> str:
        """The completion without a mistake."""
        return write_trace(self.steps)

    def first_error(self, completion: str) -> int | None:
        """The index of the first wrong step, or None for a flawless completion.

        A step is wrong when it is missing, is not the problem's next operation, or has a wrong
        result. Anything after the last step makes the last step wrong.
        """
        if completion == self.solution:
            return None
        pairs = enumerate(zip_longest(self.solution, completion))
        differs = next(index for index, (right, written) in pairs if right != written)
        return min(max(differs - 1, 0) // STEP_LENGTH, len(self.operations) - 1)


def write_trace(steps: Sequence[Step]) -> str:
    """A completion from its steps."""
    parts = (f"{step.operator}{step.right}={step.result}" for step in steps)
    return f"{steps[0].left}{''.join(parts)}"


def read_answer(completion: str) -> str | None:
    """What a completion gives as its answer: the digit that ends it, after an `=`."""
    match = re.search(r"=(\d)\Z", completion)
    return match[1] if match else None


def chain_problems(
    count: int, *, steps: int = 5, seed: int = 0, exclude: Collection[ChainProblem] = ()
) -> list[ChainProblem]:
    """`count` distinct problems of so many steps, the same for the same seed."""
    if steps < 1 or count < 1:
        raise ACPOError(f"count={count} and steps={steps} must both be at least 1")
    available = 10 * (len(_OPERATORS) * len(_OPERANDS)) ** steps - len(set(exclude))
    if count > available // 2:
        raise ACPOError(
            f"count={count} asks for more than half of the {available} chains of steps={steps}; "
            "use longer chains or fewer problems"
        )
    banned: set[ChainProblem] = set(exclude)
    found: dict[ChainProblem, None] = {}
    for problem in _stream(steps, seed):
        if problem not in banned:
            found[problem] = None
        if len(found) == count:
            break
    return list(found)


def _stream(steps: int, seed: int) -> Iterator[ChainProblem]:
    rng = random.Random(f"chain {steps} {seed}")
    while True:
        operations = tuple(
            (rng.choice(tuple(_OPERATORS)), rng.choice(_OPERANDS)) for _ in range(steps)
        )
        yield ChainProblem(rng.randrange(10), operations)


def chain_task(steps: int = 5) -> Task:
    """The task of chains with so many operations."""
    if steps < 1:
        raise ACPOError(f"chain_steps={steps} must be at least 1")
    return Task(
        name="chain",
        title="Last-digit chains",
        problems=lambda seed: _rows(steps, seed),
        template="plain",
        grader=lambda completion, row: read_answer(completion) == row["answer"],
        extract=read_answer,
        gold=lambda row: ChainProblem.parse(row["problem"]).solution,
        in_process=True,
        pool=20_000,
        held_out_seed=HELD_OUT_SEED,
    )


def _rows(steps: int, seed: int) -> Iterator[dict[str, str]]:
    for problem in _stream(steps, seed):
        yield {"problem": problem.prompt, "answer": problem.answer}
