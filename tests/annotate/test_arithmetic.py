"""A wrong `a op b = c` is found exactly, and nothing else is taken for one."""

import pytest

from acpo.annotate.annotations import Item
from acpo.annotate.annotators import ArithmeticAnnotator, Status
from acpo.annotate.arithmetic import equations
from acpo.annotate.evidence import Accept, Evidence, aligned_pairs, error_places
from acpo.annotate.models import parse_annotators
from acpo.annotate.pairs import Span, select
from acpo.records import Trace
from annotate.traces import annotated, text_rows, write_texts

CASES = {
    "48/2 = 24, then 48+24=73": [True, False],
    "<<48/2=24>>24 clips": [True],
    "$5 * 3 = $16": [False],
    "12 x 3 = 37.": [False],
    "1,000 + 5 = 1,005": [True],
    "20/8 = 2.5.": [True],
    "10/3 = 3.33 or 10/3 = 3.4": [True, True],
    "7/2 = 3": [True],
    "10/3 = 3.44": [False],
    "16 - 3 - 4 = 9": [True],
    "2 + 3 * 4 = 14": [True],
    "5 - 7 = -2": [True],
    "so x = 3 + 4 = 8": [False],
    # A right side that goes on, a term before it, a percentage, an unknown: not looked at.
    "2+3=5*2=10": [True],
    "9 + 1 = 10 + 2": [],
    "2x + 3 = 7": [],
    "(3 + 4) * 2 = 15": [],
    "3+4=8%": [],
    "5/0=3": [],
    "3 apples + 4 apples = 8 apples": [],
    "7 = 8": [],
    "In base 8: 7 + 1 = 10": [],
    "In base $b$, we add: 7 + 1 = 10": [],
    "Working mod 7: 5 + 4 = 2": [],
    "In binary, 1 + 1 = 10": [],
    "It is 10 o'clock, so 10 + 4 = 2.": [],
    r"As $a \equiv 3$ holds, 5 + 4 = 2": [],
    "2 + 2 = 5. In base 8: 7 + 1 = 10": [False],
}
FORMS = {
    "9 * 2 = $18": [True],
    "$5.00 * 3 = $15.10": [False],
    "1/2 * 10 = 5": [True],
    "**5 + 3 = 9**": [False],
    "**Total:** 5 + 3 = 9 eggs": [False],
    "1. 5 + 3 = 9": [False],
    "Step 1: 5 + 3 = 9": [False],
    "a total of 5 + 3 = 9": [False],
    "`5+3=9`": [False],
    "5 − 7 = −2": [True],
    r"\[ 16 - 3 = 14 \]": [False],
    r"\( 2 \times 3 = 7 \)": [False],
    r"$16 \div 4 = 5$": [False],
    r"\$5 \cdot 3 = \$16": [False],
    r"\frac{1}{2} \times 10 = 5": [True],
    r"\frac{1}{2} \times 10 = 6": [False],
    r"20 - 3 &= 16 \\": [False],
    r"5 + 3 = 9 \text{ eggs}": [False],
    "5 + 3 = 8 * 2 = 17": [False],
    "12 * 5 = 61 dollars": [False],
    "16 - 3 - 4 = 10 eggs left": [False],
    "At the base of a hill, 5 + 3 = 9": [False],
}
IN_DOUBT = (
    *("2^3 + 1 = 9", "√16 + 2 = 6", "2**3 + 1 = 9", "2 **3 + 1 = 9", "x **2 + 1 = 5"),
    *("20% of 50 = 10", "20% of 50 + 5 = 15", "half of 10 + 5 = 10", "2 times 3 + 4 = 10"),
    *("1 1/2 + 1/2 = 2", "2 - 0.5 = 1 1/2", "2 - 0.5 = 1 and a half", "one and 1/2 + 1/2 = 2"),
    *("3 eggs * 2 = 6 eggs", "60 eggs x 2/3 = 40", "5 eggs - 2 + 1 = 4", "f(3) + 2 + 1 = 4"),
    *("8 + 5 = 1 pm", "5:30 + 2 = 7:30", "0900 - 0130 = 0730", "day 1 * 2 = 20"),
    *("12 * 3 = 3 dozen", r"12 * 3 = 3 \text{ dozen}", "$1 / 2 = 50 cents", "8 + 4 = 12x"),
    *("1 500 + 5 = 1505", r"1\,500 + 5 = 1505", r"5 + 995 = 1\,000", r"5 + 995 = 1,\!000"),
    *("25 / 1/3 = 75", "16 *\n2 + 3 = 35", "16\n- 3 - 4 = 9", r"3 + 4 = \frac{14}{2}"),
    *(r"6 \times 100 = 6 \times 10^2", "6 + 4 = 2 (5)", r"\sqrt 16 + 2 = 6", "5 + 995 = 1{,}000"),
)
OTHERWISE_RIGHT = (
    *("45 + 15 = 1 hour", "120 + 60 = 3 hours", "40 + 40 = 1.33 hours", "40 + 20 = 1 hr."),
    *("100 + 25 = 2 hours and 5 minutes", "12 + 12 = 1 day", "24 * 7 = 1 week", "6 + 6 = 1 foot"),
    *("50 + 50 = 1 dollar", "4 * 25 = $1.00", "5*20=$1", "$0.25 + $0.50 = 75", "25 + 50 = 75¢"),
    *("0.25 + 0.50 = 75¢", "6 * 4 = 2 dozens", "8 * 50 = 4 hundreds", "2 + 2 = 2 pairs"),
    *("24 + 12 = 3 cases of water", "24 + 12 + 5 = 3 cases and 5 bottles", "5 + 7 = 1 full box"),
    *("500 + 500 = 1 kg", "1000 + 500 = 1.5 km", "250 * 4 = 1 liter", "36 + 36 = 6'"),
    *(r"100 + 100 = 2\,\text{m}", r"100 + 100 = 2~\mathrm{m}", r"\(100 + 100 = 2\) meters"),
    *("100 + 100 = 2 (meters)", "100 + 100 = 2, in meters", "**100 + 100 = 2** m"),
    *("5 + 4 = 2 (mod 7)", "8 + 5 = 1 mod 12", "7 + 5 = 0 (mod 12)", "3 + 4 = 2, modulo 5"),
    *(r"3 + 4 = 2 \pmod 5", "1 + 1 = 10 in binary", "3 + 4 = 12 base 5"),
    *("11 + 6 = 5 in the evening", "sqrt 9 + 1 = 4", "log 100 + 1 = 3", "5 mod 3 + 1 = 3"),
    *("Doubling 3 + 4 = 14", "3 tickets at $5 + $2 = $17", "3 tickets for $5 + $2 = $17"),
    *("1.200 + 300 = 1500", "about 19.99 * 3 = 60", "19.99 * 3 = 60 (rounded)"),
    *("19.99 * 3 = 60, approximately", "3 * 20 = 1 hour", "so x = 3 * 20 = 1 hour"),
)
RIGHT = (
    *("50 * 20% = 10", "$1.50 * 3 = $4.50", "$3.75 + $2.25 = $6", "10 / 3 = 3.33"),
    *("10 / 3 = 3 R 1", "7/2 = 3 1/2", "1/2 + 1/4 = 3/4", "1,200 + 300 = 1500"),
    *(r"\frac{3}{4} \times 8 = 6", r"$3 \cdot 4 = 12$", "10 + 2 = 12 * 3 = 36"),
    *("x = 5 + 3 = 8", "22/7 ≈ 3.14", "-5 + 3 = -2"),
    *("30 minutes + 30 = 1 hour", "45 + 15 = 60 minutes = 1 hour", "17 - 5 = 12 = 1 dozen"),
    *("1.5 + 1.5 = 3 hours", "120 / 60 = 2 hours", "3 * 12 = 36 inches", "3 + 4 = 7 (since"),
)
ROUNDED = {
    "0.5 + 0.2 = 1": False,
    "2.5 * 3 = 8": False,
    "2.5 * 3 = 7.50": True,
    "12.5 * 0.15 = 1.88": True,
    "12.5 * 0.15 = 1.9": False,
    "33.33 * 3 = 100": True,
    "33.33 * 3 = 101": False,
    "33.25 * 4 = 133.01": False,
}


