"""What an answer is made of, and whether two answers are made of the same.

An answer is a list, a set, a point or interval, a union of intervals, a matrix, or one part. Parts
are compared by a judge, which may leave the question open.
"""

import re
import string
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import inf
from typing import NamedTuple

from acpo.verify.evaluate import exact_value

Judge = Callable[[str, str], bool | None]

_AND, _OR = (
    rf"[,;]? *(?:\\text\{{ *,? *{word} *\}}|(?<![a-zA-Z\\]){word}(?![a-zA-Z]))"
    for word in ("and", "or")
)
_SEPARATOR = re.compile(f"{_AND}|{_OR}|[,;]")
_RELATION = re.compile(r"\\le |\\ge |\\ne |[<>]")
_EQUALS = re.compile(r"=|\\in(?![a-zA-Z])")
_OPENING, _CLOSING = "([{", ")]}"
_MATRIX = re.compile(
    r"(?P<factor>(?:(?!\\det)[^&=])*?)[(\[]? ?\\begin\{pmatrix\}(?P<rows>(?:(?!\\begin|\\end).)*)"
    r"\\end\{pmatrix\} ?[)\]]?"
)
_ROW_END, _COLUMN_END = re.compile(r"\\\\"), re.compile("&")
_CUP = re.compile(r"\\cup(?![a-zA-Z])")
_GREEK = r"\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|omega)(?![a-zA-Z])"
_CALL = r"\((?:[^()=]|\([^()=]*\))*+\)"
# What begins with a minus is no name: -x = 5 says that x is -5.
_NAME = re.compile(
    r"(?!(?:\\text\{[^{}]*\}|[{ ])*-)"
    rf"(?:\\text\{{[^{{}}]*\}}|\\frac|{_GREEK}|\\(?:angle|triangle|overline|vec|cdot)(?![a-zA-Z])"
    rf"|(?<=[a-zA-Z])\^\{{-1\}}(?:{_CALL})?|[a-zA-Z](?:_(?:\w|\{{[^{{}}]*\}}))?'?(?:{_CALL})?"
    r"|\([a-zA-Z, ]*\)|[-+{} ])++"
)
_SYMBOL = re.compile(rf"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])|{_GREEK}")
_ANGLE = rf"\d? ?(?:{_SYMBOL.pattern})"
# Of a number alone. |x| is none: |x| = 5 says that x is one of two.
_NAME_OF_NUMBER = re.compile(
    rf"\\(?:sin|cos|tan|cot|sec|csc) *(?:{_ANGLE}|\({_ANGLE}(?: ?[-+] ?{_ANGLE})*\)"
    r"|\\angle ?[A-Z]+)|\|[A-Zz]{1,2}\||P ?\([A-Z] ?= ?\w+\)|[A-Z]\[[A-Z]\]"
)
_NAMES = re.compile(r"\( ?[a-zA-Z](?: ?, ?[a-zA-Z])+ ?\)")
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![a-zA-Z])")


class Shape(NamedTuple):
    """An answer taken apart.

    Attributes:
        kind: `part`, `list`, `set`, `union`, `matrix`, `relation`, `and` for inequalities that all
            hold, or the two brackets around a point or an interval.
        items: What it is made of.
        text: A part as it is written, or the sign of a relation.
        name: What it is said to be equal to, or the variable of an inequality.
    """

    kind: str
    items: tuple["Shape", ...] = ()
    text: str = ""
    name: str = ""


def split(text: str, separator: re.Pattern[str]) -> list[str]:
    """`text` cut at every `separator` that no bracket encloses."""
    pieces, depth, start, position = [], 0, 0, 0
    while position < len(text):
        found = separator.match(text, position) if depth == 0 else None
        if found and found.end() > position:
            pieces.append(text[start:position])
            start = position = found.end()
            continue
        char = text[position]
        depth += (char in _OPENING) - (char in _CLOSING)
        position += 2 if char == "\\" and text[position + 1 : position + 2] not in ("{", "}") else 1
    return [piece.strip() for piece in (*pieces, text[start:])]


