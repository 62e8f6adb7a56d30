"""Expressions to numbers, and whether two of them are the same.

Rational arithmetic stays exact (`Fraction`); roots, logarithms and the like are mpmath's, to as
many digits as are asked for. Two expressions are the same when they agree at points nobody can
foresee, of either sign and parity, from below 1 up to 1000; near zero to 35 digits and then to 175.
Numbers too small for that are compared by the digits they begin with, other constants by as many
as the numbers in them ask for.
"""

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from acpo.verify.latex import Expression, Node, Unreadable, parse
from acpo.verify.points import FAR_SCALES, Point, Points

MAX_BITS = 200_000
MAX_INTEGER_ARGUMENT = 10_000
_EXPONENT_BITS = 200
_CHEAP_BITS, _CHEAP_ARGUMENT = 4_000, 300
_DIGITS, _SURE_DIGITS = 60, 200
_SLACK_DIGITS = 25
_TINY_DIGITS = (500, 2000)
_SPARE_DIGITS, _MOST_DIGITS = 500, 20_000
# Far from zero terms grow and cancel: values that differ there do so however many digits there are.
_FAR_DIGITS = (60, 200, 1000)
_TRIES = 3

_OF_WHOLE_NUMBERS = frozenset({"factorial", "fac2", "binomial"})
_EXPONENTIAL = frozenset({"exp", "sinh", "cosh", "tanh"})

_UNDEFINED = (ZeroDivisionError, ValueError)  # what an expression without a value raises


class TooLarge(BaseException):
    """A number grew past the limit. No `Exception`: math-verify swallows those."""


Value = Any  # Fraction, or a number of mpmath


def exact_value(expression: Expression | str) -> Fraction | None:
    """The value where it is a rational number that is cheap to compute, else None.

    A chain too long for what is left of the caller's stack is left to a worker, too.
    """
    try:
        if isinstance(expression, str):
            expression = parse(expression)
        return None if expression.symbols else _value(expression.node, None)
    except (Unreadable, TooLarge, ArithmeticError, RecursionError):
        return None


def _value(node: Node, point: Point | None, sizes: list[int] | None = None) -> Value:
    """The value of `node` at `point`; without one, exactly or not at all.

    `sizes` gets the bits of what it is computed from.
    """
    operation, *parts = node
    if operation == "number":
        return parts[0]
    if operation == "symbol" and point is not None:
        return point[parts[0]]
    values = [_value(part, point, sizes) for part in parts] if operation != "constant" else []
    if values and operation in _EXACT and all(isinstance(v, Fraction) for v in values):
        if point is None and _is_costly(operation, values):
            raise Unreadable("for a worker to compute")
        if sum(map(_bits, values)) > MAX_BITS:
            raise TooLarge(f"a number of more than {MAX_BITS} bits")
        if (exact := _EXACT[operation](*values)) is not None:
            return exact
    if point is None:
        raise Unreadable("not rational")
    if operation == "constant":
        return _CONSTANTS[parts[0]](_mp())
    numbers = [_inexact(value) for value in values]
    if operation in _EXPONENTIAL and abs(numbers[0]) > MAX_BITS:
        raise TooLarge(f"a number of more than {MAX_BITS} bits")
    if sizes is not None:
        sizes += map(_size, values)
        if operation == "tanh":  # differs from 1 by as little as the exponentials in it are large
            sizes.append(int(2 * abs(numbers[0])))
    mp = _mp()
    result = (_INEXACT.get(operation) or getattr(mp, operation))(*numbers)
    if mp.isnan(result) or (mp.isinf(result) and all(map(mp.isfinite, numbers))):
        raise ZeroDivisionError(f"{operation} of {numbers} has no value")
    return result


def _mp() -> Any:
    import mpmath

    return mpmath.mp


def _is_costly(operation: str, values: list[Fraction]) -> bool:
    """Whether a result may be too large to be made in the caller's process, which has no limit."""
    if operation in _OF_WHOLE_NUMBERS:
        return max(values) > _CHEAP_ARGUMENT
    bits = sum(map(_bits, values))
    return (bits * abs(values[1]) if operation == "^" else bits) > _CHEAP_BITS


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _size(value: Value) -> int:
    """How many bits before or behind the point a number begins; all of them where it is exact."""
    if isinstance(value, Fraction):
        return _bits(value)
    mp = _mp()
    return abs(int(mp.mag(value))) if value and mp.isfinite(value) else 0


def _inexact(value: Value) -> Any:
    mp = _mp()
    number = mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value
    if mp.isfinite(number) and mp.mag(number) > MAX_BITS:
        raise TooLarge(f"a number of more than {MAX_BITS} bits")
    return number


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if base == 0:
        return Fraction(base**exponent)
    if exponent.denominator != 1:
        return None
    if abs(base) == 1:
        return base ** (exponent.numerator % 2)
    size = math.log2(abs(base.numerator)) - math.log2(base.denominator)
    if _bits(exponent) > _EXPONENT_BITS or abs(size * float(exponent)) > MAX_BITS:
        raise TooLarge(f"a power of more than {MAX_BITS} bits")
    return base**exponent.numerator if _bits(base) * abs(exponent) <= MAX_BITS else None


