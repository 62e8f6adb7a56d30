"""Expressions that agree on half of the numbers, and such as agree on all of them."""

import pytest

from acpo.verify.evaluate import TooLarge, same_value
from acpo.verify.latex import parse

DRAWS = 20


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("(-1)^n", "1"),
        ("(-1)^{m+n}", "1"),
        ("\\frac{1+(-1)^n}{2}", "1"),
        ("n+(-1)^n", "n+1"),
        ("\\lfloor n/2\\rfloor", "n/2"),
        ("\\lfloor n/3\\rfloor", "n/3"),
        ("\\cos(\\pi n)", "1"),
        ("\\lfloor x\\rfloor+1", "\\lceil x\\rceil"),
        ("(-1)^N", "1"),
        ("(-1)^{N+M}", "1"),
        ("|x|", "-x"),
        ("|x-5|", "5-x"),
        ("\\sqrt{(x-4)^2}", "4-x"),
        ("|n-100|", "100-n"),
        ("|k-70|", "70-k"),
        ("\\frac{|x-7|}{x-7}", "-1"),
        ("|x+200|", "x+200"),
        ("|xy|", "xy"),
        ("|m|", "m"),
        ("|n|+1", "n+1"),
        ("|k-j|", "k-j"),
        ("|x-y|", "x-y"),
        ("\\sqrt{x^2y}", "x\\sqrt{y}"),
    ],
)
def test_what_differs_somewhere_is_never_the_same(one, other):
    left, right = parse(one), parse(other)
    assert not any(same_value(left, right) for _ in range(DRAWS))
    assert not any(same_value(right, left) for _ in range(DRAWS))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("\\cosh^2 x-\\sinh^2 x", "1"),
        ("(e^x+e^{-x})^2-(e^x-e^{-x})^2", "4"),
        ("e^{x^2}e^{y}", "e^{x^2+y}"),
        ("2^{x^3}\\cdot 2", "2^{x^3+1}"),
        ("\\sqrt{x^2+1}-x", "\\frac{1}{\\sqrt{x^2+1}+x}"),
        ("\\arcsin x+\\arccos x", "\\frac{\\pi}{2}"),
        ("\\sqrt{1-x^2}\\sqrt{1-x^2}", "1-x^2"),
        ("\\ln(x-50)+\\ln 2", "\\ln(2x-100)"),
        ("\\ln(x^2)", "2\\ln|x|"),
        ("\\ln(xy)", "\\ln x+\\ln y"),
        ("(n+1)!", "(n+1)n!"),
        ("\\binom{2n}{n}", "\\frac{(2n)!}{n!^2}"),
        ("(-1)^{2n}", "1"),
        ("\\lfloor n+\\frac{1}{2}\\rfloor", "n"),
        ("|x-5|", "|5-x|"),
        ("|m|", "|-m|"),
        ("\\sqrt{m^2}", "|m|"),
        ("|n!|", "n!"),
        ("\\sqrt{n^2+n}", "\\sqrt{n}\\sqrt{n+1}"),
        ("\\sin 3x", "3\\sin x-4\\sin^3 x"),
        ("abc+abd", "ab(c+d)"),
    ],
)
def test_what_agrees_everywhere_is_always_the_same(one, other):
    left, right = parse(one), parse(other)
    assert all(same_value(left, right) for _ in range(DRAWS))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("e^{-2023}", "e^{-2024}"),
        ("0", "e^{-2024}"),
        ("\\sin(\\pi)", "e^{-20000}"),
        ("(1+e^{-2024})-1", "0"),
        ("\\frac{\\sqrt3}{2^{2023}}", "\\frac{\\sqrt3}{2^{2024}}"),
        ("\\frac{\\pi}{1000!}", "\\frac{\\pi^2}{1001!}"),
        ("\\cos^{2024}(1)", "\\cos^{2025}(1)"),
        ("-e^{-2024}", "e^{-2024}"),
        ("i e^{-2024}", "e^{-2024}"),
        ("10^{-170}\\pi", "10^{-170}(\\pi+10^{-8})"),
        ("2^{-3000-x^2}", "2^{-3001-x^2}"),
        ("2^{-3000-x^2}", "0"),
        # By next to nothing:
        ("2^{2008}-2", "2^{2008}-2\\pi"),
        ("1", "1+e^{-2024}"),
        ("1", "1-e^{-5000}"),
        ("42", "42+e^{-500}"),
        ("2024", "\\log_2(2^{2024}-1)"),
        ("1", "\\tanh 1000"),
        ("1", "\\tanh 3000"),
        ("\\frac{\\pi}{2}", "\\arctan(10^{1000})"),
        ("1", "\\cos(10^{-1000})"),
        ("2^{1012}", "\\sqrt{2^{2024}+1}"),
        ("\\pi^{2024}", "\\lfloor\\pi^{2024}\\rfloor"),
        ("\\frac{(2+\\sqrt3)^{2023}+(2-\\sqrt3)^{2023}}{2}", "\\frac{(2+\\sqrt3)^{2023}}{2}"),
        ("\\sqrt{2}", "\\sqrt{2}+i e^{-2024}"),
    ],
)
def test_tiny_numbers_and_differences_are_told(one, other):
    assert not same_value(parse(one), parse(other))
    assert not same_value(parse(other), parse(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("e^{-2024}", "\\frac{1}{e^{2024}}"),
        ("(1+e^{-2024})-1", "e^{-2024}"),
        ("\\frac{\\sqrt3}{2^{2024}}", "\\frac{3}{\\sqrt3\\cdot 2^{2024}}"),
        ("\\frac{\\pi}{1000!}", "\\frac{1001\\pi}{1001!}"),
        ("\\sqrt{2}-\\sqrt{2}", "0"),
        ("\\sin(\\pi)", "0"),
        ("\\sin(\\pi)", "\\cos\\frac{\\pi}{2}"),
        ("\\sqrt{2}\\sqrt{3}-\\sqrt{6}", "\\sin(\\pi)"),
        ("e^{i\\pi}+1", "0"),
        ("\\cosh^2 x-\\sinh^2 x-1", "0"),
        ("2^{-3000-x^2}", "\\frac{2^{-x^2}}{2^{3000}}"),
        ("2^{2008}-2\\pi", "2(2^{2007}-\\pi)"),
        ("1+e^{-2024}", "\\frac{e^{2024}+1}{e^{2024}}"),
        ("\\tanh 1000", "\\frac{e^{2000}-1}{e^{2000}+1}"),
        ("\\sqrt{2^{2024}+1}", "\\frac{2^{2024}+1}{\\sqrt{2^{2024}+1}}"),
        ("(\\pi^2)^{1012}", "\\pi^{2024}"),
        ("\\log_2(2^{2024}\\sqrt2)", "2024.5"),
        ("\\frac{(2+\\sqrt3)^{2023}+(2-\\sqrt3)^{2023}}{2}",
         "\\frac{(2+\\sqrt3)^{2023}+(2+\\sqrt3)^{-2023}}{2}"),
        ("\\sqrt{5+2\\sqrt6}", "\\sqrt2+\\sqrt3"),
        ("2+\\sin(\\pi)", "2"),
        ("\\infty", "2\\cdot\\infty"),
        ("1+i", "\\sqrt2 e^{i\\pi/4}"),
    ],
)  # fmt: skip
def test_tiny_and_large_numbers_in_other_forms_are_the_same(one, other):
    assert same_value(parse(one), parse(other))
    assert same_value(parse(other), parse(one))


@pytest.mark.parametrize("answer", ["1+e^{-100000}", "\\tanh(10^9)", "1+10^{-9000}\\pi"])
def test_what_would_take_too_many_digits_to_tell_is_refused(answer):
    with pytest.raises(TooLarge):
        same_value(parse(answer), parse("1"))


def test_a_wrong_answer_is_no_limit_of_the_machine():
    """Where a far point cannot be computed, the near ones decide."""
    assert not same_value(parse("e^{x^3}"), parse("e^{x^3}+1"))
    assert same_value(parse("e^{e^x}"), parse("(e^{e^x})^1"))