def shape(text: str) -> Shape:
    """The structure of a normalised answer."""
    text = text.strip()
    pieces = split(text, _SEPARATOR)
    if len(pieces) > 1:
        parts = _items(pieces)
        is_union = all(part.name and part.kind not in ("part", "list") for part in parts)
        if is_union and all(map(_RELATION.search, pieces)):
            return _inequalities(text, parts)
        return Shape("union" if is_union else "list", parts)
    if match := _MATRIX.fullmatch(text):
        return _matrix(match["factor"].strip(), match["rows"])
    if len(split(text, _RELATION)) > 1:
        return _inequality(text)
    sides = split(text, _EQUALS)
    if len(sides) > 1:
        return _equation(sides)
    pieces = split(text, _CUP)
    if len(pieces) > 1:
        return Shape("union", tuple(map(shape, pieces)))
    return _bracketed(text)


def _matrix(factor: str, rows: str) -> Shape:
    """A matrix, with the factor before it multiplied into every entry."""
    factor = {"-": "-1", "+": ""}.get(factor, factor.removesuffix("\\cdot").strip())
    before, after = (f"({factor})\\cdot (", ")") if factor else ("", "")
    cells = [split(row, _COLUMN_END) for row in split(rows, _ROW_END)]
    return Shape(
        "matrix",
        tuple(
            Shape("row", tuple(shape(f"{before}{cell}{after}") for cell in row)) for row in cells
        ),
    )


def _bracketed(text: str) -> Shape:
    if text == "\\emptyset":
        return Shape("set")
    if text.startswith("\\{") and text.endswith("\\}"):
        return Shape("set", _items(split(text[2:-2], _SEPARATOR)))
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and _encloses(text):
        pieces = split(text[1:-1], _SEPARATOR)
        if len(pieces) > 1:
            return Shape(text[0] + text[-1], tuple(map(shape, pieces)))
        if text[0] + text[-1] == "()":
            return shape(text[1:-1])
    if _PLUS_MINUS.search(text):
        upper = _PLUS_MINUS.sub(lambda m: "+" if m[1] == "pm" else "-", text)
        lower = _PLUS_MINUS.sub(lambda m: "-" if m[1] == "pm" else "+", text)
        return Shape("list", (Shape("part", text=upper), Shape("part", text=lower)))
    return Shape("part", text=text)


def _items(pieces: Sequence[str]) -> tuple[Shape, ...]:
    """The shapes of the pieces of a list or a set; what stands for several counts as several."""
    found: list[Shape] = []
    for item in map(shape, pieces):
        found += item.items if item.kind == "list" else [item]
    return tuple(found)


def _encloses(text: str) -> bool:
    """Whether the first bracket of `text` closes at its end."""
    depth = 0
    for position, char in enumerate(text):
        depth += (char in _OPENING) - (char in _CLOSING)
        if depth == 0:
            return position == len(text) - 1
    return False


def _equation(sides: list[str]) -> Shape:
    """`x = 5` as 5 that is called x; anything else as the equation it is."""
    if len(sides) == 2 and _is_name(*sides[::-1]) and not _is_name(*sides):
        sides = sides[::-1]
    named = _is_name(*sides) and any(map(str.isalpha, sides[0]))
    rest = sides[1:] if named else sides
    if len(rest) == 1:
        return _named(shape(rest[0]), sides[0])
    return Shape("part", text="=".join(rest), name=sides[0] if named else "")


def _is_name(text: str, *values: str) -> bool:
    """Whether `text` names what it is equal to."""
    if _NAME_OF_NUMBER.fullmatch(text):
        return not any(map(_SYMBOL.search, values))
    return _NAME.fullmatch(text) is not None


def _named(value: Shape, name: str) -> Shape:
    """`value` with its name; of `(x,y) = (1,2)` every part has its own."""
    names = re.findall("[a-zA-Z]", name) if _NAMES.fullmatch(name) else []
    if value.kind != "()" or len(names) != len(value.items):
        return value._replace(name=name)
    pairs = zip(value.items, names, strict=True)
    return value._replace(items=tuple(item._replace(name=name) for item, name in pairs))


