"""A wrong `a op b = c` is found exactly, and nothing else is taken for one."""

import pytest

from acpo.annotate.annotations import AnnotationWriter, Item
from acpo.annotate.annotators import ArithmeticAnnotator, Status, equations
from acpo.annotate.evidence import Accept, Evidence, aligned_pairs, error_places
from acpo.annotate.models import parse_annotators
from acpo.annotate.pairs import Span, select
from acpo.annotate.propose import propose
from acpo.records import Trace
from annotate.traces import write_texts

CASES = {
    "48/2 = 24, then 48+24=73": [True, False],
    "<<48/2=24>>24 clips": [True],
    "$5 * 3 = $16": [False],
    "12 x 3 = 37.": [False],
    "1,000 + 5 = 1,005": [True],
    "20/8 = 2.5.": [True],
    "10/3 = 3.33 and 10/3 = 3.4": [True, True],
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
}


@pytest.mark.parametrize(("text", "expected"), CASES.items())
def test_equations_that_hold_and_do_not(text, expected):
    assert [equation.holds for equation in equations(text)] == expected


def test_long_texts_take_no_time():
    for hostile in ("1+" * 200_000, "1,1" * 100_000 + "=", " x " * 100_000, "9" * 200_000 + "=1"):
        assert not [e for e in equations(hostile) if not e.holds]


def test_first_errors_of_word_problems(tmp_path):
    base = {"prompt_id": "q", "prompt": "clips?", "answer": "72"}
    texts = [
        ("She sold 48 / 2 = 24 in May, so 48 + 24 = 72.", 1.0),
        ("She sold 48/2 = 24 in May, so 48+24 = 73. #### 73", 0.0),
        ("She sold 48 * 2 = 96 in May. #### 96", 0.0),
    ]
    rows = [
        {**base, "sample": i, "completion": text, "reward": reward}
        for i, (text, reward) in enumerate(texts)
    ]
    trace = Trace.open(write_texts(tmp_path / "t", rows, split=r"\S+|\s+"))
    selection = select(trace)
    (annotator,) = parse_annotators(["arithmetic"], cache=tmp_path, timeout=1.0, retries=0)
    assert isinstance(annotator, ArithmeticAnnotator)
    with AnnotationWriter(tmp_path / "a.jsonl", selection) as writer:
        propose(selection, [annotator], writer)
        annotations = writer.annotations
    error = annotations.items[Item("q", 1)].proposals["arithmetic"]
    wrong = selection.groups[0].wrong[0]
    assert wrong.text(error.span) == "73." and "48+24 is 72, not 73" in error.rationale
    set_up = annotations.items[Item("q", 2)].proposals["arithmetic"]
    assert set_up.status is Status.NOTHING and "1 equations" in set_up.rationale
    (pair,), _ = aligned_pairs(selection, annotations, Accept.SOUND)
    assert pair.evidence is Evidence.COMPUTED
    assert pair.right.text(pair.corresponding.span) == "72."
    ((one, place),), outcomes = error_places(selection, annotations, Accept.SOUND)
    assert one.sample == 1 and isinstance(place.span, Span)
    assert outcomes == {"computed": 1, "nothing": 1}
