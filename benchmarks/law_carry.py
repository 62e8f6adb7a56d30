"""Study L's second task: copying the columns of a sum, with a carry.

A prompt has two numbers, lowest digit first: `4729+8375:`. A completion copies column after column
and writes each one's digit of the sum: `4+8=27+3=12+7=09+5=5`. It is right when every digit is;
what it copied is not looked at, and a carry beyond the last column is dropped.
"""

import random
from collections.abc import Iterator

from acpo.tasks import Task

COLUMNS = 6
COLUMN_LENGTH = 5
"""Characters of a column: `4+8=2`."""


def column_sums(prompt: str) -> str:
    """The digits of the sum, lowest first."""
    first, second = prompt.removesuffix(":").split("+")
    digits, carry = [], 0
    for a, b in zip(map(int, first), map(int, second), strict=True):
        digits.append(str((a + b + carry) % 10))
        carry = (a + b + carry) // 10
    return "".join(digits)


def problems(seed: int) -> Iterator[dict[str, str]]:
    """Sums without end, the same for the same seed."""
    rng = random.Random(f"carry {seed}")
    while True:
        first, second = ("".join(str(rng.randrange(10)) for _ in range(COLUMNS)) for _ in range(2))
        yield {"problem": f"{first}+{second}:", "answer": column_sums(f"{first}+{second}:")}


def written_sums(completion: str) -> str | None:
    """The digits a completion gives as the sum; None where it is not whole columns."""
    digits = completion[COLUMN_LENGTH - 1 :: COLUMN_LENGTH]
    whole = len(completion) == COLUMN_LENGTH * COLUMNS and set(digits) <= set("0123456789")
    return digits if whole else None


def solution(problem: dict[str, str]) -> str:
    """The completion without a mistake."""
    first, second = problem["problem"].removesuffix(":").split("+")
    columns = zip(first, second, problem["answer"], strict=True)
    return "".join(f"{a}+{b}={digit}" for a, b, digit in columns)


carry = Task(
    title="Column sums with a carry",
    problems=problems,
    template="plain",
    grader=lambda completion, row: written_sums(completion) == row["answer"],
    extract=written_sums,
    gold=solution,
    in_process=True,
    pool=20_000,
)
