"""Every row of the table of rewrites, by a text it makes plainer and one it must leave alone."""

import time

import pytest

from acpo.verify.normalise import MAX_ANSWER_CHARS, REWRITES, normalise

# row: (text, what becomes of it, a text that looks like it and stays)
EXAMPLES = {
    "separating commas": ("60^\\circ,120", "60, 120", "1,234"),
    "line skips": ("a\\\\[4pt]b", "a\\\\b", "a\\\\[4]b"),
    "last row end": ("a\\\\ \\end{pmatrix}", "a\\end{pmatrix}", "a\\\\b"),
    "maths delimiters": ("\\(42\\)", "42", "a\\\\(2)"),
    "power of programs": ("x**2", "x^2", "x*2"),
    "markdown": ("**42**", "42", "4*2"),
    "nested boxes": ("\\boxed{42}", "42", "\\box"),
    "invisible": ("7\\phantom{5}", "7", "7\\phi"),
    "digit groups": ("10\\,000", "10000", "5 6"),
    "braced commas": ("(1{,}2)", "(1,2)", "(1,2)"),
    "braced colons": ("3{:}30", "3:30", "3:30"),
    "systems": ("\\begin{cases}x=1\\\\y=2\\end{cases}", "x=1, y=2",
                "\\begin{cases}x<1\\\\x>5\\end{cases}"),
    "spaces": ("a\\quad b", "a b", "\\quadx"),
    "single spaces": ("a   b", "a b", "a b"),
    "size and style": ("\\large 42", "42", "\\leftarrow"),
    "colour": ("\\color{red}{42}", "42", "\\colon"),
    "maths fonts": ("\\mathbf{42}", "42", "\\mathbb{Q}"),
    "number sets": ("\\mathbb Z", "\\mathbb{Z}", "\\mathbb{Z} Z"),
    "upright constants": ("\\mathrm{e}^2", "e ^2", "\\text{me}^2"),
    "function names": ("\\operatorname{arctan}(2)", "\\arctan (2)", "single"),
    "roots in words": ("sqrt(2)", "\\sqrt{2}", "\\sqrt(2)"),
    "text fonts": ("\\mbox{Ann}", "\\text{Ann}", "\\text{Ann}"),
    "empty text": ("42\\text{ }", "42", "\\text{x y}"),
    "fractions": ("\\dfrac12", "\\frac12", "\\frac12"),
    "fractions of TeX": ("{1\\over 2}", "\\frac{1}{ 2}", "{1\\overline{2}}"),
    "choose": ("{5 \\choose 2}", "\\binom{5}{2}", "\\binom{5}{2}"),
    "root signs": ("3\u221a2", "3\\sqrt{2}", "\u221a"),
    "raised digit": ("x\u00b2", "x^2", "x^2"),
    "raised digits": ("10\u207b\u00b3", "10^{-3}", "10^{-3}"),
    "lowered digits": ("x\u2081", "x_{1}", "x_1"),
    "at most": ("x\\leqslant 3", "x\\le  3", "x\\left"),
    "at least": ("x>=3", "x\\ge 3", "x\\geneq"),
    "below": ("x\\lt 3", "x< 3", "x<3"),
    "above": ("x\\gt 3", "x> 3", "x>3"),
    "not equal": ("x\\neq 3", "x\\ne  3", "x\\ne 3"),
    "nothing": ("\\varnothing", "\\emptyset", "\\{1\\}"),
    "angle bracket": ("\\langle 3,4)", "( 3,4)", "(3,4)"),
    "closing angle bracket": ("(3,4\\rangle", "(3,4)", "(3,4)"),
    "matrices": ("\\begin{bmatrix}1\\end{bmatrix}", "\\begin{pmatrix}1\\end{pmatrix}",
                 "\\begin{vmatrix}1\\end{vmatrix}"),
    "arrays": ("\\begin{array}{cc}1", "\\begin{pmatrix}1", "\\begin{cases}1"),
    "ends of arrays": ("1\\end{array}", "1\\end{pmatrix}", "1\\end{cases}"),
    "end of sentence": ("42.", "42", "4.2"),
    "set builders": ("\\{x \\mid x>3\\}", "x>3", "\\{1,3\\}"),
    "all reals but one": ("\\mathbb{R}\\setminus\\{2\\}", "(-\\infty,2)\\cup(2,\\infty)",
                          "\\mathbb{Z}\\setminus\\{2\\}"),
    "real and more": ("x\\in\\mathbb{R}, x>2", "x>2", "x\\in\\mathbb{R}, y>2"),
    "all reals": ("x\\in\\mathbb{R}", "x\\in(-\\infty,\\infty)", "\\mathbb{Z}"),
    "magnitudes": ("5\\text{ million}", "5\\cdot 1000000", "\\text{million}"),
    "ordinals": ("5^{\\text{th}}", "5", "\\text{th}"),
    "percent": ("50\\text{ percent}", "50\\%", "5"),
    "degrees": ("30^\\circ", "30", "30'"),
    "whole text": ("\\text{12}", "12", "\\text{dog}"),
    "base behind": ("11\\text{ (base 2)}", "11_{2}", "11 based 2"),
    "base": ("11_{\\text{base } 2}", "11_{2}", "\\text{base } 2"),
    "digits as text": ("\\text{A5}_{11}", "A5_{11}", "\\text{Ann}"),
    "base names": ("1101_{\\text{two}}", "1101_{2}", "x_{n}"),
    "moduli": ("5 \\pmod 7", "5\\pmod{7}", "\\modx"),
    "congruences": ("x \\equiv 5 \\pmod{7}", "5\\pmod{7}", "x \\equiv 5"),
    "repeating decimals": ("0.1\\overline{6}", "\\frac{15}{90}", "\\overline{AB}"),
    "e notation": ("1e-05", "1\\times 10^{-05}", "2e+x"),
    "equals sign first": ("=42", "42", "x=42"),
    "open ends": ("]2,5[", "(2,5)", "[2,5)"),
    "time of day": ("3:15 P.M.", "3:15\\text{pm}", "15 \\text{am}"),
    "units in parentheses": ("12 (inches)", "12", "12 (a)"),
    "units": ("12\\text{ cm}^2", "12", "5 \\text{ or six}"),
    "thousands": ("1,234", "1234", "0,125"),
    "spaced thousands": ("10 000", "10000", "1 000 5"),
    "mixed numbers": ("2\\frac{3}{4}", "\\frac{11}{4}", "2\\frac{7}{4}"),
    "mixed numbers in line": ("2 3/4", "\\frac{11}{4}", "2 7/4"),
    "outer braces": ("{42}", "42", "{4}{2}"),
}  # fmt: skip


def test_every_row_has_its_pair():
    assert [row.name for row in REWRITES] == list(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_rows(name):
    text, plain, other = EXAMPLES[name]
    row = next(row for row in REWRITES if row.name == name)
    assert normalise(text) == plain
    assert name in ("braced commas", "single spaces", "spaces") or row.pattern.search(text)
    assert row.pattern.sub(row.replacement, other) == other


@pytest.mark.parametrize(
    "piece",
    ["a", "aa ", "\\text{a}", "*", " ", "1,111", "/", "\\text{", "x\\le ", "1 ", "[1,", "{,}"],
)
def test_no_text_is_slow(piece):
    start = time.process_time()
    normalise(piece * (MAX_ANSWER_CHARS // len(piece)) + "?")
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize("piece", ["wait ", "the ", "3", "a", "\\text{a} ", ".", "ab/", "3 cm, "])
def test_repetition_is_read_once(piece):
    """A row that looks at the rest of the text from every word takes minutes here."""
    start = time.process_time()
    for end in ("5?", "5 cm"):
        normalise(piece * (32_000 // len(piece)) + end)
    assert time.process_time() - start < 2
