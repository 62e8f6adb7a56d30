r"""What LaTeX, Markdown and habit add around an answer: one table, applied to both sides.

Every row of `REWRITES` is a pattern and what it becomes, in the order in which they run; tests
hold a pair for every row. Nothing here decides: a text that no row makes plainer stays as it is.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from acpo.verify.extract import brace_depths

MAX_ANSWER_CHARS = 2_000
MAX_DEPTH = 40
MAX_DIGITS = 400

_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2013\u2014\u2011\ufe63\uff0d", "-"),
        **dict.fromkeys("\u00a0\u2009\u202f\u3000", " "),
        **dict.fromkeys("\u200b\u2060\ufeff", ""),
        **dict.fromkeys("\u20ac\u00a3\u00a5\u20b9", "\\$"),
        **dict.fromkeys("\u00b7\u22c5\u2219\u2217", "\\cdot "),
        **{"\u00d7": "\\times ", "\u00f7": "/", "\u00b1": "\\pm ", "\u2213": "\\mp "},
        **{"\u00b0": "^\\circ ", "\u03c0": "\\pi ", "\u221e": "\\infty ", "\u2205": "\\emptyset "},
        **{"\u2264": "\\le ", "\u2265": "\\ge ", "\u2260": "\\ne ", "\u2248": "\\approx "},
        **{"\u222a": "\\cup ", "\u2229": "\\cap ", "\u2208": "\\in ", "\u211d": "\\mathbb{R}"},
        **{"\u03b8": "\\theta ", "\u03b1": "\\alpha ", "\u03b2": "\\beta ", "\u03bb": "\\lambda "},
        **{"\u00bd": "\\frac{1}{2}", "\u2153": "\\frac{1}{3}", "\u2154": "\\frac{2}{3}"},
        **{"\u00bc": "\\frac{1}{4}", "\u00be": "\\frac{3}{4}", "\u215b": "\\frac{1}{8}"},
        **{"\u2032": "'", "\u2033": "''", "\u2019": "'", "\u27e8": "(", "\u27e9": ")"},
    }
)
_RAISED_DIGITS = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b\u207f"
_RAISED = str.maketrans(_RAISED_DIGITS, "0123456789-n")
_LOWERED_DIGITS = "\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089"
_LOWERED = str.maketrans(_LOWERED_DIGITS, "0123456789")
_REALS = r"(-\\infty,\\infty)"
_BASE_NAMES = """
two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
"""
_BASES = {name: str(base) for base, name in enumerate(_BASE_NAMES.split(), start=2)}
_MAGNITUDE = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6}
_MAGNITUDE |= {"billion": 10**9, "trillion": 10**12, "lakh": 10**5, "crore": 10**7}
_MAGNITUDES = "|".join(_MAGNITUDE)
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_COMMAND_END = r"(?![a-zA-Z])"
_FUNCTIONS = "arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|ln|log|exp|pi"
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_PLAIN = re.compile(r"-?\d+(?:\.\d+)?")
_JOINT = r" *(?:\\text\{ *,? *)?(?:and|or)\b"
_LATER_WORD = r"[A-Za-z]{2,}|(?<=[a-z] )a|(?<=[a-z]/)[hs]"
_NEXT_ITEM = re.compile(rf" *[,;)]|{_JOINT}")
_EQUATIONS = r"(?:(?!\\[gln]e|\\begin|[<>&]).)*"
_SCRIPT = r"(?:\^\{?-?\d\}?)?"

# What stands behind a number is its unit, unless one of these words says something else about it.
_OTHER_WORDS = """
am pm about above almost although and any approximately are around at be because below both but can
cannot correct could cubed divided dozen dozens double either equals error except exactly false
for from guess half halves has hence hundred hundreds if impossible incorrect infinite infinity
instead invalid is isn it its less likely maybe million millions billion billions trillion
trillions thousand thousands minus mistake more most must nearly negative neither never no none
nor not nothing only or otherwise over perhaps plus possible possibly probably quarter quarters
rather roughly should since so squared sure than that the then there these third thirds this
times to triple true twice undefined unknown unless until was wasn were when where which while
with without would wrong yes zero one two three four five six seven eight nine ten eleven twelve
thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty
seventy eighty ninety first solution solutions cases
tens twos threes fours fives sixes sevens eights nines gross score lakhs crore crores mil
quadrillion googol factorial factorials choose modulo mod root roots sqrt log radicals remainder
reciprocal inverse opposite fewer off nope nah nay untrue unsure unclear uncertain inaccurate
doubtful mistaken disproved refuted rejected denied excluded ignore ignored
doubled tripled quadruple quadrupled halve halved quartered may etc
"""
_NO_UNIT = frozenset(_OTHER_WORDS.split())
# Fifths and hundredths, but no months; any -illion and any -fold.
_SHARE = re.compile(
    r"(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|[a-z]+teen|[a-z]+tie|hundred|[a-z]+sand"
    r"|[a-z]+illion)ths?|[a-z]*illions?|[a-z]+fold"
)
_THOUSANDS = frozenset({"k", "K", "M", "B", "bn"})
_UNIT_WORDS = 5
# Bare letters are factors; these few are not, and neither are words of four letters or more, or of
# three behind another.
_SHORT_WORDS = """
cm mm km dm kg mg lb lbs oz ft in mi yd yr yrs hr hrs min sec mph kph rpm cc ml mL sq cu per of a
an h s day days way ways men egg eggs pie pies bag bags box cup cups car cars toy toys pen pens
"""
_SHORT_UNITS = frozenset(_SHORT_WORDS.split())
# Other letters are variables, in whatever font.
_UNIT_LETTERS = frozenset("mshgLlNJWVACF")


class Rewrite(NamedTuple):
    """One row: what it is for, what it looks for, what that becomes."""

    name: str
    pattern: re.Pattern[str]
    replacement: str | Callable[[re.Match[str]], str]


def _repeating(match: re.Match[str]) -> str:
    """0.1\\overline{6} as the fraction it is."""
    whole, start, period = match[1] or "0", match[2], match[3]
    bottom = (10 ** len(period) - 1) * 10 ** len(start)
    top = int(whole + start + period) - int(whole + start)
    return f"\\frac{{{top}}}{{{bottom}}}"


def _mixed(match: re.Match[str]) -> str:
    """2\frac{3}{4} and 2 3/4 as one fraction; anything that is no proper one stays."""
    whole, top, bottom = match[1], match[2] or match[3], match[4] or match[5]
    if not 0 < int(top) < int(bottom):
        return match[0]
    return f"\\frac{{{int(whole) * int(bottom) + int(top)}}}{{{bottom}}}"


def _ungrouped(match: re.Match[str]) -> str:
    return match[0].replace(",", "").replace(" ", "")


def _interval(match: re.Match[str]) -> str:
    opening, closing = "(" if match[1] == "]" else "[", ")" if match[3] == "[" else "]"
    return opening + match[2] + closing


def _unit_word(word: str) -> str:
    words = rf"\\text\{{[^{{}}]*\}}|(?<![A-Za-z\\])(?:{word})(?![A-Za-z])"
    return rf"(?:(?!{_JOINT})[ /]{{0,4}}(?:{words})\.?{_SCRIPT})"


def _unit(match: re.Match[str]) -> str:
    """Nothing for a unit behind a number, else the words as they are.

    The row finds words wherever they are: to look for its end from each of them takes too long. Of
    numbers in a list it is a unit where the last has the same: 3 men, 5 women are no 3, 5.
    """
    text, end = match.string, match.end()
    value = text[: match.start()].rstrip()
    if end != len(text):
        value = value[value.rfind(",") + 1 :]
        last = text.rstrip(" )")
        before = last.removesuffix(match[0].strip())
        if before == last or before[-1:].isalpha() or not _NEXT_ITEM.match(text, end):
            return match[0]
    bare = re.findall(r"[A-Za-z]+", re.sub(r"\\text\{[^{}]*\}", " ", match[0]))
    words = re.findall(r"[A-Za-z]+", match[0].replace("\\text", " "))
    is_unit = (
        re.search(r"(?:[\d})!]|\\pi)$", value)
        and re.search(r"\d|\\pi", value)
        and len(words) <= _UNIT_WORDS
        and not re.search(r"\{[^{}]*[^A-Za-z {}()/.^*-][^{}]*\}", re.sub(_SCRIPT, "", match[0]))
        and all(len(w) > (2 if i else 3) or w in _SHORT_UNITS for i, w in enumerate(bare))
        and all(map(_is_unit_word, words))
        and words[-1:] not in (["a"], ["right"])
    )
    return "" if is_unit else match[0]


def _is_unit_word(word: str) -> bool:
    """Whether `word` can be one of those that name a unit."""
    if len(word) == 1:
        return word in _UNIT_LETTERS or word == "a"
    lower = word.casefold()
    return not (lower in _NO_UNIT or word in _THOUSANDS or _SHARE.fullmatch(lower))


def _row(name: str, pattern: str, replacement: str | Callable[[re.Match[str]], str]) -> Rewrite:
    return Rewrite(name, re.compile(pattern), replacement)


REWRITES = (
    # Before the signs beside it go: a comma groups digits only between two of them.
    _row("separating commas", r"(?<!\\)(?:(?<![\d{]),|,(?![\d}]|\\!))", ", "),
    _row("line skips", r"\\\\\s*\[-?[\d.]+\s*(?:pt|ex|em|mm|cm|in|px)\]", r"\\\\"),
    _row("last row end", r"\\\\\s*(?=\\end\{)", ""),
    _row("maths delimiters", r"(?<!\\)\\[()\[\]]|\\?\$", ""),
    _row("power of programs", r"(?<=[\w)])\*\*(?=[\w(-])", "^"),
    _row("markdown", r"\*\*|^\s*[*_`]+|[*_`]+\s*$", ""),
    _row("nested boxes", r"\\(?:boxed|fbox|framebox|bbox\[[^\[\]]*\])\s*(?=\{)", ""),
    _row(
        "invisible",
        r"\\(?:[hv]?phantom|[hv]space\*?|label|tag\*?)\s*\{[^{}]*\}|\\[hv]?phantom ?[-+=]",
        " ",
    ),
    _row("digit groups", r"(?<=\d)(?:,\\!\s*|\{,\}|\\,)(?=\d{3}(?!\d))|\\!", ""),
    _row("braced commas", r"\{,\}", ","),
    _row("braced colons", r"\{:\}", ":"),
    _row(
        "systems",
        rf"(?:\\left ?\\{{ ?)?\\begin\{{cases\}}({_EQUATIONS})\\end\{{cases\}}"
        rf"|\\left ?\\{{ ?\\begin\{{array\}} ?\{{[lcr ]*\}}({_EQUATIONS})\\end\{{array\}}",
        lambda m: (m[1] or m[2] or "").replace("\\\\", ", "),
    ),
    _row("spaces", rf"(?<!\\)(?:\\[,;:> ]|~)|\\q?quad{_COMMAND_END}|\s+", " "),
    _row("single spaces", r" {2,}", " "),
    _row(
        "size and style",
        r"\\(?:left|right) ?\.|\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|tiny"
        rf"|small|normalsize|large|Large|LARGE|huge|Huge|bf|rm|it|bfseries|checkmark){_COMMAND_END}",
        "",
    ),
    _row("colour", r"\\(?:text)?color(?:box)?\s*\{[^{}]*\}", ""),
    _row("maths fonts", r"\\(?:mathbf|bold|boldsymbol|bm|mathit|mathsf|underline)\s*(?=\{)", ""),
    _row("number sets", r"\\mathbb ([A-Z])", r"\\mathbb{\1}"),
    _row("upright constants", r"\\(?:mathrm|text)\{([ei])\}", r"\1 "),
    _row(
        "function names",
        rf"\\(?:operatorname|mathrm|text)\{{ ?({_FUNCTIONS}) ?\}}|(?<![\\a-zA-Z])({_FUNCTIONS})"
        rf"(?=[^a-zA-Z]|$)",
        r"\\\1\2 ",
    ),
    _row("roots in words", r"(?<![\\a-zA-Z])sqrt ?\(([^()]*)\)", r"\\sqrt{\1}"),
    _row(
        "text fonts",
        r"\\(?:text(?:bf|it|rm|sf|tt|sc|up|normal)|mathrm|mbox|hbox|operatorname\*?)\s*(?=\{)",
        r"\\text",
    ),
    _row("empty text", r"\\text\{\s*\}", ""),
    _row("fractions", rf"\\(?:[dtcs]|nice)frac{_COMMAND_END}", r"\\frac"),
    _row("fractions of TeX", r"\{([^{}]*)\\over(?![a-zA-Z])([^{}]*)\}", r"\\frac{\1}{\2}"),
    _row("choose", r"\{? ?(?<!\w)(\w++) ?\\choose ?(\w+) ?\}?", r"\\binom{\1}{\2}"),
    _row("root signs", "\u221a" + r"\s*(?:\(([^()]*)\)|\{?(\d+|[a-zA-Z])\}?)", r"\\sqrt{\1\2}"),
    _row(
        "raised digit",
        f"([{_RAISED_DIGITS}])(?![{_RAISED_DIGITS}])(?<![{_RAISED_DIGITS}]{{2}})",
        lambda m: "^" + m[1].translate(_RAISED),
    ),
    _row("raised digits", f"[{_RAISED_DIGITS}]+", lambda m: f"^{{{m[0].translate(_RAISED)}}}"),
    _row("lowered digits", f"[{_LOWERED_DIGITS}]+", lambda m: f"_{{{m[0].translate(_LOWERED)}}}"),
    _row("at most", rf"\\(?:leqslant|leqq|leq|le){_COMMAND_END}|<=", r"\\le "),
    _row("at least", rf"\\(?:geqslant|geqq|geq|ge){_COMMAND_END}|>=", r"\\ge "),
    _row("below", rf"\\lt{_COMMAND_END}|&lt;", "<"),
    _row("above", rf"\\gt{_COMMAND_END}|&gt;", ">"),
    _row("not equal", r"\\(?:neq|not\s*=)", r"\\ne "),
    _row("nothing", rf"\\varnothing{_COMMAND_END}|\\\{{ *\\\}}", r"\\emptyset"),
    _row("angle bracket", rf"\\langle{_COMMAND_END}", "("),
    _row("closing angle bracket", rf"\\rangle{_COMMAND_END}", ")"),
    _row("matrices", r"\\(begin|end)\{(?:[bB]|small)?matrix\}", r"\\\1{pmatrix}"),
    _row("arrays", r"\\begin\{array\}\s*\{[lcr| ]*\}", r"\\begin{pmatrix}"),
    _row("ends of arrays", r"\\end\{array\}", r"\\end{pmatrix}"),
    _row("end of sentence", r"(?<![\s.,;:])[\s.,;:]++$", ""),
    _row("set builders", r"^\\\{ ?(\w)(?: ?\\in ?\\mathbb\{R\})? ?(?:\\mid|[:|])(.*)\\\}$", r"\2"),
    _row(
        "all reals but one",
        r"\\mathbb\{R\} ?(?:\\setminus|\\backslash|-) ?\\\{([^,{}\\]*)\\\}$",
        r"(-\\infty,\1)\\cup(\1,\\infty)",
    ),
    _row("real and more", r"^([a-zA-Z]) ?\\in ?\\mathbb\{R\} ?, ?(?=\1 ?(?:\\[gln]e |[<>]))", ""),
    _row("all reals", r"\\mathbb\{R\}$|^\\text\{ *all real(?: number)?s *\}$", _REALS),
    _row(
        "magnitudes",
        rf"(?<=\d) ?(?:\\text\{{ *({_MAGNITUDES})((?: [^{{}}]*)?)\}}|({_MAGNITUDES})\b)",
        lambda m: f"\\cdot {_MAGNITUDE[m[1] or m[3]]}" + (f"\\text{{{m[2]}}}" if m[2] else ""),
    ),
    _row(
        "ordinals", r"(?<=\d)\^?\{? ?\\text\{ ?(?:st|nd|rd|th) ?\}\}?|(?<=\d)(?:st|nd|rd|th)\b", ""
    ),
    _row("percent", r"\\text\{ *(?:\\?%|percent(?:age)?) *\}|\bpercent(?:age)?\b|\\?%", r"\\%"),
    _row(
        "degrees",
        r"(?:\^ ?(?:\\circ|\{ ?(?:\\circ|\\text\{o\}) ?\})|\\degree|\\text\{ *degrees? *\}"
        r"|(?<=\d) ?degrees?\b)"
        r"(?: ?\\text\{ ?[CF] ?\}| ?[CF]\b)?",
        lambda m: "\\degree " if _TRIGONOMETRY.search(m.string) else "",
    ),
    _row("whole text", r"^\\text\{([^{}]*(?:[\d,;()]| or | and )[^{}]*| ?[A-Za-z] ?)\}$", r"\1"),
    _row("base behind", r"(?<=[0-9A-Z]) ?(?:\\text\{ *)?\(?base (\w+)\)?(?: *\})?$", r"_{\1}"),
    _row("base", r"(?<=_\{)\\text\{ ?base ?\} ?", ""),
    _row("digits as text", r"\\text\{ ?([0-9A-Z]+) ?\}(?=_)", r"\1"),
    _row(
        "base names",
        rf"_\{{? ?(?:\\text\{{ ?)?({'|'.join(_BASES)})(?: ?\}}){{1,2}}",
        lambda m: f"_{{{_BASES[m[1]]}}}",
    ),
    _row(
        "moduli",
        r"\(? ?(?:\\[pb]?mod|\\text\{ *mod *\}|\bmod) ?(?:\{ ?(\d+) ?\}|(\d+)) ?\)?",
        r"\\pmod{\1\2}",
    ),
    _row("congruences", r"^[a-zA-Z] ?\\equiv(?=.*\\pmod)", ""),
    _row(
        "repeating decimals",
        r"(?<!\d)(\d*+)\.(\d*)\\(?:overline|bar|dot)\{(\d{1,50})\}",
        _repeating,
    ),
    _row("e notation", rf"^([+-]?{_NUMBER})[eE]([+-]?\d{{1,3}})$", r"\1\\times 10^{\2}"),
    _row("equals sign first", r"^\s*=\s*", ""),
    _row("open ends", r"([\[\]])([^\[\]()]+,[^\[\]()]+)([\[\]])", _interval),
    _row(
        "time of day",
        r"(?<=:\d\d) ?(?:\\text\{ *)?([AaPp])\.?[Mm]\.?(?: *\})?$",
        lambda m: f"\\text{{{m[1].lower()}m}}",
    ),
    _row("units in parentheses", r"^([^\\]*\d) ?\((?:in )?([A-Za-z]{2,}[A-Za-z ]*)\)$", r"\1 \2"),
    _row(
        "units",
        rf"{_unit_word('[A-Za-z]{2,}')}{_unit_word(_LATER_WORD)}*+",
        _unit,
    ),
    _row("thousands", r"^[+-]? ?[1-9]\d{0,2}(?:,\d{3})+(?![\d,])(?=[^,\[\]()]*$)", _ungrouped),
    _row(
        "spaced thousands", r"^[+-]? ?[1-9]\d{0,2}(?: \d{3})+(?! ?\d)(?=[^,\[\]()]*$)", _ungrouped
    ),
    _row(
        "mixed numbers",
        r"(?<![\w.}\)^])(\d+) ?\\frac ?(?:\{ ?(\d+) ?\}|(\d)) ?(?:\{ ?(\d+) ?\}|(\d))",
        _mixed,
    ),
    _row("mixed numbers in line", r"(?<![\w.}\)^])(\d+) +(\d+)()/(\d+)()(?![\w.])", _mixed),
    _row("outer braces", r"^\{([^{}]*)\}$", r"\1"),
)


@lru_cache(maxsize=4096)
def normalise(text: str) -> str:
    """`text` after every row of `REWRITES`."""
    if _PLAIN.fullmatch(text):
        return text
    text = text.translate(_CHARACTERS)
    for _, pattern, replacement in REWRITES:
        text = pattern.sub(replacement, text)
    return text.strip()


def oversized(text: str) -> str | None:
    """Why `text` is too large to parse, or None when it is not."""
    if not text.isascii():
        text = text.translate(_CHARACTERS)
    if len(text) > MAX_ANSWER_CHARS:
        return f"answer of {len(text)} characters, more than {MAX_ANSWER_CHARS}"
    if sum(map(text.count, "{([")) > MAX_DEPTH:
        steps = ((char in "{([") - (char in "})]") for char in text)
        deepest = max(accumulate(steps))
        if deepest > MAX_DEPTH:
            return f"answer nested {deepest} deep, more than {MAX_DEPTH}"
    if _LONG_NUMBER.search(text):
        return f"number of more than {MAX_DIGITS} digits"
    return None


def balanced(text: str) -> bool:
    """Whether every brace of `text` has its partner."""
    depths = [depth for _, depth in brace_depths(text)]
    return not depths or (min(depths) == 0 == depths[-1])
