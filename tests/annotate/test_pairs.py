"""What is compared: the protocol's rules on a trace made by hand."""

import numpy as np
import pytest

from acpo.annotate.pairs import Chars, Span, select
from acpo.errors import ACPOError
from acpo.records import Trace, TraceWriter
from annotate.traces import text_rows, write_texts


def row(prompt, sample, reward, **more):
    text = f"{prompt}{sample}"
    return {
        "prompt_id": prompt,
        "sample": sample,
        "prompt": prompt,
        "completion": text,
        "reward": reward,
        **more,
    }


def chosen(selection):
    return [(w.prompt_id, w.sample, r.sample) for w, r in selection.pairs]


def test_every_right_one_is_paired_with_every_wrong_one(tmp_path):
    rows = [row("a", 0, 1.0), row("a", 1, 0.0), row("a", 2, 1.0), row("a", 3, 0.0)]
    rows += [row("all right", 0, 1.0), row("all right", 1, 1.0)]
    rows += [row("all wrong", 0, 0.0)]
    rows += [row("cut", 0, 1.0), row("cut", 1, 0.0, truncated=True)]
    rows += [row("mixed", 0, 1.0, truncated=True), row("mixed", 1, 0.0), row("mixed", 2, None)]
    rows += [row("mixed", 3, float("nan"))]
    selection = select(Trace.open(write_texts(tmp_path / "t", rows)))
    assert chosen(selection) == [
        ("a", 1, 0),
        ("a", 1, 2),
        ("a", 3, 0),
        ("a", 3, 2),
        ("mixed", 1, 0),
    ]
    assert selection.counts == {
        "completions": 13,
        "no_verdict": 2,
        "length_failures": 1,
        "one_sided_prompts": 3,
        "prompts": 2,
        "right": 3,
        "wrong": 3,
        "pairs": 5,
    }
    limited = select(Trace.open(tmp_path / "t"), limit=1)
    assert len(chosen(limited)) == 4
    assert limited.fingerprint == selection.fingerprint


def test_steps_are_not_mixed(tmp_path):
    write_texts(tmp_path / "t", [row("a", 0, 1.0), row("a", 1, 0.0)])
    write_texts(tmp_path / "t", [row("a", 0, 0.0), row("a", 1, 1.0)], step=7)
    trace = Trace.open(tmp_path / "t")
    with pytest.raises(ACPOError, match="holds the steps 0, 7"):
        select(trace)
    assert chosen(select(trace, step=7)) == [("a", 0, 1)]
    assert select(trace, step=7).fingerprint != select(trace, step=0).fingerprint


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row("a", 0, 1.0), row("a", 1, 0.0, truncated=True)], "1 failures by length"),
        ([row("a", 0, 1.0), row("a", 0, 0.0)], "is there twice"),
    ],
)
def test_nothing_to_compare(tmp_path, rows, message):
    with pytest.raises(ACPOError, match=message):
        select(Trace.open(write_texts(tmp_path / "t", rows)))


def test_characters_to_tokens(tmp_path):
    rows = text_rows(("ab\U0001f600c", 1.0), ("ab\U0001f600c", 0.0))
    # The emoji is two tokens, and a token without characters ends the completion.
    starts, ends = [0, 2, 2, 3, 4], [2, 3, 3, 4, 4]
    tokens = {"token_id": [0] * 10, "start": starts * 2, "end": ends * 2}
    with TraceWriter(tmp_path / "t", {}) as writer:
        writer.append([{**r, "tokens": 5} for r in rows], tokens)
    wrong = select(Trace.open(tmp_path / "t")).groups[0].wrong[0]
    assert wrong.tokens(Chars(2, 3)) == Span(1, 3)
    assert wrong.tokens(Chars(1, 2)) == Span(0, 1)
    assert wrong.tokens(Chars(3, 4)) == Span(3, 4)
    assert wrong.tokens(Chars(4, 4)) is None
    assert wrong.completion[slice(*wrong.chars(Span(1, 3)))] == "\U0001f600"


@pytest.mark.parametrize(
    ("starts", "ends"), [([0, 5], [1, 9]), ([-1, 0], [0, 1]), ([1, 0], [1, 1]), ([1, 1], [0, 1])]
)
def test_tokens_outside_their_completion_are_refused(tmp_path, starts, ends):
    rows = [{**row("a", s, float(s)), "tokens": 2} for s in range(2)]
    tokens = {"token_id": np.zeros(4), "start": starts * 2, "end": ends * 2}
    with TraceWriter(tmp_path / "t", {}) as writer:
        writer.append(rows, tokens)
    with pytest.raises(ACPOError, match="damaged"):
        select(Trace.open(tmp_path / "t"))
