"""Equations of plain numbers in a text, and whether they hold.

A place that is found here counts as computed, so little is read on purpose. Both sides have to
stand alone: what comes before the left one and after the right one must be known not to belong to
them. Where that is in doubt (`2^3 + 1 = 9`, `half of 10 + 5 = 10`, `8 + 5 = 1 pm`), the equation is
not looked at; nor is one that another reading makes right (`45 + 15 = 1 hour`), nor any after a
word of other bases, remainders or clocks.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from acpo.annotate.pairs import Chars

# Every repetition is bounded: texts are hostile, and the largest value has to fit a float.
_GAP = r"[ \t]{0,3}"
_NUMBER = r"(?!0\d)(?:\d{1,3}(?:,\d{3}){1,3}|\d{1,12})(?:\.\d{1,10})?"
_CURRENCY = rf"(?:\\?[$€£]{_GAP})?"
_TERM = rf"\\[dt]?frac\{{{_NUMBER}\}}\{{{_NUMBER}\}}|{_CURRENCY}{_NUMBER}"
_MINUS = "[-\u2212\u2013]"
_SYMBOLS = {"+": r"\+", "-": _MINUS, "*": r"[*×·⋅∙xX]|\\times|\\cdot", "/": r"[/÷]|\\div"}
_OPERATOR = "|".join(_SYMBOLS.values())
_DIVISION = re.compile(rf"{_SYMBOLS['/']}|frac")
_EQUATION = re.compile(
    rf"(?P<left>(?:{_TERM})(?:{_GAP}(?:{_OPERATOR}){_GAP}(?:{_TERM})){{1,11}})"
    rf"{_GAP}&?={_GAP}(?P<right>{_MINUS}?{_CURRENCY}{_NUMBER})"
)

_SCALES = "tens|(?:dozen|hundred|thousand|million|billion)s?|percent"
_RELATING = (  # what follows belongs to something before it, or to a name (`day 1`), or is rounded
    "of|times|half|third|quarter|twice|thrice|plus|minus|by|over|per|than|from|and|to|with|at|for"
    r"|each|every|negative|less|more|root|sqrt|log|ln|mod|modulo|choose|mean|averag\w+|doubl\w+"
    r"|tripl\w+|halv\w+|squar\w+|cub\w+|multipl\w+|divid\w+|round\w*|about|roughly|approx\w*"
    "|hour|day|week|month|year|step|part|number|game|level|stage|case|equation|question|page"
    f"|{_SCALES}"
)
_CONTINUED = re.compile(rf"(?:\+|{_MINUS}|[/÷^√×·⋅∙]|(?<!\*)\*|\\(?:times|cdot|div))\s*\Z")
_OPENED = re.compile(
    rf"""(?:
        \n(?:[ \t]*(?:\d{{1,2}}[.)]|\#+|•))?             # a line, or an entry of a list
        | [(\[{{=≈&?|`"“<] | [-=]> | (?<!\\)[;!]
        | (?<!\d)(?<!\d[ ]): | (?<=\d):[ \t]             # `Step 1: ` and no time of day
        | (?<!\d)\$ | \\\\                               # a formula, or a line of one
        | (?<![ \t])\.[ \t] | (?<![\d\\]),[ \t]
        | (?<![\w\\])(?:And|a|(?:total|sum|difference|profit|cost|amount)[ ]of)[ \t]
        | (?<![\w\\'’])(?!(?i:{_RELATING})\b)[A-Za-z'’]{{2,}}(?:[ \t]|(?=\*\*))
    )[ \t]*(?:\*\*[ \t]*)?\Z""",
    re.VERBOSE,
)
_GOES_ON = re.compile(
    rf"""
        [\w%°¢\u2032\u2033'’^!({{²³½¼¾⅓⅔] | [.,:]\d | ,\\!
        | [ \t]*(?:
            {_MINUS} | [+/÷×·⋅∙^] | \*(?!\*) | \*\*(?:\w|[ \t]*[\d(\\$])
            | \d | \\?% | [½¼¾⅓⅔] | \([ \t]*[\d$\\] | [b-zB-HJ-Z]\b
            | \\(?!text|quad|[)\]\\,;]) | \\[,;][ \t]*\d
        )
        | (?:[ \t]|\\,|\\text\{{|-){{1,4}}(?i:
            of | plus | minus | over | divided | multiplied | squared | halves | cents?
            | [ap]\.?m | o'clock | in[ ]the[ ](?:morning|afternoon|evening) | {_SCALES}
            | times[ ]\$?\d | and[ ](?:a|one|half|three|\d+/\d+)
        )\b
        | (?:[ \t,(]|\\,|\\text\{{){{1,4}}(?i:
            mod(?:ulo)? | (?:in[ ])?(?:base|binary) | round\w* | about | roughly | approx\w*
        )\b
    """,
    re.VERBOSE,
)
_UNIT = re.compile(  # a word after the right side, past what may close a formula or open a remark
    r"""
        (?:[ \t~*`$()\[\]{-] | \\[,;:!)\] ] | \\(?:text|mathrm)\b | ,[ ]in[ ]){1,8}
        (?:(?P<measure>(?:
            (?i:second|sec|minute|min|hour|hr|day|week|month|year|decade|inche?|foot|feet|yard|mile
            |(?:kilo|centi|milli)?(?:met(?:er|re)|gram|lit(?:er|re))|ounce|pound|ton|cup|pint|quart
            |gallon|(?:tea|table)spoon|oz|lb|ft|yd) s?
            | [kcm]?[mg] | m?[lL] | h
        )\b) | [^\W\d_]+(?P<second>(?:,|[ ]and)[ ]\d)? )
    """,
    re.VERBOSE,
)
_OTHER_NUMBERS = re.compile(  # from here on a text may count in another base, or in a circle
    r"\bbase[- ]\$?(?:\d|[b-z]\$|(?:two|three|four|five|six|seven|eight|nine|twelve|sixteen)\b)"
    r"|\b(?:binary|ternary|octal|hexadecimal|modulo|modulus|mod|congruen\w+|clock)\b|o['’]clock"
    r"|\\p?mod\b|\\equiv|≡",
    re.IGNORECASE,
)
_GROUPED = re.compile(r"[1-9]\d{0,2}\.\d{3}(?!\d)")
_REACH = 80
"""Characters before an equation that are looked at."""


class Equation(NamedTuple):
    """`left = right` in a text, and where the right side stands."""

    left: str
    right: str
    calculation: tuple[tuple[Fraction, ...], str]  # the left side: its numbers and operators
    value: Fraction  # of the left side
    slack: Fraction  # how far that is off at most, where numbers of the left side were rounded
    place: Chars

    @property
    def holds(self) -> bool:
        """A quotient may be rounded either way, to the last digit of the right side; anything else
        only to the nearest hundredth, or finer."""
        decimals = len(self.right.partition(".")[2])
        distance = max(abs(_number(self.right) - self.value) - self.slack, Fraction(0))
        unit = Fraction(1, 10**decimals)
        if _DIVISION.search(self.left):
            return distance < unit
        return distance <= unit / 2 if decimals > 1 else distance == 0

    @property
    def correction(self) -> str:
        """What is wrong with it, for a person."""
        whole = self.value.denominator == 1
        value = str(self.value) if whole else f"{float(self.value):.10g}"
        return f"{self.left} is {value}, not {self.right}"


def equations(text: str) -> Iterator[Equation]:
    """Every `a op b = c` of plain numbers that stands alone, in order."""
    match = _EQUATION.search(text)
    other = _OTHER_NUMBERS.search(text)
    plain = other.start() if other else len(text)
    while match and match.start() < plain:
        equation = _equation(match) if _stands_alone(text, match) else None
        if equation and (equation.holds or not _may_be_right(equation, text, match.end())):
            yield equation
        match = _EQUATION.search(text, match.start("right"))


def _stands_alone(text: str, match: re.Match[str]) -> bool:
    start = match.start()
    before = text[start - _REACH : start] if start >= _REACH else "\n" + text[:start]
    return (
        _OPENED.search(before) is not None
        and _CONTINUED.search(before) is None
        and _GOES_ON.match(text, match.end()) is None
    )


def _may_be_right(equation: Equation, text: str, end: int) -> bool:
    """Whether another reading makes it right: the sides in other units, of which any word after it
    may be one (`12 + 6 = 3 boxes`), cents beside dollars, or a point between thousands."""
    if _GROUPED.search(f"{equation.left} {equation.right}"):
        return True
    small, large = sorted((abs(equation.value), abs(_number(equation.right))))
    in_money = [re.search("[$€£]", side) is not None for side in (equation.left, equation.right)]
    if in_money[0] != in_money[1] and large == 100 * small:
        return True
    unit = _UNIT.match(text, end)
    if unit is None:
        return False
    return bool(unit["measure"] or unit["second"]) or (small > 0 and large % small == 0)


def _equation(match: re.Match[str]) -> Equation | None:
    """None where the left side has no value, or may have two: `25 / 1/3` may divide by a third."""
    left, right = match["left"], match["right"]
    terms = re.findall(_TERM, left)
    try:
        numbers = [_number(term) for term in terms]
        operators = "".join(_operator(gap) for gap in re.split(_TERM, left)[1:-1])
        value = _evaluate(numbers, operators)
    except ZeroDivisionError:
        return None
    if "//" in operators:
        return None
    slack = _slack(terms, numbers, operators)
    calculation, place = (tuple(numbers), operators), Chars(*match.span("right"))
    return Equation(left, right, calculation, value, slack, place)


def _slack(terms: list[str], numbers: list[Fraction], operators: str) -> Fraction:
    """What the left side changes by when its rounded numbers change by half a last digit.

    A number with two decimals or more was perhaps rounded (`33.33 * 3 = 100`), unless it ends in 0
    or 5, as prices do.
    """
    slack = Fraction(0)
    for index, term in enumerate(terms):
        decimals = len(term.partition(".")[2])
        if decimals > 1 and term[-1] in "12346789":
            moved = [*numbers]
            moved[index] += Fraction(1, 2 * 10**decimals)
            slack += abs(_evaluate(moved, operators) - _evaluate(numbers, operators))
    return slack


def _number(text: str) -> Fraction:
    numbers = [Fraction(digits.replace(",", "")) for digits in re.findall(_NUMBER, text)]
    sign = -1 if re.match(_MINUS, text) else 1
    return sign * (numbers[0] / numbers[1] if len(numbers) > 1 else numbers[0])


def _operator(text: str) -> str:
    return next(sign for sign, symbol in _SYMBOLS.items() if re.fullmatch(symbol, text.strip()))


def _evaluate(numbers: list[Fraction], operators: str) -> Fraction:
    """Products before sums, from left to right."""
    total, product = Fraction(0), numbers[0]
    for operator, number in zip(operators, numbers[1:], strict=True):
        if operator == "*":
            product *= number
        elif operator == "/":
            product /= number
        else:
            total, product = total + product, number if operator == "+" else -number
    return total + product
