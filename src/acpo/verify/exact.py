r"""Answers that need no evaluation: equal texts, words, rational numbers and their notations.

Everything here is exact and runs in the caller's process in microseconds. `decide` returns None
whenever a part of the answer needs more than that.
"""

import re
from fractions import Fraction

from acpo.verify.evaluate import exact_value
from acpo.verify.shape import Shape, same, shape

_DIGITS = re.compile(r"[+-]?\d{1,400}", re.ASCII)
_DECIMAL = re.compile(r"[+-]? ?\d*\.(\d+)", re.ASCII)
_PERCENT = re.compile(r"(.*?) ?(\\%)")
_COLONS = re.compile(r"\d+(?: ?: ?\d+)+", re.ASCII)
# No term of a ratio begins with 0: 3:05 is a time, 3:0 a score.
_RATIO = re.compile(r"[1-9]\d*(?: ?: ?[1-9]\d*)+", re.ASCII)
_BASED = re.compile(r"\(?(-?[0-9A-Z]+)\)?_\{?(\d+)\}?", re.ASCII)
_CLOCK = re.compile(r"(\d+(?::\d\d)+) ?\\text\{([ap]m)\}", re.ASCII)
_CONGRUENCE = re.compile(r"([+-]?\d+) ?\\pmod\{(\d+)\}", re.ASCII)
_TEXT = re.compile(r"\\text\{([^{}\\]*)\}")
_WORDS = re.compile(r"[^\W\d_](?:[^\W\d_]|[' -])*")
_IDLE_SPACE = re.compile(r" (?!\d)|(?<!\d) ")
_ROUNDED_DIGITS = 6
MOST_WORDS = 6
"""An answer in words has no more of them; a sentence is none."""


def decide(answer: str, gold: str) -> bool | None:
    """Whether two normalised answers are equal, or None where only evaluation can tell.

    Never False for a gold that has not been read to its end: whether it can be read is not the
    answer's to decide.
    """
    if _DIGITS.fullmatch(answer) and _DIGITS.fullmatch(gold):
        return int(answer) == int(gold)
    if _equal_texts(answer, gold):
        return True
    gold_shape = shape(gold)
    verdict = same(shape(answer), gold_shape, same_part)
    return None if verdict is False and not _plain(gold_shape) else verdict


def _plain(gold: Shape) -> bool:
    """Whether every part of `gold` is a word, a rational number, or numbers between colons."""
    if gold.kind == "part":
        if _COLONS.fullmatch(gold.text):
            return True
        return _rational(gold.text) is not None or _words(gold.text) is not None
    return all(map(_plain, gold.items))


def same_part(answer: str, gold: str) -> bool | None:
    """`decide` for two parts."""
    if _equal_texts(answer, gold):
        return True
    words, gold_words = _words(answer), _words(gold)
    if words is not None or gold_words is not None:
        prose = [words or _letters(answer), gold_words or _letters(gold)]
        if None in prose and _rational(answer) is _rational(gold) is None:
            return None
        return prose[0] == prose[1]
    if (special := _notation(answer, gold)) is not None:
        return special
    gold_value = _rational(gold)
    answer_value = _rational(answer) if gold_value is not None else None
    if answer_value is None or gold_value is None:
        return None
    return (
        answer_value == gold_value or rounds_to(answer, gold_value) or rounds_to(gold, answer_value)
    )


def rounds_to(decimal: str, value: Fraction, *, endless: bool = False) -> bool:
    """Whether `decimal` is `value`, cut or rounded after six digits or more.

    Only a number whose decimals have no end is ever rounded: `endless`, or any n/3.
    """
    match = _DECIMAL.fullmatch(decimal)
    if match is None or len(decimal.lstrip("+- 0.").replace(".", "")) < _ROUNDED_DIGITS:
        return False
    bottom = value.denominator
    for prime in (2, 5):
        while bottom % prime == 0:
            bottom //= prime
    unit = Fraction(1, 10 ** len(match[1]))
    beyond = (value - Fraction(decimal.replace(" ", ""))) * (1 if value > 0 else -1)
    return (endless or bottom != 1) and -unit <= 2 * beyond < 2 * unit


