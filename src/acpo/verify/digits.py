"""Numbers that are written out in digits, and right answers that are not."""

import re
from fractions import Fraction

from acpo.verify.extract import extract_answer, extract_gold
from acpo.verify.normalise import normalise, oversized

_NUMBER = re.compile(r"([+-]?) ?(\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})", re.ASCII)


def in_digits(answer: str) -> Fraction | None:
    """The value of a number in digits, with a unit or commas as people write; None for others."""
    match = None if oversized(answer) else _NUMBER.fullmatch(normalise(answer))
    return Fraction(match[1] + match[2]) if match else None


def left_undone(text: str, gold: str) -> bool:
    """Whether a right completion answers with something else, where the gold is such a number."""
    asked = in_digits(extract_gold(gold)) is not None
    return asked and in_digits(extract_answer(text) or "") is None
