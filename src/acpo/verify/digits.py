"""Answers that are numbers in digits, and right answers that leave them to be worked out.

The math judge compares values: to it `504 + 766 + 149` is as right as 1419. Where a problem is the
computation itself, it would be its own answer, and training finds that out.
"""

import re
from contextlib import nullcontext
from fractions import Fraction

from acpo.verify.evaluate import exact_value
from acpo.verify.extract import extract_answer, extract_gold
from acpo.verify.normalise import normalise, oversized
from acpo.verify.pool import Pool, once_per_process
from acpo.verify.verdict import Outcome, Verdict

_NUMBER = re.compile(r"([+-]?) ?(\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})", re.ASCII)
_NAME = re.compile(r"[A-Za-z]\w{0,20}|", re.ASCII)


def in_digits(answer: str) -> Fraction | None:
    """The number an answer states in digits, in brackets or with a unit; None where it does not.

    Of an equation it is the last side, and what the others come to.
    """
    if oversized(answer):
        return None
    *others, last = (side.strip(" ()[]") for side in normalise(answer).split("="))
    match = _NUMBER.fullmatch(last)
    if match is None:
        return None
    value = Fraction(match[1] + match[2])
    agree = all(_NAME.fullmatch(side) or exact_value(side) == value for side in others)
    return value if agree else None


def verify_digits(text: str, gold: str) -> Verdict:
    """Whether a completion states the gold answer, a number, in digits."""
    wanted = in_digits(extract_gold(gold))
    if wanted is None:
        detail = f"the gold answer {gold[:80]!r} is not a number in digits"
        return Verdict(Outcome.UNPARSEABLE_GOLD, detail)
    answer = extract_answer(text)
    if answer is None:
        return Verdict(Outcome.INCORRECT, "no answer found")
    value = in_digits(answer)
    if value is None:
        return Verdict(Outcome.INCORRECT, "the answer is not a number in digits")
    if value == wanted:
        return Verdict(Outcome.CORRECT, "equal exactly")
    return Verdict(Outcome.INCORRECT, "not equal exactly")


def left_undone(text: str, gold: str) -> bool:
    """Whether a right completion states no number in digits where its gold is one."""
    if in_digits(extract_gold(gold).replace("\\%", "")) is None:
        return False
    return in_digits((extract_answer(text) or "").replace("\\%", "")) is None


class DigitsPool(Pool[Verdict]):
    """`verify_digits` as a pool: it decides at once, and its thread waits to be closed."""

    def __init__(self) -> None:
        super().__init__(lambda: nullcontext(lambda verdict: verdict), 1)

    def job(self, text: str, reference: str) -> Verdict:
        return verify_digits(text, reference)


shared_pool = once_per_process(DigitsPool)
"""The pool that the reward functions of this process share."""
