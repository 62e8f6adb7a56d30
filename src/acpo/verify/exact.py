r"""Answers that need no algebra: equal strings, words, integers, plain rationals.

Everything here is exact and runs in the caller's process in microseconds. `decide` returns None
whenever the question is one for math-verify.
"""

import re
from fractions import Fraction

MAX_ANSWER_CHARS = 2_000
MAX_DEPTH = 40
MAX_DIGITS = 400

_SPACING = re.compile(r"(?<!\\)\\[!,;:> ]|(?<!\\)~|\s+")
_STYLE = re.compile(r"\\(?:left|right|displaystyle|limits)(?![a-zA-Z])")
_INTEGER = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_NUMBER = re.compile(rf"([+-]?)(?:({_INTEGER})(\.\d*)?|(\.\d+))")
_RATIO = re.compile(
    rf"([+-]?)(?:\\frac\{{(-?{_INTEGER})\}}\{{(-?{_INTEGER})\}}|({_INTEGER})/({_INTEGER}))"
)
_MIXED = re.compile(r"([+-]?)(\d+)(?: +(\d+)/(\d+)| *\\frac\{(\d+)\}\{(\d+)\})")
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox)\{([^{}\\]*)\}")
_WORDS = re.compile(r"[^\W\d_][^\W\d_' -]*")
_BASE = re.compile(r"_\{?(\d+)\}?$")
_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_REWRITES = (
    ("\\dfrac", "\\frac"),
    ("\\tfrac", "\\frac"),
    ("{,}", ","),
    ("\u2212", "-"),
    ("\u00d7", "\\times "),
    ("\\$", ""),
    ("$", ""),
)
_DELIMITERS = (("\\(", "\\)"), ("\\[", "\\]"))


def oversized(text: str) -> str | None:
    """Why `text` is too large to parse, or None when it is not."""
    if len(text) > MAX_ANSWER_CHARS:
        return f"answer of {len(text)} characters, more than {MAX_ANSWER_CHARS}"
    depth = deepest = 0
    for char in text:
        if char in "{([":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "})]":
            depth -= 1
    if deepest > MAX_DEPTH:
        return f"answer nested {deepest} deep, more than {MAX_DEPTH}"
    if _LONG_NUMBER.search(text):
        return f"number of more than {MAX_DIGITS} digits"
    return None


def normalise(text: str) -> str:
    """`text` without what LaTeX and Markdown add around an answer and never mean."""
    for old, new in _REWRITES:
        if old in text:
            text = text.replace(old, new)
    text = _SPACING.sub(" ", _STYLE.sub("", text)).strip()
    for opening, closing in _DELIMITERS:
        if text.startswith(opening):
            text = text.removeprefix(opening).rstrip(" .").removesuffix(closing)
    return text.strip().rstrip(".,;:").strip()


def decide(answer: str, gold: str) -> bool | None:
    """Whether two normalised answers are equal, or None where only algebra can tell."""
    if answer.replace(" ", "") == gold.replace(" ", ""):
        return True
    gold_value = _rational(gold)
    if gold_value is not None:
        answer_value = _rational(answer)
        if answer_value == gold_value:
            return True
        if answer_value is not None and "." not in answer and "." not in gold:
            return False
        return None
    gold_words = _words(gold)
    if gold_words is not None and (answer_words := _words(answer)) is not None:
        return answer_words == gold_words
    gold_base, answer_base = _BASE.search(gold), _BASE.search(answer)
    if gold_base and answer_base and int(gold_base[1]) != int(answer_base[1]):
        return False
    return None


def improper(text: str) -> str:
    """A mixed number as one fraction, which is how math-verify has to see it."""
    match = _MIXED.fullmatch(text)
    if match is None:
        return text
    numerator, denominator = match[3] or match[5], match[4] or match[6]
    total = int(match[2]) * int(denominator) + int(numerator)
    return f"{match[1]}\\frac{{{total}}}{{{denominator}}}"


def _rational(text: str) -> Fraction | None:
    text = improper(text)
    if match := _NUMBER.fullmatch(text):
        digits = (match[2] or "").replace(",", "") + (match[3] or match[4] or "")
        return Fraction(match[1] + digits.rstrip("."))
    if match := _RATIO.fullmatch(text.replace(" ", "")):
        top = (match[2] or match[4]).replace(",", "")
        bottom = (match[3] or match[5]).replace(",", "")
        if int(bottom) == 0:
            return None
        return Fraction(int(top), int(bottom)) * (-1 if match[1] == "-" else 1)
    return None


def _words(text: str) -> str | None:
    r"""`text` as words when it is prose, not a product of variables.

    SymPy reads `listen` as l*i*s*t*e*n and finds it equal to `silent`, so words are compared as
    words. Short bare letters (`xy`) stay with SymPy.
    """
    bare = _TEXT.sub(r"\1", text)
    bare = bare.strip().strip("()").strip()
    if not _WORDS.fullmatch(bare):
        return None
    if bare == text and len(bare.replace(" ", "")) < 4:
        return None
    return " ".join(bare.casefold().split())


def balanced(text: str) -> bool:
    """Whether every brace of `text` has its partner."""
    depth = 0
    escaped = False
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth < 0:
                return False
    return depth == 0