def _notation(answer: str, gold: str) -> bool | None:
    """Percent signs, number bases, congruences, ratios: forms in which a number is written."""
    for pattern, same_number in _NOTATIONS:
        sides = []
        for text in (answer, gold):
            match = pattern.fullmatch(text)
            sides.append((match[1], match[2]) if match else (text, ""))
        if sides[0][1] or sides[1][1]:
            return same_number(*sides)
    colons = [text for text in (answer, gold) if _COLONS.fullmatch(text)]
    if len(colons) == 2:
        return _proportional(answer, gold)
    return False if colons and _rational(colons[0]) is None else None


def _same_percent(answer: tuple[str, str], gold: tuple[str, str]) -> bool | None:
    """50% is 0.5; it is 50, too, where the sign was left out, since 50 is no share of anything."""
    given, wanted = _rational(answer[0]), _rational(gold[0])
    if given is None or wanted is None:
        return None
    if given == wanted and (answer[1] == gold[1] or abs(given) > 1):
        return True
    return given / (100 if answer[1] else 1) == wanted / (100 if gold[1] else 1)


def _same_time(answer: tuple[str, str], gold: tuple[str, str]) -> bool:
    """The half of the day: one side may leave it to the question."""
    return answer[0] == gold[0] and (not answer[1] or not gold[1] or answer[1] == gold[1])


def _same_numeral(answer: tuple[str, str], gold: tuple[str, str]) -> bool:
    """1101_2 is 1101 where the question names the base; 9_2 is no number, and A_1 a variable."""
    if answer[1] and gold[1]:
        return answer == gold
    base = int(answer[1] or gold[1])
    return answer[0] == gold[0] and all(int(d, 36) < base for d in answer[0].lstrip("-"))


def _same_residue(answer: tuple[str, str], gold: tuple[str, str]) -> bool:
    if not answer[1] or not gold[1]:
        return answer[0] == gold[0]
    modulus = int(gold[1])
    return answer[1] == gold[1] and modulus > 0 and (int(answer[0]) - int(gold[0])) % modulus == 0


_NOTATIONS = (
    (_PERCENT, _same_percent),
    (_BASED, _same_numeral),
    (_CLOCK, _same_time),
    (_CONGRUENCE, _same_residue),
)


def _proportional(answer: str, gold: str) -> bool:
    """6:8 is 3:4; a clock's 3:05 is only itself and 03:05, and a score with a 0 only itself."""
    if not (_RATIO.fullmatch(answer) and _RATIO.fullmatch(gold)):
        time, gold_time = (text.replace(" ", "").lstrip("0") for text in (answer, gold))
        return time == gold_time
    a, g = ([int(part) for part in text.split(":")] for text in (answer, gold))
    return len(a) == len(g) and all(x * g[0] == y * a[0] for x, y in zip(a, g, strict=True))


def _rational(text: str) -> Fraction | None:
    if _DIGITS.fullmatch(text):
        return Fraction(int(text))
    if _RATIO.fullmatch(text) and text.count(":") == 1:
        return Fraction(*map(int, text.split(":")))
    return exact_value(text)


def _words(text: str) -> str | None:
    r"""`text` as words when it is prose, not a product of variables.

    `listen` is not l*i*s*t*e*n, which would be `silent`; neither are capitals. Short bare letters
    (`xy`) are factors.
    """
    letters = _letters(text)
    if letters is None:
        return None
    bare = text.replace(" ", "").strip("()")
    if "\\" not in text and len(bare) < 4 and not (len(bare) > 1 and bare.isupper()):
        return None
    return letters


def _letters(text: str) -> str | None:
    """The letters of `text` when it has nothing else."""
    bare = _TEXT.sub(r"\1", text).strip().strip("()").strip()
    words = bare.casefold().split()
    return " ".join(words) if _WORDS.fullmatch(bare) and len(words) <= MOST_WORDS else None


def _equal_texts(answer: str, gold: str) -> bool:
    """Equal but for spaces; those between digits are none of the idle ones."""
    return answer == gold or _IDLE_SPACE.sub("", answer) == _IDLE_SPACE.sub("", gold)
