"""The review page in a real Chromium: decided by keyboard alone, exported, merged."""

import json
import time

import pytest

from acpo.annotate.annotations import Annotations, AnnotationWriter, Decision, Item, Proposal
from acpo.annotate.annotators import ExactAnnotator, Status
from acpo.annotate.apply import Merged, apply
from acpo.annotate.evidence import Accept, Evidence, aligned_pairs
from acpo.annotate.pairs import Span, select
from acpo.annotate.propose import propose
from acpo.records import Trace
from acpo.tasks.chain import chain_problems
from acpo.viewer.review import write_review_page
from annotate.traces import chain_rows, placed_by_models, text_rows, write_texts


@pytest.fixture
def case(tmp_path):
    """A trace of two prompts, proposals by the exact annotator and one that is a token late."""
    rows = chain_rows(chain_problems(2, seed=5), right=1, wrong=2)
    trace = Trace.open(write_texts(tmp_path / "trace", rows))
    selection = select(trace)
    with AnnotationWriter(tmp_path / "a.jsonl", selection) as writer:
        propose(selection, [ExactAnnotator()], writer)
        writer.add_annotator("late", {"kind": "model", "model": "by hand"})
        for item, record in list(writer.annotations.items.items()):
            first, end = record.proposed["exact"]
            late = Proposal("late", Status.LOCATED, Span(first + 1, end + 1), "later", "", "now")
            writer.add_proposal(item, record.length, late)
    return trace, selection, tmp_path


def open_page(browser, case, name="review.html"):
    trace, _, folder = case
    write_review_page(trace, Annotations.read(folder / "a.jsonl"), folder / name)
    browser.open(folder / name)
    browser.run("localStorage.clear()")  # what an earlier test left
    browser.open(folder / name)
    return folder / name


def name_oneself(browser, name="Ada Example"):
    browser.run("document.getElementById('reviewer').focus()")
    browser.press(*name, "Escape")


def export(browser):
    browser.press("s")
    browser.frames()
    return json.loads(browser.run("document.getElementById('exported-text').value"))