def _inequality(text: str) -> Shape:
    """An inequality in one variable as the interval it describes."""
    sides = split(text, _RELATION)
    signs = [found.strip() for found in _RELATION.findall(text)]
    if len(sides) != len(signs) + 1 or not all(sides):
        return Shape("part", text=text)
    low = Shape("part", text="-\\infty")
    high = Shape("part", text="\\infty")
    if len(signs) == 2 and len({sign[:2] in ("<", "\\l") for sign in signs}) == 1:
        if signs[0] in (">", "\\ge"):
            sides, signs = sides[::-1], [_flip(sign) for sign in reversed(signs)]
        if "\\ne" in signs or not _is_variable(sides[1]):
            return Shape("part", text=text)
        brackets = ("(" if signs[0] == "<" else "[") + (")" if signs[1] == "<" else "]")
        return Shape(brackets, (shape(sides[0]), shape(sides[2])), name=sides[1])
    if len(signs) != 1:
        return Shape("part", text=text)
    (sign,) = signs
    if _is_variable(sides[1]) and not _is_variable(sides[0]):
        sides, sign = sides[::-1], _flip(sign)
    if not _is_variable(sides[0]) or re.search(r"(?<!\\)\b[a-zA-Z]\b", sides[1]):
        if sign in (">", "\\ge"):
            sides, sign = sides[::-1], _flip(sign)
        items = tuple(Shape("part", text=side) for side in sides)
        return Shape("relation", items, text=sign)
    bound = shape(sides[1])
    if sign == "\\ne":
        around = (Shape("()", (low, bound)), Shape("()", (bound, high)))
        return Shape("union", around, name=sides[0])
    if sign in ("<", "\\le"):
        return Shape("()" if sign == "<" else "(]", (low, bound), name=sides[0])
    return Shape("()" if sign == ">" else "[)", (bound, high), name=sides[0])


def _inequalities(text: str, parts: tuple[Shape, ...]) -> Shape:
    """Several inequalities: what they have in common, or all that any of them holds.

    Commas mean `and` between inequalities of several variables, between such as exclude a number
    each, and where two leave what lies between two numbers; else they mean `or`.
    """
    has_and, has_or = (len(split(text, re.compile(word))) > 1 for word in (_AND, _OR))
    if has_and and has_or:
        return Shape("part", text=text)
    if has_or:
        return Shape("union", parts)
    if len({part.name for part in parts}) > 1:
        return Shape("and", parts)
    common = _common(parts)
    if has_and or all(part.kind == "union" for part in parts):
        return common or Shape("and", parts)
    rays = all("\\infty" in part.items[0].text + part.items[-1].text for part in parts)
    is_between = common and rays and common.kind != "union" and len(common.items) == 2
    if common and is_between and not any("\\infty" in item.text for item in common.items):
        return common
    return Shape("union", parts)


_Bound = tuple[Fraction | float, bool, Shape]
_LEAST: _Bound = (-inf, True, Shape("part", text="-\\infty"))
_MOST: _Bound = (inf, False, Shape("part", text="\\infty"))


def _common(parts: Sequence[Shape]) -> Shape | None:
    """What the intervals of one variable have in common; None where a bound is no exact number."""
    found = [(_LEAST, _MOST)]
    for part in parts:
        spans = [_span(piece) for piece in (part.items if part.kind == "union" else (part,))]
        known = [span for span in spans if span is not None]
        if len(known) < len(spans):
            return None
        met = [
            (max(a[0], b[0], key=lambda low: low[:2]), min(a[1], b[1], key=lambda high: high[:2]))
            for a in found
            for b in known
        ]
        found = [(a, b) for a, b in met if a[0] < b[0] or (a[0] == b[0] and not a[1] and b[1])]
    pieces = [_interval(*bounds) for bounds in found]
    one = pieces[0] if len(pieces) == 1 else Shape("union" if pieces else "set", tuple(pieces))
    return one._replace(name=parts[0].name)


def _span(interval: Shape) -> tuple[_Bound, _Bound] | None:
    """The bounds of an interval: (value, whether it is open, text) and (value, is closed, text)."""
    low, high = interval.items
    least = -inf if low.text == "-\\infty" else exact_value(low.text)
    most = inf if high.text == "\\infty" else exact_value(high.text)
    if least is None or most is None:
        return None
    return (least, interval.kind[0] == "(", low), (most, interval.kind[1] == "]", high)


def _interval(low: _Bound, high: _Bound) -> Shape:
    if low[0] == high[0]:
        return low[2]
    return Shape(("(" if low[1] else "[") + ("]" if high[1] else ")"), (low[2], high[2]))