def _power(base: Any, exponent: Any) -> Any:
    mp = _mp()
    finite = base and mp.isfinite(base) and mp.isfinite(exponent)
    if finite and abs(exponent) * abs(mp.log(abs(base), 2)) > MAX_BITS:
        raise TooLarge(f"a power of more than {MAX_BITS} bits")
    return mp.power(base, exponent)


def _exact_root(value: Fraction, degree: Fraction) -> Fraction | None:
    if value < 0 and degree % 2 == 0:
        return None
    roots = []
    for part in (abs(value.numerator), value.denominator):
        root = math.isqrt(part) if degree == 2 else 0
        if degree != 2 and part.bit_length() < 1000:
            root = round(part ** (1 / int(degree)))
        if root ** int(degree) != part:
            return None
        roots.append(root)
    return Fraction(*roots) * (-1 if value < 0 else 1)


def _root(value: Any, degree: Any) -> Any:
    mp = _mp()
    odd = int(degree) % 2 and not mp.im(value) and mp.re(value) < 0
    return -mp.root(-value, int(degree)) if odd else mp.root(value, int(degree))


def _whole(function: Callable[..., int]) -> Callable[..., Fraction | None]:
    """A function of whole numbers, where its arguments are such."""

    def value(*values: Fraction) -> Fraction | None:
        if max(values) > MAX_INTEGER_ARGUMENT:
            name = function.__name__.strip("_")
            raise TooLarge(f"{name} of a number above {MAX_INTEGER_ARGUMENT}")
        if any(v.denominator != 1 or v < 0 for v in values):
            return None
        return Fraction(function(*map(int, values)))

    return value


def _double_factorial(number: int) -> int:
    return math.prod(range(number, 0, -2))


def _small(name: str) -> Callable[..., Any]:
    def value(*values: Any) -> Any:
        if any(abs(v) > MAX_INTEGER_ARGUMENT for v in values):
            raise TooLarge(f"{name} of a number above {MAX_INTEGER_ARGUMENT}")
        return getattr(_mp(), name)(*values)

    return value


_CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "pi": lambda mp: +mp.pi,
    "e": lambda mp: +mp.e,
    "i": lambda mp: mp.mpc(0, 1),
    "inf": lambda mp: mp.inf,
    "degree": lambda mp: mp.pi / 180,
}
_INEXACT: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "abs": abs,
    "^": _power,
    "root": _root,
    **{name: _small(name) for name in _OF_WHOLE_NUMBERS},
}
_EXACT: dict[str, Callable[..., Fraction | None]] = {
    **{name: _INEXACT[name] for name in ("+", "-", "*", "/", "abs")},
    "^": _exact_power,
    "root": _exact_root,
    "factorial": _whole(math.factorial),
    "fac2": _whole(_double_factorial),
    "binomial": _whole(math.comb),
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
}


def same_value(left: Expression, right: Expression) -> bool:
    """Whether two expressions agree wherever both are real, as far as points can tell."""
    return _agree(left, right, _close)


def has_value(expression: Expression) -> bool:
    """Whether a constant is defined: 1/0 and ln 0 are not. Anything with symbols counts as it."""
    sizes: list[Any] = [float("inf")]

    def bounded(value: Value, _: Value, digits: int) -> bool:
        sizes.append(abs(value))  # at a pole, as of tan(pi/2), rounding leaves as many digits
        return bool(sizes[-1] <= max(sizes[-2], 1) * 10**_SLACK_DIGITS)

    return bool(expression.symbols) or _agree(expression, expression, bounded)


def same_equation(left: tuple[Expression, ...], right: tuple[Expression, ...]) -> int:
    """Whether `l - r` of one is a constant multiple of the other's: its sign, or 0 for no."""
    ratios: list[Any] = []

    def proportional(a: Value, b: Value, digits: int) -> bool:
        if not a or not b:
            return bool(a) == bool(b)
        ratios.append(a / b)
        return _close(ratios[-1], ratios[0], min(digits, _DIGITS))

    if not _agree(_difference(*left), _difference(*right), proportional) or not ratios:
        return 0
    return 1 if _mp().re(_inexact(ratios[0])) > 0 else -1


def _difference(left: Expression, right: Expression) -> Expression:
    node = ("-", left.node, right.node)
    return Expression(node, left.symbols | right.symbols, left.complex or right.complex)


def _agree(left: Expression, right: Expression, close: Callable[[Any, Any, int], bool]) -> bool:
    """Whether `close` holds at some points where both are real; at all where they never are."""
    symbols = left.symbols | right.symbols
    # Who writes |m| means that m may be negative.
    points = Points(symbols, signed=_takes(left.node, "abs") or _takes(right.node, "abs"))
    real: list[bool] = []
    unreal: list[bool] = []
    for turn, scale in points.turns():
        for _ in range(_TRIES if symbols else 1):
            try:
                point = points.draw(turn, scale)
                agree, is_real = _agree_at(point, left, right, close, scale in FAR_SCALES)
            except _UNDEFINED:
                continue
            except TooLarge:
                if scale in FAR_SCALES:
                    break
                raise
            (real if is_real else unreal).append(agree)
            if is_real:
                break
        if False in real:
            return False
    return bool(real) or (bool(unreal) and all(unreal))


