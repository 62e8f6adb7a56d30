"""Two answers that only evaluation can compare. Runs in the worker processes alone."""

import re
from functools import lru_cache
from math import isclose
from typing import Any

from acpo.verify import evaluate
from acpo.verify.evaluate import TooLarge
from acpo.verify.exact import MOST_WORDS, rounds_to, same_part
from acpo.verify.latex import Expression, Unreadable, parse
from acpo.verify.shape import Shape, same, shape, split

# What the parser of `evaluate` leaves to math-verify.
_CALCULUS = re.compile(r"\\(?:int|iint|oint|sum|prod|lim|det|begin)(?![a-zA-Z])")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_WORD = re.compile(r"[A-Za-z]{3,}")
_EQUALS = re.compile("=")
_DOUBLE_FACTORIAL = re.compile(r"! ?!")


def compare(answer: str, gold: str) -> dict[str, str]:
    """The outcome of comparing two normalised answers."""
    gold_shape = shape(gold)
    if reason := _unreadable_gold(gold_shape):
        return {"outcome": "unparseable_gold", "detail": reason}
    try:
        equal = same(shape(answer), gold_shape, _same_part)
    except TooLarge as error:
        return {"outcome": "limit", "detail": str(error)}
    except (Unreadable, RecursionError) as error:
        return {"outcome": "incorrect", "detail": f"the answer cannot be read: {error}"[:200]}
    if equal:
        return {"outcome": "correct", "detail": "equal wherever evaluated"}
    return {"outcome": "incorrect", "detail": "not equal"}


def _unreadable_gold(gold: Shape) -> str | None:
    """Why `gold` is no answer, or None when it is one."""
    if gold.kind != "part":
        reasons = (_unreadable_gold(item) for item in gold.items)
        return next((reason for reason in reasons if reason), None)
    text = gold.text
    if not re.search(r"\w", text):
        return f"{text[:80]!r} is no answer"
    try:
        if same_part("0", text) is None and same_part("x", text) is None:
            values = map(_single, text.split("\\le "))
            if not all(value is None or evaluate.has_value(value) for value in values):
                return f"{text[:80]!r} has no value"
    except TooLarge:
        return None  # the comparison says so
    except Unreadable as error:
        words = len(_WORD.findall(_COMMAND.sub(" ", text)))
        if 0 < words <= MOST_WORDS:
            return None  # words with something around them: only the same text is the same
        if not (_CALCULUS.search(text) and _by_math_verify(text)):
            return f"{text[:80]!r} cannot be read: {error}"[:200]
    return None


def _same_part(answer: str, gold: str) -> bool | None:
    decided = same_part(answer, gold)
    if decided is not None:
        return decided
    if ("\\le " in answer) and ("\\le " in gold):
        return _same_equation(answer.split("\\le "), gold.split("\\le ")) > 0
    try:
        values = [_single(text) for text in (answer, gold)]
        if None in values:
            sides = answer.split("="), gold.split("=")
            return bool(values == [None, None] and _same_equation(*sides))
        left, right = values
        assert left is not None and right is not None
        return evaluate.same_value(left, right) or _rounded(answer, right) or _rounded(gold, left)
    except Unreadable:
        if _CALCULUS.search(answer + gold) and "\\text" not in answer:
            return _same_by_math_verify(answer, gold)
        raise


def _same_equation(answer: list[str], gold: list[str]) -> int:
    if len(answer) != 2 or len(gold) != 2:
        return 0
    left, right = (tuple(_expression(side) for side in sides) for sides in (answer, gold))
    return evaluate.same_equation(left, right)


def _single(text: str) -> Expression | None:
    """The value of `text`; of `2+3=5` what its sides agree on; None for an equation."""
    sides = [_expression(side) for side in text.split("=")]
    if len(sides) > 1 and any(side.symbols for side in sides):
        return None
    if not all(evaluate.same_value(side, sides[-1]) for side in sides[:-1]):
        raise Unreadable("it contradicts itself")
    return sides[-1]


@lru_cache(maxsize=512)
def _expression(text: str) -> Expression:
    if text.endswith("\\%"):
        text = f"\\frac{{{text[:-2]}}}{{100}}"
    return parse(text)


def _rounded(decimal: str, value: Expression) -> bool:
    """Whether `decimal` is `value`, irrational, cut or rounded after six digits or more."""
    number = evaluate.decimal_of(value, places=50)
    return number is not None and rounds_to(decimal, number, endless=True)


@lru_cache(maxsize=512)
def _by_math_verify(text: str) -> tuple[Any, ...]:
    """What math-verify reads in one boxed answer; only the whole box, never a number inside it.

    Nothing where a double factorial is in it, which it takes for the factorial of a factorial.
    """
    if _DOUBLE_FACTORIAL.search(text):
        return ()
    from math_verify import LatexExtractionConfig, parse

    whole_box = LatexExtractionConfig(try_extract_without_anchor=False, boxed_match_priority=0)
    return tuple(
        parse(
            f"\\boxed{{{text}}}",
            [whole_box],
            fallback_mode="no_fallback",
            extraction_mode="first_match",
            parsing_timeout=None,
        )
    )


def _number(text: str) -> float | None:
    """What a constant comes to; None for one that takes long: a limit, or a sum without an end."""
    from sympy import Expr, Limit, N, nan, oo, zoo

    value = next(iter(_by_math_verify(text)), None)
    if not isinstance(value, Expr) or value.free_symbols or value.has(Limit, oo, -oo, nan, zoo):
        return None
    try:
        return float(N(value, strict=True))
    except (ArithmeticError, TypeError, ValueError):
        return None


def _contradicts_itself(text: str) -> bool:
    """Whether sums, products and integrals in `text` are no sides of one equation."""
    sides = split(text, _EQUALS)
    if len(sides) == 1:
        return False
    numbers = [number for side in sides if (number := _number(side)) is not None]
    return not all(isclose(number, numbers[-1], rel_tol=1e-6) for number in numbers)


def _same_by_math_verify(answer: str, gold: str) -> bool:
    from math_verify import verify
    from math_verify.grader import safe_sympy_doit
    from sympy import nan, zoo

    values, golds = _by_math_verify(answer), _by_math_verify(gold)
    digits = {"float_rounding": 30, "numeric_precision": 40}
    return (
        bool(values)
        and not _contradicts_itself(answer)
        and verify(list(golds), list(values), timeout_seconds=None, **digits)
        # To SymPy one undefined value is equal to another.
        and not any(safe_sympy_doit(value).has(nan, zoo) for value in golds)
    )


def clear_caches() -> None:
    """Forget what was read so far."""
    _expression.cache_clear()
    _by_math_verify.cache_clear()