def _flip(sign: str) -> str:
    return {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}.get(sign, sign)


def _is_variable(text: str) -> bool:
    return re.fullmatch(r"[a-zA-Z](?:_\{?\w+\}?)?(?:\([a-zA-Z]\))?|\\[a-z]+", text) is not None


def same(answer: Shape, gold: Shape, judge: Judge) -> bool | None:
    """Whether two answers are the same; None where `judge` leaves that open."""
    if answer.name and gold.name and answer.name != gold.name:
        if not answer.kind == gold.kind == "part":
            return False
        return judge(f"{answer.name}={answer.text}", f"{gold.name}={gold.text}")
    if answer.kind == gold.kind == "part":
        return judge(*_as_equations(answer, gold))
    if answer.kind == gold.kind == "relation":
        sides = ["\\le ".join(item.text for item in side.items) for side in (answer, gold)]
        return judge(*sides) if answer.text == gold.text else False
    kinds = {answer.kind, gold.kind}
    if "set" in kinds and kinds <= {"set", "list", "part"}:
        return _all([_contains(*pair, judge) for pair in ((answer, gold), (gold, answer))])
    if kinds <= {"list", "()", "matrix"}:
        named = [_names_differ(side) for side in (answer, gold)]
        if all(named):
            return _same_unordered(answer.items, gold.items, judge)
        answer, gold = (
            _in_order(side) if is_named else side
            for side, is_named in zip((answer, gold), named, strict=True)
        )
        kinds = {answer.kind, gold.kind}
    if kinds in ({"list"}, {"union"}, {"and"}):
        return _same_unordered(answer.items, gold.items, judge)
    if kinds in ({"()", "list"}, {"()", "matrix"}):
        answer, gold = (Shape("()", _flat(side)) for side in (answer, gold))
    if answer.kind != gold.kind or len(answer.items) != len(gold.items):
        return False
    pairs = zip(answer.items, gold.items, strict=True)
    return _all([same(a, g, judge) for a, g in pairs])


def _names_differ(side: Shape) -> bool:
    """Whether every item has a name of its own; x_1 and x_2 are two values of x."""
    names = [item.name.partition("_")[0] for item in side.items]
    return len(names) > 1 and all(names) and len(set(names)) == len(names)


def _in_order(side: Shape) -> Shape:
    """The point with these coordinates: x before y, and as written where nobody knows."""
    names = sorted(item.name for item in side.items)
    if "".join(names) not in string.ascii_letters:
        return Shape("()", side.items)
    return Shape("()", tuple(sorted(side.items, key=lambda item: item.name)))


def _as_equations(answer: Shape, gold: Shape) -> tuple[str, str]:
    """The texts to compare: names count only where the other side is an equation."""
    texts = [answer.text, gold.text]
    for index, (side, other) in enumerate(((answer, gold), (gold, answer))):
        if side.name and not other.name and "=" in other.text and "=" not in side.text:
            texts[index] = f"{side.name}={side.text}"
    return texts[0], texts[1]


def _flat(matrix: Shape) -> tuple[Shape, ...]:
    """The entries of a row or a column; a larger matrix as it is."""
    rows = matrix.items
    if matrix.kind != "matrix":
        return rows
    if len(rows) == 1:
        return rows[0].items
    return tuple(row.items[0] for row in rows) if {len(r.items) for r in rows} == {1} else rows


def _all(verdicts: Sequence[bool | None]) -> bool | None:
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _contains(container: Shape, contents: Shape, judge: Judge) -> bool | None:
    """Whether every item of one is an item of the other."""
    options = (container,) if container.kind == "part" else container.items
    wanted = (contents,) if contents.kind == "part" else contents.items
    found: list[bool | None] = []
    for item in wanted:
        verdicts = [same(option, item, judge) for option in options]
        found.append(True if True in verdicts else None if None in verdicts else False)
    return _all(found)


def _same_unordered(answers: Sequence[Shape], golds: Sequence[Shape], judge: Judge) -> bool | None:
    if len(answers) != len(golds):
        return False
    left = list(golds)
    is_open = False
    for answer in answers:
        verdicts = [same(answer, gold, judge) for gold in left]
        if True in verdicts:
            left.pop(verdicts.index(True))
        elif None in verdicts:
            is_open = True
        else:
            return False
    return None if is_open else True
