"""First errors on the credit page: marked, and the method's shares beside them."""

import pytest

from acpo.annotate.pairs import Span, select
from acpo.diagnose.blame import REGIONS
from acpo.errors import ACPOError
from acpo.records import Trace
from acpo.viewer.credit import error_places_by_row
from annotate.traces import placed_by_models, text_rows, write_texts
from diagnose.test_blame import case, finding  # noqa: F401 (fixtures)


def test_the_page_marks_the_error_and_says_the_shares(case, finding, view, browser):  # noqa: F811
    _, _, folder = case
    marked = ("--annotations", folder / "a.jsonl", "--methods", "sapo,acpo")
    browser.open(view(folder / "trace", *marked))
    row = finding.extra["completions"][0]
    browser.press("b")
    said = browser.texts(".blame")
    assert len(said) == 2 * 2, "two wrong completions, two methods"
    shares = [100 * row[f"acpo update {region}"] for region in REGIONS]
    assert "{:.1f}% before, {:.1f}% at, {:.1f}% after".format(*shares) in said[1]
    assert f"(chance at it: {100 * row['chance at']:.1f}%)" in said[0]
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    marked = browser.run("[...document.querySelectorAll('.t.first-error')].map((t) => t.index)")
    assert set(marked[:2]) == {row["error_first"]}
    browser.press("f", "f", "f")
    assert browser.run("document.getElementById('only').value") == "error"
    browser.press("n")
    assert browser.text("#inspector .muted").startswith(f"token {row['error_first'] + 1} of")
    head = browser.texts(".facts")[2]
    assert f"first error at token {row['error_first'] + 1}, computed" in head


def test_hostile_completions_stay_text_beside_the_overlay(tmp_path, view, browser):
    """Errors placed by nobody one knows, in completions that are markup."""
    body = "<img src=x onerror=window.hit=1> </script><script>window.hit=2</script> \u202e 1+1=3 "
    hostile = {"prompt_id": body, "prompt": body, "answer": body, "advantage": 0.0}
    rows = text_rows((body + "right", 1.0), (body + "wrong", 0.0), **hostile)
    trace = write_texts(tmp_path / "t", rows, split=r"\S+|\s+")
    file = tmp_path / "a.jsonl"
    placed_by_models(file, select(Trace.open(trace)), Span(0, 2), "<b>m</b>", said=body)
    browser.open(view(trace, "--annotations", file))
    browser.press("f", "f", "f")
    assert browser.count("img, iframe, b:not(.silent)") == 1
    assert browser.run("window.hit") is None
    assert browser.text(".facts .first-error") == "first error at token 1, proposed"


def test_annotations_of_another_step_are_told_as_such(tmp_path):
    rows = text_rows(("right", 1.0), ("wrong", 0.0))
    trace = Trace.open(write_texts(tmp_path / "t", rows))
    file = tmp_path / "a.jsonl"
    placed_by_models(file, select(trace), Span(0, 1), "m")
    later = Trace(trace.path, trace.header, tuple(part | {"step": 7} for part in trace.parts))
    with pytest.raises(ACPOError, match=r"annotations are of step 0, and .* in step 7"):
        error_places_by_row(later, file)
