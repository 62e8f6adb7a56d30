r"""LaTeX to expressions: a small parser whose every refusal is `Unreadable`, never a guess.

What it does not know, two numbers side by side (but 5!5! is a product), a sign without an operand:
none of it is read.
"""

import re
import string
from fractions import Fraction
from typing import Any, NamedTuple

_MAX_DEGREE = 100
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{5,}")
_TOKEN = re.compile(
    r"\\[a-zA-Z]+|\\.|[0-9]+(?:\.[0-9]*)?|\.[0-9]+|[a-zA-Z]'*|!(?:\s*!)*|\S", re.DOTALL
)
_DIGIT, _LETTER = frozenset(string.digits), frozenset(string.ascii_letters)
_ACCENTS = frozenset({"\\overline", "\\vec", "\\hat", "\\bar", "\\tilde", "\\widehat", "\\mathbb"})
_OPERATORS = {"*": "*", "\\cdot": "*", "\\times": "*", "\\ast": "*", "/": "/", "\\div": "/"}
_CLOSERS = {"(": ")", "[": "]", "{": "}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
_CLOSERS |= {"|": "|", "\\lvert": "\\rvert", "\\vert": "\\vert"}
_FENCES = {"|": "abs", "\\lvert": "abs", "\\vert": "abs", "\\lfloor": "floor", "\\lceil": "ceil"}
_OF_TWO = {"\\frac": "/", **dict.fromkeys(("\\binom", "\\dbinom", "\\tbinom"), "binomial")}
_DERIVATIVE = re.compile(
    r"\\frac \{ d[^{}]*(?:\{[^{}]*\}[^{}]*)*\} \{ d [a-zA-Z] (?:\^ (?:\w|\{ \w \}) )?\}"
    r"|(?:^|[^a-zA-Z ] )d (?:\^ (?:\w|\{ \w \}) )?(?:[a-zA-Z] )?/ d [a-zA-Z](?!')"
)
r"""\frac{d}{dx}, \frac{d^2y}{dx^2} and dy/dx, with a space behind every token."""
_CONSTANTS = {"\\pi": "pi", "\\infty": "inf"}
_GREEK_NAMES = """
alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho
sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell
"""
_GREEK = frozenset("\\" + name for name in _GREEK_NAMES.split())
_FUNCTIONS = {
    "\\" + name: name
    for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp")
}
_INVERTIBLE = ("sin", "cos", "tan", "cot", "sec", "csc")
_FUNCTIONS |= {"\\arc" + name: "a" + name for name in _INVERTIBLE}
_FUNCTIONS |= {"\\ln": "ln", "\\log": "ln", "\\lg": "log10"}


class Unreadable(Exception):
    """The text is no expression, or more than one."""


Node = tuple[Any, ...]  # (operation, *nodes), ("number", Fraction) or ("symbol", name)


class Expression(NamedTuple):
    """A parsed expression."""

    node: Node
    symbols: frozenset[str] = frozenset()
    complex: bool = False


def parse(text: str) -> Expression:
    """The expression that all of `text` is. Raises Unreadable for anything else."""
    try:
        return _Parser(text).whole()
    except RecursionError:
        raise Unreadable("nested too deep") from None


_MINUS_ONE: Node = ("number", Fraction(-1))


def _power_node(base: Node, exponent: Node) -> Node:
    r"""x^{2/3} as the square of the third root, which is real where \sqrt[3]{x} is."""
    match exponent:
        case ("/", ("number", top), ("number", bottom)) if bottom % 2 == 1 < bottom <= _MAX_DEGREE:
            return ("^", ("root", base, ("number", bottom)), ("number", top))
    return ("^", base, exponent)


def _is_number(token: str) -> bool:
    return token[0] in _DIGIT or (token[0] == "." and len(token) > 1)


class _Parser:
    def __init__(self, text: str) -> None:
        if word := _WORD.search(text):
            raise Unreadable(f"{word[0][:20]!r} is a word")
        self._tokens = _TOKEN.findall(text.strip())
        if _DERIVATIVE.search(" ".join(self._tokens)):
            raise Unreadable("a derivative")
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
        """The next token; "" at the end."""
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _take(self, expected: str | None = None) -> str:
        token = self._peek()
        if not token or (expected is not None and token != expected):
            raise Unreadable(f"{expected or 'something'} is missing")
        self._position += 1
        return token

    def _sum(self) -> Node:
        value = self._product()
        while (symbol := self._peek()) in ("+", "-"):
            self._take()
            value = (symbol, value, self._product())
        return value

    def _product(self) -> Node:
        value = self._signed()
        while True:
            token = self._peek()
            if token in _OPERATORS:
                self._take()
                value = (_OPERATORS[token], value, self._signed())
            elif self._starts_factor(token):
                value = ("*", value, self._factor())
            else:
                return value

    def _starts_factor(self, token: str) -> bool:
        """Whether `token` multiplies what stands before it without a sign between them."""
        if not token or token in "+-)]}!^_,;:=<>&'" or token in _CLOSERS.values():
            return token in ("|", "\\vert") and not self._bars
        if _is_number(token) and self._tokens[self._position - 1][0] != "!":
            raise Unreadable("two numbers side by side")
        return True

    def _signed(self) -> Node:
        sign = self._take() if self._peek() in ("+", "-") else ""
        value = self._factor()
        return ("*", _MINUS_ONE, value) if sign == "-" else value

    def _factor(self) -> Node:
        value = self._atom()
        while True:
            token = self._peek()
            if token == "^":
                self._take()
                value = _power_node(value, self._script())
            elif token.startswith("!"):
                self._take()
                marks = token.count("!")
                if marks > 2:  # a factorial of a factorial has brackets
                    raise Unreadable("more than a double factorial")
                value = ("factorial" if marks == 1 else "fac2", value)
            elif token == "\\degree":
                self._take()
                value = ("*", value, ("constant", "degree"))
            else:
                return value

    def _script(self) -> Node:
        """What stands behind `^`: one group, or one signed number or symbol."""
        negative = self._peek() == "-" and bool(self._take())
        value = self._atom()
        if self._peek() == "^":  # 2^3^2 is 2^9
            self._take()
            value = _power_node(value, self._script())
        return ("*", _MINUS_ONE, value) if negative else value

    def _group(self) -> Node:
        opening = self._take()
        bars, self._bars = self._bars, int(opening in ("|", "\\vert"))
        value = self._sum()
        self._take(_CLOSERS[opening])
        self._bars = bars
        return value

    def _argument(self) -> Node:
        """One argument of a command: a group, or a single digit, letter or command."""
        token = self._peek()
        if token == "{":
            return self._group()
        if token[:1] in _DIGIT and len(token) > 1:
            self._tokens[self._position : self._position + 1] = [token[0], token[1:]]
        return self._atom()

    def _atom(self) -> Node:
        token = self._peek()
        if token in ("(", "[", "{"):
            return self._group()
        if token in _FENCES:
            return (_FENCES[token], self._group())
        self._take()
        if _is_number(token):
            return ("number", Fraction(token.rstrip(".")))
        if token[0] in _LETTER or token in _GREEK or token in _ACCENTS:
            return self._symbol(token)
        return self._command(token)

    def _symbol(self, token: str) -> Node:
        if token in _ACCENTS:
            token += self._raw_group()
        if self._peek() == "_":
            self._take()
            token += "_" + (self._raw_group() if self._peek() == "{" else self._take())
        if token in ("e", "i"):
            self._complex |= token == "i"
            return ("constant", token)
        self._symbols.add(token)
        return ("symbol", token)

    def _raw_group(self) -> str:
        """The text of one flat `{...}` group, as part of a name."""
        self._take("{")
        parts = []
        while self._peek() != "}":
            parts.append(self._take())
        self._take()
        return "".join(parts)

    def _command(self, token: str) -> Node:
        if token in _OF_TWO:
            return (_OF_TWO[token], self._argument(), self._argument())
        if token == "\\sqrt":
            return self._square_root()
        if token in _CONSTANTS:
            return ("constant", _CONSTANTS[token])
        if token in _FUNCTIONS:
            return self._call(token)
        raise Unreadable(f"{token!r} is not understood")

    def _square_root(self) -> Node:
        degree = 2
        if self._peek() == "[":
            self._take()
            name = self._take()
            self._take("]")
            if not set(name) <= _DIGIT or not 2 <= int(name) <= _MAX_DEGREE:
                raise Unreadable(f"a root of degree {name[:20]}")
            degree = int(name)
        return ("root", self._argument(), ("number", Fraction(degree)))

    def _call(self, token: str) -> Node:
        base, exponent = None, None
        for _ in range(2):
            if self._peek() == "_" and token == "\\log":
                self._take()
                base = self._argument()
            elif self._peek() == "^":
                self._take()
                exponent = self._script()
        name = _FUNCTIONS[token]
        if exponent == ("*", _MINUS_ONE, ("number", Fraction(1))):
            if name not in _INVERTIBLE:
                raise Unreadable(f"{token}^-1 may be the inverse or the reciprocal")
            name, exponent = "a" + name, None
        grouped = self._peek() in ("(", "{", "[")
        argument = self._group() if grouped else self._open_argument()
        value: Node = (name, argument)
        if base is not None:
            value = ("/", value, ("ln", base))
        return value if exponent is None else _power_node(value, exponent)

    def _open_argument(self) -> Node:
        """The argument of a function without parentheses: the product up to the next sign."""
        argument = self._factor()
        while (token := self._peek()) not in _OPERATORS and self._starts_factor(token):
            if token in _FUNCTIONS:
                break
            argument = ("*", argument, self._factor())
        if self._peek() == "/":
            raise Unreadable("the argument of a function without parentheses, divided")
        return argument
