"""The review page where places are missing, and how it counts tokens."""

import json

import pytest

from acpo.annotate.annotations import Annotations, AnnotationWriter, Item, Proposal
from acpo.annotate.annotators import Status
from acpo.annotate.apply import apply
from acpo.annotate.pairs import Span, select
from acpo.records import Trace
from acpo.tasks.chain import chain_problems
from acpo.viewer.review import write_review_page
from annotate.test_review import export, name_oneself
from annotate.traces import chain_rows, write_texts


@pytest.fixture
def review(tmp_path, browser):
    """Opens a page on one wrong and one right completion, with the proposal of the error."""

    def opened(proposal):
        rows = chain_rows(chain_problems(1, seed=5), right=1, wrong=1)
        selection = select(trace := Trace.open(write_texts(tmp_path / "trace", rows)))
        (group,) = selection.groups
        with AnnotationWriter(tmp_path / "a.jsonl", selection) as writer:
            writer.add_annotator("m", {"kind": "model"})
            unasked = Proposal("m", Status.NOT_ASKED, None, "", "", "now")
            pair = (group.wrong[0].sample, group.right[0].sample)
            for item, one in ((pair[:1], proposal), (pair, unasked)):
                length = group.wrong[0].length
                writer.add_proposal(Item(group.prompt_id, *item), length, one)
        write_review_page(trace, Annotations.read(tmp_path / "a.jsonl"), tmp_path / "r.html")
        browser.open(tmp_path / "r.html")
        browser.run("localStorage.clear()")
        browser.open(tmp_path / "r.html")
        return browser

    return opened


def test_nothing_corresponds_to_an_error_that_nobody_located(review, tmp_path):
    browser = review(Proposal("m", Status.NOTHING, None, "", "", "now"))
    assert browser.text("#progress") == "0 decided here, 1 undecided"
    name_oneself(browser)
    browser.press("j")
    assert browser.text("#question").startswith("The error has no place yet")
    browser.press("r", "k", "ArrowRight", "m")  # now it has one
    assert browser.text("#progress") == "1 decided here, 1 undecided"
    browser.press("j")
    assert browser.text("#question").startswith("What corresponds")
    browser.press("r")
    value = export(browser)
    assert value["decisions"][1]["error"] == value["decisions"][0]["span"]
    (tmp_path / "review.json").write_text(json.dumps(value))
    assert apply(tmp_path / "a.jsonl", tmp_path / "review.json").rejected == 1


def test_tokens_are_counted_from_one(review):
    browser = review(Proposal("m", Status.LOCATED, Span(4, 7), "", "", "now"))
    assert "m: tokens 5 to 7" in browser.text("#proposals")
    browser.press("ArrowRight")
    assert browser.text("#announcement").startswith("token 6: ")
    browser.press("m")
    assert browser.text("#state") == "You moved: token 6"