@pytest.mark.parametrize(("text", "expected"), [*CASES.items(), *FORMS.items()])
def test_equations_that_hold_and_do_not(text, expected):
    assert [equation.holds for equation in equations(text)] == expected


@pytest.mark.parametrize(
    "text",
    [
        *(r"2 \times 3 + 4 = 10", "2 · 3 + 4 = 10", "5 – 3 + 2 = 4"),  # noqa: RUF001
        *(*IN_DOUBT, *OTHERWISE_RIGHT, *RIGHT),
    ],
)
def test_what_is_right_or_in_doubt_is_no_error(text):
    for sentence in (text, f"So it is {text}.", f"She had 3.\n{text}\n"):
        assert all(equation.holds for equation in equations(sentence))


@pytest.mark.parametrize("text", IN_DOUBT)
def test_what_is_in_doubt_is_not_looked_at(text):
    assert not list(equations(text))


@pytest.mark.parametrize(("text", "holds"), ROUNDED.items())
def test_only_quotients_are_rounded_to_less_than_cents(text, holds):
    assert [equation.holds for equation in equations(text)] == [holds]


def test_the_place_is_the_number_and_nothing_after_it():
    (equation,) = equations("so 3 * 4 = $1,013, and")
    assert equation.right == "$1,013"
    assert equation.correction == "3 * 4 is 12, not $1,013"