def test_decided_by_keyboard_exported_and_merged(browser, case):
    _, selection, folder = case
    downloads = folder / "downloads"
    downloads.mkdir()
    browser.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))
    open_page(browser, case)
    assert browser.text("#progress") == "0 decided here, 8 undecided"
    name_oneself(browser)
    browser.press("a")  # item 1: the exact proposal
    browser.press("2")  # item 2: `late` speaks of its own error, so its place is not offered
    browser.press("a")
    # item 3: two tokens on, three tokens long
    browser.press("ArrowRight", "ArrowRight", "m", "ArrowRight", "ArrowRight", "e")
    assert browser.text("#state").startswith("You moved: tokens")
    browser.press("i", *"carried on", "Escape", "j")
    browser.press("r")  # item 4
    browser.press("r")  # item 5, taken back; nothing corresponds to it, so item 7 follows
    assert browser.text("#progress") == "5 decided here, 2 undecided"
    browser.press("k")
    assert browser.text("#question").startswith("The error was rejected")
    browser.press("k", "u")
    assert browser.text("#progress") == "4 decided here, 4 undecided"
    value = export(browser)
    assert [row["decision"] for row in value["decisions"]] == ["accept", "accept", "move", "reject"]

    deadline = time.monotonic() + 60
    while not (downloads / "review.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert json.loads((downloads / "review.json").read_text()) == value, "text and file are one"

    path = folder / "a.jsonl"
    before = Annotations.read(path)
    assert apply(path, downloads / "review.json") == Merged(2, 1, 1, 0, 0, 4)
    merged = Annotations.read(path)
    items = list(merged.items)
    reviews = [merged.items[item].review for item in _in_page_order(selection)]
    assert [review.decision if review else None for review in reviews] == [
        Decision.ACCEPT,
        Decision.ACCEPT,
        Decision.MOVE,
        Decision.REJECT,
        *[None] * 4,
    ]
    third = _in_page_order(selection)[2]
    first = before.items[third].proposed["exact"].first
    assert reviews[0].annotator == "exact" and reviews[1].annotator == "exact"
    assert reviews[1].error == reviews[0].span and reviews[3].error == reviews[2].span
    assert reviews[2].span == Span(first + 2, first + 5)
    assert reviews[2].note == "carried on" and reviews[2].reviewer == "Ada Example"
    assert reviews[2].proposed == before.items[third].proposed
    assert len(items) == 8
    pairs, outcomes = aligned_pairs(selection, merged, Accept.VERIFIED_ONLY)
    assert [pair.evidence for pair in pairs] == [Evidence.VERIFIED]
    assert outcomes["error: not verified"] == 2

    # The next page starts after what has been decided, and says who did.
    open_page(browser, case, "again.html")
    assert browser.text("#progress") == "0 decided here, 4 undecided"
    browser.run("document.getElementById('items').focus()")
    browser.press("Home")
    browser.frames()
    assert browser.text("#state").startswith("Ada Example accepted exact")


def _in_page_order(selection):
    return [
        Item(group.prompt_id, wrong.sample, right)
        for group in selection.groups
        for wrong in group.wrong
        for right in (None, *(right.sample for right in group.right))
    ]


def test_what_is_preselected_corresponds_to_the_error_that_was_accepted(browser, case):
    _, selection, folder = case
    open_page(browser, case)
    name_oneself(browser)
    browser.press(*"2aa")  # the error is where `late` says; then whatever is preselected
    value = export(browser)
    assert [row["annotator"] for row in value["decisions"]] == ["late", "late"]
    (folder / "review.json").write_text(json.dumps(value))
    apply(folder / "a.jsonl", folder / "review.json")
    (pair,), _ = aligned_pairs(
        selection, Annotations.read(folder / "a.jsonl"), Accept.VERIFIED_ONLY
    )
    assert pair.error.annotator == pair.corresponding.annotator == "late"


def test_a_rejected_error_asks_for_nothing_more(browser, case):
    open_page(browser, case)
    browser.press("r")
    assert browser.text("#progress") == "1 decided here, 6 undecided"
    assert browser.run("document.getElementById('items').selectedIndex") == 2
    browser.press("k")
    assert browser.run("document.getElementById('accept').disabled")
    browser.press("m")  # nothing can be placed there either
    assert browser.text("#state") == "Nothing to decide"
    assert browser.text("#progress") == "1 decided here, 6 undecided"


def test_a_moved_error_takes_back_what_corresponded_to_it(browser, case):
    open_page(browser, case)
    name_oneself(browser)
    browser.press("a", "a")
    assert browser.text("#progress") == "2 decided here, 6 undecided"
    browser.press("k", "k", "ArrowRight", "ArrowRight", "m")  # where nobody proposed it
    assert browser.text("#progress") == "1 decided here, 7 undecided"
    browser.press("j")
    assert browser.text("#state") == "Decided beside another error: decide again"
    assert browser.run("document.getElementById('accept').disabled"), "no proposal is about it"
    browser.press("m")
    value = export(browser)
    assert [row["decision"] for row in value["decisions"]] == ["move", "move"]
    assert value["decisions"][1]["error"] == value["decisions"][0]["span"]


def test_decisions_survive_closing_the_page(browser, case):
    page = open_page(browser, case)
    name_oneself(browser, "Bo")
    browser.press("a", "r")
    browser.open(page)
    assert "2 decisions of yours" in browser.text("#kept")
    assert browser.text("#progress") == "2 decided here, 6 undecided"
    value = export(browser)
    assert value["reviewer"] == "Bo" and len(value["decisions"]) == 2


def test_what_others_left_in_the_browser_is_not_believed(browser, case):
    page = open_page(browser, case)
    name_oneself(browser, "Bo")
    browser.press("a")
    browser.run(
        "(() => { const key = Object.keys(localStorage).find((k) => k.startsWith('acpo-review'));"
        "const kept = JSON.parse(localStorage[key]); const [[, good]] = kept.decisions;"
        "kept.decisions.push([1, {...good, span: [0, 9999]}], [2, {...good, annotator: 'x'}],"
        "[99, good], ['3', good], [4, null], [5, {...good, decision: 'bless'}]);"
        "localStorage[key] = JSON.stringify(kept); })()"
    )
    browser.open(page)
    assert browser.text("#progress") == "1 decided here, 7 undecided"


def test_without_storage_it_says_so(browser, case):
    page = open_page(browser, case)
    script = "Object.defineProperty(window, 'localStorage', { get() { throw new Error('no'); } });"
    added = browser.send("Page.addScriptToEvaluateOnNewDocument", source=script)
    try:
        browser.open(page)
        assert "export before you close" in browser.text("#kept")
        browser.press("a")
        assert browser.text("#progress") == "1 decided here, 7 undecided"
        leave = "(() => { const e = new Event('beforeunload', {cancelable: true});"
        leave += "window.dispatchEvent(e); return e.defaultPrevented; })()"
        assert browser.run(leave), "leaving is warned about"
        name_oneself(browser)
        export(browser)
        assert not browser.run(leave), "after the export there is nothing to lose"
    finally:
        browser.send("Page.removeScriptToEvaluateOnNewDocument", **added)


def test_no_export_without_a_name(browser, case):
    open_page(browser, case)
    browser.press("a", "s")
    assert browser.run("document.activeElement.id") == "reviewer"
    assert browser.text("#kept") == "Say who you are before you export."
    assert not browser.run("document.getElementById('exported').open")


def test_the_button_of_the_theme_says_no_other(browser, case):
    open_page(browser, case)
    for theme in ("light", "dark", "auto"):
        browser.press("t")
        assert browser.run("document.documentElement.dataset.theme") == theme
        said = browser.run("document.getElementById('theme').title")
        assert said == f"Theme: {theme}" and "Theme" not in browser.text("#theme")


def test_every_control_is_reached_by_tab(browser, case):
    open_page(browser, case)
    reached = set()
    for _ in range(40):
        browser.press("Tab")
        reached.add(browser.run("document.activeElement.id || document.activeElement.className"))
    buttons = {"export", "theme", "help-open", "previous", "next", "next-open", "accept", "begin"}
    assert buttons | {"finish", "reject", "reviewer", "items", "note", "pane"} <= reached


def test_long_completions_open_at_the_place(browser, tmp_path):
    words = " ".join(f"w{number}" for number in range(16_000))
    rows = text_rows((f"{words} 0", 1.0), (f"{words} 1", 0.0))
    trace = Trace.open(write_texts(tmp_path / "trace", rows, split=r"\S+|\s+"))
    said = placed_by_models(tmp_path / "a.jsonl", select(trace), Span(30_000, 30_002), "m")
    page = tmp_path / "review.html"
    write_review_page(trace, said, page)
    began = time.monotonic()
    browser.open(page)
    assert time.monotonic() - began < 30.0  # about 1 s, and more on a busy machine
    browser.press("a")  # to the pair: two panes of 32k tokens
    place = "document.querySelector('.asked .chosen').getBoundingClientRect().top"
    assert 0 < browser.run(place) < 900, "the place is in view"


HOSTILE = [
    "<script>window.hit=1</script>",
    "</script><script>window.hit=2</script>",
    "<img src=x onerror=window.hit=3>",
    "javascript:window.hit=4",
    "<!--",
    "\u202e abc",
    "]]>",
    "{{7*7}}",
]


def test_hostile_text_does_nothing(browser, tmp_path):
    body = " ".join(HOSTILE)
    hostile = {"prompt_id": body, "prompt": body, "answer": body}
    rows = text_rows((f"{body} right", 1.0), (f"{body} wrong", 0.0), **hostile)
    trace = Trace.open(write_texts(tmp_path / "trace", rows, split=r"\S+|\s+"))
    said = placed_by_models(tmp_path / "a.jsonl", select(trace), Span(0, 2), "m", said=body)
    page = tmp_path / "review.html"
    write_review_page(trace, said, page)
    browser.open(page)
    name_oneself(browser, "<b>Eve</b>")
    browser.press("a", "a")
    value = export(browser)
    assert browser.run("window.hit") is None
    assert browser.count("img, iframe, b, link") == 1  # our h1's
    (tmp_path / "review.json").write_text(json.dumps(value))
    assert apply(tmp_path / "a.jsonl", tmp_path / "review.json").accepted == 2
    record = Annotations.read(tmp_path / "a.jsonl").items[Item(body, 1)]
    assert record.review.reviewer == "<b>Eve</b>"


def test_a_rationale_moves_neither_text_nor_buttons(browser, tmp_path):
    rows = chain_rows(chain_problems(1, seed=5), right=1, wrong=1)
    trace = Trace.open(write_texts(tmp_path / "trace", rows))
    hostile = "\u202etpecca\u202c is wrong\u2066 " + "and so on\n" * 300
    said = placed_by_models(tmp_path / "a.jsonl", select(trace), Span(1, 3), "m", "n", said=hostile)
    page = tmp_path / "review.html"
    write_review_page(trace, said, page)
    browser.open(page)
    assert browser.texts(".why .mark")[:3] == ["RLO", "PDF", "LRI"]
    assert not set("\u202e\u202c\u2066") & set(browser.text("#proposals"))
    bottom = "document.getElementById('undo').getBoundingClientRect().bottom"
    assert browser.run(bottom) < 900, "every button is in the window"
