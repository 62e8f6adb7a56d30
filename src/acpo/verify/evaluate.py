r"""LaTeX to numbers: a small parser whose every refusal is a `Unreadable`, never a guess.

An expression becomes a function of its symbols. Rational arithmetic stays exact (`Fraction`);
roots, logarithms and the like are mpmath's, to as many digits as the caller has set. Two
expressions are the same when they agree wherever they are asked, see `same_value`.
"""

import math
import re
import string
from collections.abc import Callable, Iterator
from fractions import Fraction
from random import SystemRandom
from typing import Any, NamedTuple

MAX_BITS = 200_000
MAX_INTEGER_ARGUMENT = 10_000
_EXPONENT_BITS = 200
_DIGITS, _SURE_DIGITS = 60, 200
_SLACK_DIGITS = 25
_POINTS, _TRIES = 3, 9

_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[0-9]+(?:\.[0-9]*)?|\.[0-9]+|[a-zA-Z]'*|\s+|.", re.DOTALL)
_DIGIT, _LETTER = frozenset(string.digits), frozenset(string.ascii_letters)
_INTEGER_SYMBOLS = frozenset("jkmn")
_ACCENTS = frozenset({"\\overline", "\\vec", "\\hat", "\\bar", "\\tilde", "\\widehat", "\\mathbb"})
_OPERATORS = {"*": "*", "\\cdot": "*", "\\times": "*", "\\ast": "*", "/": "/", "\\div": "/"}
_CLOSERS = {"(": ")", "[": "]", "{": "}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
_CLOSERS |= {"|": "|", "\\lvert": "\\rvert", "\\vert": "\\vert"}
_GREEK = frozenset(
    "\\" + name
    for name in (
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu "
        "xi rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi "
        "Psi Omega ell"
    ).split()
)
_FUNCTIONS = {"\\" + name: name for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp")}
_INVERTIBLE = ("sin", "cos", "tan", "cot", "sec", "csc")
_FUNCTIONS |= {"\\arc" + name: "a" + name for name in _INVERTIBLE}
_FUNCTIONS |= {"\\ln": "ln", "\\log": "ln", "\\lg": "log10"}


class Unreadable(Exception):
    """The text is no expression, or more than one."""


class TooLarge(BaseException):
    """A number grew past the limit. No `Exception`: math-verify swallows those."""


Value = Any  # Fraction, or a number of mpmath
Environment = dict[str, Value]
Term = Callable[[Environment], Value]


class Expression(NamedTuple):
    """A parsed expression."""

    value: Term
    symbols: frozenset[str]
    complex: bool


def parse(text: str) -> Expression:
    """The expression that all of `text` is. Raises Unreadable for anything else."""
    try:
        return _Parser(text).whole()
    except RecursionError:
        raise Unreadable("nested too deep") from None


def exact_value(text: str) -> Fraction | None:
    """The value of `text` where it is a rational number that is cheap to compute, else None."""
    try:
        return exact_of(parse(text))
    except Unreadable:
        return None


def exact_of(expression: Expression) -> Fraction | None:
    """The value of `expression` where it is rational and cheap to compute, else None."""
    if expression.symbols or expression.complex:
        return None
    try:
        value = expression.value({"": None})
    except (Unreadable, TooLarge, ArithmeticError):
        return None
    return value if isinstance(value, Fraction) else None


def _mp() -> Any:
    import mpmath

    return mpmath.mp


def _inexact(environment: Environment, *values: Value) -> list[Any]:
    """`values` for mpmath. `exact_value` asks for no such thing, and says so by its mark."""
    if "" in environment:
        raise Unreadable("not rational")
    mp = _mp()
    numbers = [
        mp.mpf(v.numerator) / v.denominator if isinstance(v, Fraction) else v for v in values
    ]
    for number in numbers:
        if mp.isfinite(number) and mp.mag(number) > MAX_BITS:
            raise TooLarge(f"a number of more than {MAX_BITS} bits")
    return numbers


def _arithmetic(symbol: str, left: Term, right: Term) -> Term:
    def value(environment: Environment) -> Value:
        a, b = left(environment), right(environment)
        if not (isinstance(a, Fraction) and isinstance(b, Fraction)):
            a, b = _inexact(environment, a, b)
        elif _bits(a) + _bits(b) > MAX_BITS:
            raise TooLarge(f"a number of more than {MAX_BITS} bits")
        if symbol == "+":
            return a + b
        if symbol == "-":
            return a - b
        return a * b if symbol == "*" else a / b

    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _power(base: Term, exponent: Term) -> Term:
    def value(environment: Environment) -> Value:
        a, b = base(environment), exponent(environment)
        rational = isinstance(a, Fraction) and isinstance(b, Fraction)
        if rational and a == 0:
            return Fraction(0) ** b
        if rational and b.denominator == 1:
            if abs(a) == 1:
                return a ** (b.numerator % 2)
            size = math.log2(abs(a.numerator)) - math.log2(a.denominator)
            if _bits(b) > _EXPONENT_BITS or abs(size * float(b)) > MAX_BITS:
                raise TooLarge(f"a power of more than {MAX_BITS} bits")
            if _bits(a) * abs(b) <= MAX_BITS:
                return a**b.numerator
        if rational and a < 0 and b.denominator % 2:
            return (-1) ** b.numerator * _power(lambda _: -a, lambda _: b)(environment)
        a, b = _inexact(environment, a, b)
        mp = _mp()
        if a and mp.isfinite(a) and mp.isfinite(b) and abs(b) * abs(mp.log(abs(a), 2)) > MAX_BITS:
            raise TooLarge(f"a power of more than {MAX_BITS} bits")
        return mp.power(a, b)

    return value


def _root(radicand: Term, degree: int) -> Term:
    def value(environment: Environment) -> Value:
        a = radicand(environment)
        if isinstance(a, Fraction) and (a >= 0 or degree % 2):
            sign = -1 if a < 0 else 1
            roots = [_whole_root(abs(part), degree) for part in (a.numerator, a.denominator)]
            if None not in roots:
                return sign * Fraction(*roots)
            return sign * _mp().root(_inexact(environment, abs(a))[0], degree)
        (a,) = _inexact(environment, a)
        mp = _mp()
        return -mp.root(-a, degree) if degree % 2 and not mp.im(a) and a < 0 else mp.root(a, degree)

    return value


def _whole_root(number: int, degree: int) -> int | None:
    root = math.isqrt(number) if degree == 2 else 0
    if degree != 2 and number.bit_length() < 1000:
        root = round(number ** (1 / degree))
    return root if root**degree == number else None


def _factorial(argument: Term) -> Term:
    def value(environment: Environment) -> Value:
        a = argument(environment)
        _small(a)
        if isinstance(a, Fraction) and a.denominator == 1 and a >= 0:
            return Fraction(math.factorial(a.numerator))
        return _mp().factorial(*_inexact(environment, a))

    return value


def _binomial(upper: Term, lower: Term) -> Term:
    def value(environment: Environment) -> Value:
        a, b = upper(environment), lower(environment)
        _small(a, b)
        if all(isinstance(v, Fraction) and v.denominator == 1 and v >= 0 for v in (a, b)):
            return Fraction(math.comb(a.numerator, b.numerator))
        return _mp().binomial(*_inexact(environment, a, b))

    return value


def _small(*values: Value) -> None:
    if any(abs(value) > MAX_INTEGER_ARGUMENT for value in values):
        raise TooLarge(f"factorial or binomial of a number above {MAX_INTEGER_ARGUMENT}")


def _function(name: str, argument: Term) -> Term:
    def value(environment: Environment) -> Value:
        (a,) = _inexact(environment, argument(environment))
        if name in ("exp", "sinh", "cosh") and abs(a) > MAX_BITS:
            raise TooLarge(f"a number of more than {MAX_BITS} bits")
        return getattr(_mp(), name)(a)

    return value


def _rounded(rounding: Callable[[Any], int], argument: Term) -> Term:
    def value(environment: Environment) -> Value:
        a = argument(environment)
        if isinstance(a, Fraction):
            return Fraction(rounding(a))
        if _mp().im(a) or not _mp().isfinite(a):
            raise Unreadable("rounding of something not real")
        return Fraction(int(_mp().floor(a) if rounding is math.floor else _mp().ceil(a)))

    return value


def _is_number(token: str) -> bool:
    return token[0] in _DIGIT or (token[0] == "." and len(token) > 1)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text.strip())
        self._position = 0
        self._bars = 0
        self._symbols: set[str] = set()
        self._complex = False

    def whole(self) -> Expression:
        value = self._sum()
        if self._peek():
            raise Unreadable(f"{self._peek()!r} is out of place")
        return Expression(value, frozenset(self._symbols), self._complex)

    def _peek(self) -> str:
        """The next token that is no space; "" at the end."""
        while self._position < len(self._tokens) and self._tokens[self._position].isspace():
            self._position += 1
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _take(self, expected: str | None = None) -> str:
        token = self._peek()
        if not token or (expected is not None and token != expected):
            raise Unreadable(f"{expected or 'something'} is missing")
        self._position += 1
        return token

    def _sum(self) -> Term:
        value = self._product()
        while (symbol := self._peek()) in ("+", "-"):
            self._take()
            value = _arithmetic(symbol, value, self._product())
        return value

    def _product(self) -> Term:
        value = self._signed()
        while True:
            token = self._peek()
            if token in _OPERATORS:
                self._take()
                value = _arithmetic(_OPERATORS[token], value, self._signed())
            elif self._starts_factor(token):
                value = _arithmetic("*", value, self._factor())
            else:
                return value

    def _starts_factor(self, token: str) -> bool:
        """Whether `token` multiplies what stands before it without a sign between them."""
        if not token or token in "+-)]}!^_,;:=<>&'" or token in _CLOSERS.values():
            return token in ("|", "\\vert") and not self._bars
        if _is_number(token):
            raise Unreadable("two numbers side by side")
        return True

    def _signed(self) -> Term:
        sign = self._take() if self._peek() in ("+", "-") else ""
        value = self._factor()
        return _arithmetic("*", lambda _: Fraction(-1), value) if sign == "-" else value

    def _factor(self) -> Term:
        value = self._atom()
        while True:
            token = self._peek()
            if token == "^":
                self._take()
                value = _power(value, self._script())
            elif token == "!":
                self._take()
                if self._peek() == "!":
                    raise Unreadable("a double factorial")
                value = _factorial(value)
            elif token == "\\degree":
                self._take()
                value = _arithmetic("*", value, self._degree)
            else:
                return value

    @staticmethod
    def _degree(environment: Environment) -> Value:
        _inexact(environment)
        return _mp().pi / 180

    def _script(self) -> Term:
        """What stands behind `^`: one group, or one signed number or symbol."""
        if self._peek() in ("{", "("):
            return self._group()
        negative = self._peek() == "-" and bool(self._take())
        value = self._atom()
        return _arithmetic("*", lambda _: Fraction(-1), value) if negative else value

    def _group(self) -> Term:
        opening = self._take()
        bars, self._bars = self._bars, int(opening in ("|", "\\vert"))
        value = self._sum()
        self._take(_CLOSERS[opening])
        self._bars = bars
        return value

    def _argument(self) -> Term:
        """One argument of a command: a group, or a single digit, letter or command."""
        token = self._peek()
        if token == "{":
            return self._group()
        if token[:1] in _DIGIT and len(token) > 1:
            self._tokens[self._position : self._position + 1] = [token[0], token[1:]]
        return self._atom()

    def _atom(self) -> Term:
        token = self._peek()
        if token in ("(", "[", "{"):
            return self._group()
        if token in ("|", "\\lvert", "\\vert"):
            inner = self._group()
            return lambda environment: abs(inner(environment))
        if token in ("\\lfloor", "\\lceil"):
            return _rounded(math.floor if token == "\\lfloor" else math.ceil, self._group())
        self._take()
        if _is_number(token):
            number = Fraction(token.rstrip("."))
            return lambda _: number
        if token[0] in _LETTER or token in _GREEK or token in _ACCENTS:
            return self._symbol(token)
        return self._command(token)

    def _symbol(self, token: str) -> Term:
        if token in _ACCENTS:
            token += self._raw_group()
        if self._peek() == "_":
            self._take()
            token += "_" + (self._raw_group() if self._peek() == "{" else self._take())
        if token == "e":
            return lambda environment: (_inexact(environment), _mp().e)[1] * 1
        if token == "i":
            self._complex = True
            return lambda environment: (_inexact(environment), _mp().mpc(0, 1))[1]
        self._symbols.add(token)
        return lambda environment: environment[token]

    def _raw_group(self) -> str:
        """The text of one flat `{...}` group, as part of a name."""
        self._take("{")
        parts = []
        while self._peek() != "}":
            parts.append(self._take())
        self._take()
        return "".join(parts)

    def _command(self, token: str) -> Term:
        if token == "\\frac":
            return _arithmetic("/", self._argument(), self._argument())
        if token in ("\\binom", "\\dbinom", "\\tbinom"):
            return _binomial(self._argument(), self._argument())
        if token == "\\sqrt":
            return self._square_root()
        if token == "\\pi":
            return lambda environment: (_inexact(environment), _mp().pi * 1)[1]
        if token == "\\infty":
            return lambda environment: (_inexact(environment), _mp().inf)[1]
        if token in _FUNCTIONS:
            return self._call(token)
        raise Unreadable(f"{token!r} is not understood")

    def _square_root(self) -> Term:
        degree = 2
        if self._peek() == "[":
            self._take()
            name = self._take()
            self._take("]")
            if not set(name) <= _DIGIT or not 2 <= int(name) <= 100:
                raise Unreadable(f"a root of degree {name[:20]}")
            degree = int(name)
        return _root(self._argument(), degree)

    def _call(self, token: str) -> Term:
        base, exponent = None, None
        for _ in range(2):
            if self._peek() == "_" and token == "\\log":
                self._take()
                base = self._argument()
            elif self._peek() == "^":
                self._take()
                exponent = self._script()
        name = _FUNCTIONS[token]
        if exponent is not None and exact_of(Expression(exponent, frozenset(), False)) == -1:
            if name not in _INVERTIBLE:
                raise Unreadable(f"{token}^-1 may be the inverse or the reciprocal")
            name, exponent = "a" + name, None
        if self._peek() in ("(", "{", "["):
            argument = self._group()
        else:
            argument = self._open_argument()
        value = _function(name, argument)
        if base is not None:
            value = _arithmetic("/", value, _function("ln", base))
        return value if exponent is None else _power(value, exponent)

    def _open_argument(self) -> Term:
        """The argument of a function without parentheses: the product up to the next sign."""
        argument = self._factor()
        while (token := self._peek()) not in _OPERATORS and self._starts_factor(token):
            if token in _FUNCTIONS:
                break
            argument = _arithmetic("*", argument, self._factor())
        if self._peek() == "/":
            raise Unreadable("the argument of a function without parentheses, divided")
        return argument


def _points(symbols: frozenset[str]) -> Iterator[Environment]:
    """Places to compare at: small and large, positive and negative, nobody can foresee them."""
    random = SystemRandom()
    if not symbols:
        yield {}
        return
    for attempt in range(_TRIES):
        sign, scale = (1, 1, -1)[attempt % 3], (1, 3, 2)[attempt % 3]
        yield {
            name: Fraction(random.randrange(2, 60))
            if name in _INTEGER_SYMBOLS
            else Fraction(sign * scale * random.randrange(1, 1999), 1999)
            for name in sorted(symbols)
        }


def same_value(left: Expression, right: Expression) -> bool:
    """Whether two expressions agree wherever both are defined, as far as points can tell."""
    return _agree(left, right, lambda a, b, digits: _close(a - b, a, b, digits))


def same_equation(left: tuple[Expression, ...], right: tuple[Expression, ...]) -> int:
    """Whether `l - r` of one is a constant multiple of the other's: its sign, or 0 for no."""
    ratios: list[Any] = []

    def proportional(a: Any, b: Any, digits: int) -> bool:
        if not a or not b:
            return bool(a) == bool(b)
        ratios.append(a / b)
        return _close(ratios[-1] - ratios[0], ratios[0], ratios[-1], digits - 30)

    sides = [_difference(*pair) for pair in (left, right)]
    if not _agree(*sides, proportional) or not ratios:
        return 0
    return 1 if _mp().re(*_inexact({}, ratios[0])) > 0 else -1


def _difference(left: Expression, right: Expression) -> Expression:
    symbols = left.symbols | right.symbols
    value = _arithmetic("-", left.value, right.value)
    return Expression(value, symbols, left.complex or right.complex)


def _agree(left: Expression, right: Expression, close: Callable[[Any, Any, int], bool]) -> bool:
    mp = _mp()
    imaginary = left.complex or right.complex
    compared = 0
    skipped = []
    for point in _points(left.symbols | right.symbols):
        verdict = True
        for digits in (_DIGITS, _SURE_DIGITS):
            with mp.workdps(digits):
                try:
                    a, b = left.value(point), right.value(point)
                    if not (isinstance(a, Fraction) and isinstance(b, Fraction)):
                        a, b = _inexact({}, a, b)
                except (ZeroDivisionError, ValueError):
                    verdict = None
                    break
                real = imaginary or not (_mp_im(a) or _mp_im(b))
                verdict = close(a, b, digits)
            if not verdict:
                break
        if verdict is None:
            continue
        if not real:
            skipped.append(verdict)
            continue
        if not verdict:
            return False
        compared += 1
        if compared == _POINTS:
            return True
    if compared == 0:
        return bool(skipped) and all(skipped)
    return compared >= 1


def _mp_im(value: Value) -> Any:
    return 0 if isinstance(value, Fraction) else _mp().im(value)


def _close(difference: Value, a: Value, b: Value, digits: int) -> bool:
    if isinstance(difference, Fraction):
        return difference == 0
    mp = _mp()
    if not mp.isfinite(difference):
        return bool(a == b)
    scale = max([1, *(abs(v) for v in _inexact({}, a, b))])
    return bool(abs(difference) <= scale * mp.mpf(10) ** (_SLACK_DIGITS - digits))