def test_degenerate_numbers_are_not_looked_at():
    for digits in ("1" * 400, "1" * 5000, "0" * 3000 + "1"):
        for text in (f"{digits} + 1 = 5", f"5 - 1 = {digits}", f"{digits}.{digits} * 2 = 3"):
            assert not list(equations(text))
    terms = r" * \frac{999999999999}{0.0000000001}" * 11
    (equation,) = equations(f"999999999999{terms} = 1")
    assert not equation.holds and len(equation.correction) < 1000


def test_long_texts_take_no_time():
    for hostile in (
        "1+" * 50_000,
        "1,1" * 25_000 + "=",
        " x " * 25_000,
        "9" * 50_000 + "=1",
        "1,111" * 12_000,
        "1 + 1" + " " * 50_000,
        "1+1=" * 12_000,
        "a" * 50_000,
    ):
        assert not [e for e in equations(hostile) if not e.holds]


def text(trajectory, span):
    return trajectory.completion[slice(*trajectory.chars(span))]


def test_first_errors_of_word_problems(tmp_path):
    rows = text_rows(
        ("She sold 48 / 2 = 24 in May, so 48 + 24 = 72.", 1.0),
        ("She sold 48/2 = 24 in May, so 48+24 = 73. #### 73", 0.0),
        ("She sold 48 * 2 = 96 in May. #### 96", 0.0),
    )
    trace = Trace.open(write_texts(tmp_path / "t", rows, split=r"\S+|\s+"))
    selection = select(trace)
    (annotator,) = parse_annotators(["arithmetic"], cache=tmp_path, timeout=1.0, retries=0)
    assert isinstance(annotator, ArithmeticAnnotator)
    annotations = annotated(tmp_path / "a.jsonl", selection, annotator)
    error = annotations.items[Item("q", 1)].proposals["arithmetic"]
    wrong = selection.groups[0].wrong[0]
    assert text(wrong, error.span) == "73." and "48+24 is 72, not 73" in error.rationale
    set_up = annotations.items[Item("q", 2)].proposals["arithmetic"]
    assert set_up.status is Status.NOTHING and "1 equations" in set_up.rationale
    (pair,), _ = aligned_pairs(selection, annotations, Accept.SOUND)
    assert pair.evidence is Evidence.COMPUTED
    assert text(pair.right, pair.corresponding.span) == "72."
    ((one, place),), outcomes = error_places(selection, annotations, Accept.SOUND)
    assert one.sample == 1 and isinstance(place.span, Span)
    assert outcomes == {"computed": 1, "nothing": 1}


@pytest.mark.parametrize("split", [r" ?\S+", r"\S+|\s+", r"[\s\S]", r" ?\d| ?[^\d\s]+|\s"])
def test_tokens_may_begin_before_the_number(tmp_path, split):
    texts = [(r"so \( 48 + 24 = 72 \)", 1.0), ("so 48 + 24 = 73", 0.0), ("so 24 * 2 = 72", 0.0)]
    rows = text_rows(*texts)
    selection = select(Trace.open(write_texts(tmp_path / "t", rows, split=split)))
    annotations = annotated(tmp_path / "a.jsonl", selection, ArithmeticAnnotator())
    places = {item: record.proposed for item, record in annotations.items.items()}
    group = selection.groups[0]
    assert text(group.wrong[0], places[Item("q", 1)]["arithmetic"]).strip() == "73"
    assert text(group.right[0], places[Item("q", 1, 0)]["arithmetic"]).strip() == "72"
    assert not places[Item("q", 2, 0)], "the right completion does not calculate that"