def _takes(node: Node, operation: str) -> bool:
    """Whether `operation` is anywhere in `node`."""
    waiting = [node]
    while waiting:
        name, *parts = waiting.pop()
        if name == operation:
            return True
        waiting += [part for part in parts if isinstance(part, tuple)]
    return False


def _agree_at(
    point: Point,
    left: Expression,
    right: Expression,
    close: Callable[[Any, Any, int], bool],
    far: bool,
) -> tuple[bool, bool]:
    """(whether they agree, to few digits and to many, if `far` to few or to many; are both real).

    Where an expression is about complex numbers, all of them are as good as real.
    """
    mp = _mp()
    for digits in _FAR_DIGITS if far else (_DIGITS, _SURE_DIGITS):
        with mp.workdps(digits):
            a, b = _value(left.node, point), _value(right.node, point)
            exact = isinstance(a, Fraction) and isinstance(b, Fraction)
            if not exact:
                a, b = _inexact(a), _inexact(b)
            is_real = exact or left.complex or right.complex or not (mp.im(a) or mp.im(b))
            agree = close(a, b, _DIGITS if far else digits)
        if exact or agree is far or (far and not is_real):
            break
    if agree and close is _close and not (exact or far):
        if _is_tiny(a, b):
            agree = _agree_near_zero(point, left, right, (a, b))
        elif not point:
            agree = _agree_to_the_last(left, right)
    return agree, is_real


def _is_tiny(a: Any, b: Any) -> bool:
    """Whether numbers that are close as far as `_close` can tell may begin with other digits."""
    return bool(max(abs(a), abs(b)) <= _mp().mpf(10) ** (_DIGITS - _SURE_DIGITS))


def _agree_near_zero(
    point: Point, left: Expression, right: Expression, values: tuple[Any, ...]
) -> bool:
    """Whether two numbers near zero, so far computed as `values`, are the same.

    A number that differs from zero keeps its first digits when more are computed; what is left of
    terms that cancel does not, and is zero.
    """
    mp = _mp()
    kept = [False, False]
    for digits in _TINY_DIGITS:
        with mp.workdps(digits):
            before = values
            values = tuple(_inexact(_value(side.node, point)) for side in (left, right))
            if any(values) and _begin_alike(*values):
                return True
            kept = [bool(b) and _begin_alike(a, b) for a, b in zip(before, values, strict=True)]
            if all(kept):
                return False
    return not any(kept) and bool(max(map(abs, values)) <= mp.mpf(10) ** (_SLACK_DIGITS - digits))


def _agree_to_the_last(left: Expression, right: Expression) -> bool:
    """Whether two constants are the same, however little they differ beside what is in them.

    Where numbers have n digits before or behind the point, rounding costs up to 2n digits, and what
    is no zero begins within 2n and some.
    """
    mp = _mp()
    with mp.workdps(_SURE_DIGITS):
        sizes: list[int] = []
        sizes += [_size(_value(side.node, {}, sizes)) for side in (left, right)]
    size = int(max(sizes) * math.log10(2)) + 1
    digits = 4 * size + _SPARE_DIGITS + 4 * _SLACK_DIGITS
    if digits > _MOST_DIGITS:
        raise TooLarge(f"numbers that take {digits} digits to tell apart")
    with mp.workdps(digits):
        a, b = (_inexact(_value(side.node, {})) for side in (left, right))
        return bool(a == b or abs(a - b) <= mp.mpf(10) ** (-2 * size - _SPARE_DIGITS))


def _begin_alike(a: Any, b: Any) -> bool:
    """Whether the first digits of two numbers are the same."""
    return bool(abs(a - b) <= max(abs(a), abs(b)) * _mp().mpf(10) ** (_SLACK_DIGITS - _DIGITS))


def _close(a: Value, b: Value, digits: int) -> bool:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    mp = _mp()
    a, b = _inexact(a), _inexact(b)
    if not (mp.isfinite(a) and mp.isfinite(b)):
        return bool(a == b)
    return bool(abs(a - b) <= max(1, abs(a), abs(b)) * mp.mpf(10) ** (_SLACK_DIGITS - digits))


def decimal_of(expression: Expression, places: int) -> Fraction | None:
    """An irrational constant cut after so many places; None for anything else."""
    if expression.symbols or expression.complex or exact_value(expression) is not None:
        return None
    mp = _mp()
    with mp.workdps(places + 10):
        try:
            number = _value(expression.node, {})
        except _UNDEFINED:
            return None
        if mp.im(number) or not mp.isfinite(number):
            return None
        return Fraction(int(mp.floor(mp.re(number) * 10**places)), 10**places)
