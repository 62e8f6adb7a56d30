"""Panes of tokens under the pointer, and side by side."""

import numpy as np

from acpo.records import TraceWriter
from viewer.test_training_traces import columns
from viewer.traces import write_trace

SHOWN = """[...document.querySelectorAll('.pane')].map((pane) => ({
  top: pane.scrollTop,
  folds: pane.querySelectorAll('.fold').length,
  active: [...pane.querySelectorAll('.active')].map((token) => token.index),
}))"""


def write_forked(path, shared, own):
    """Two completions of one prompt that part after so many tokens."""
    first = np.arange(shared + own) % 7
    second = np.where(np.arange(shared + own) < shared, first, first + 7)
    row = {"prompt_id": "q", "prompt": "x", "tokens": shared + own}
    rows = [{**row, "sample": n, "reward": n, "advantage": 2.0 * n - 1} for n in (0, 1)]
    with TraceWriter(path, {"method": "acpo"}) as writer:
        writer.append(rows, columns(2 * len(first), token_id=np.concatenate([first, second])))
    return path


def test_a_press_in_a_scrolled_pane_reaches_its_token(tmp_path, view, browser):
    """A press focuses the pane, which a keyboard's focus answers by going to the active token."""
    write_trace(tmp_path / "t", prompts=1, group=2, length=3000)
    browser.open(view(tmp_path / "t"))
    browser.run("document.querySelectorAll('.pane')[1].scrollIntoView({ block: 'center' })")
    browser.frames(4)
    browser.run("document.querySelectorAll('.pane')[1].scrollTop = 2800")
    browser.frames(8)
    token = browser.run(
        "(() => { const pane = document.querySelectorAll('.pane')[1];"
        "const middle = pane.getBoundingClientRect().top + pane.clientHeight / 2;"
        "const found = [...pane.querySelectorAll('.t')]"
        ".find((token) => token.getBoundingClientRect().top > middle);"
        "found.id = 'wanted'; return found.index })()"
    )
    before = browser.run(SHOWN)[1]
    browser.click("#wanted")
    browser.frames(4)
    after = browser.run(SHOWN)[1]
    assert after["top"] == before["top"] > 2000 and after["active"] == [token]
    assert browser.text("#inspector .muted").startswith(f"token {token + 1} of ")
    browser.press("ArrowRight")
    assert browser.run(SHOWN)[1]["active"] == [token + 1]


def test_pointers_and_hits_beyond_a_fold_leave_it_closed(tmp_path, view, browser):
    page = view(write_forked(tmp_path / "t", 20, 20))
    browser.open(page)
    browser.run("document.querySelectorAll('.pane')[1].querySelector('.t').id = 'wanted'")
    browser.click("#wanted")
    assert browser.run(SHOWN)[1] == {"top": 0, "folds": 1, "active": [20]}
    browser.open(page)
    browser.press("/", *"w65")
    browser.press("Enter")
    assert browser.run(SHOWN)[1] == {"top": 0, "folds": 1, "active": [25]}


def test_a_fold_opens_in_every_view_and_the_rest_can_be_reached(tmp_path, view, browser):
    """Of panes that differ in height, the lower one stops the other nowhere."""
    browser.open(view(write_forked(tmp_path / "t", 1200, 300)))
    browser.press("b")
    browser.frames(4)
    folds = [pane["folds"] for pane in browser.run(SHOWN)]
    browser.run("document.querySelector('.fold').scrollIntoView({ block: 'center' })")
    browser.click(".fold")
    browser.frames(4)
    assert [pane["folds"] for pane in browser.run(SHOWN)] == [0, 0, folds[2] - 1, folds[3] - 1]
    browser.run("document.querySelectorAll('.pane')[2].lastChild.style.minHeight = '6000px'")
    reach = (
        "[...document.querySelectorAll('.pane')].slice(2).map((p) => p.scrollHeight-p.clientHeight)"
    )
    for top in (700, 12_000):
        browser.run(f"document.querySelectorAll('.pane')[2].scrollTop = {top}")
        browser.frames(8)
        tops = [pane["top"] for pane in browser.run(SHOWN)[2:]]
        assert tops == [min(top, most) for most in browser.run(reach)]
    assert tops[0] > tops[1] + 1000
    browser.run("document.querySelectorAll('.pane')[3].scrollTop = 500")
    browser.frames(8)
    assert [pane["top"] for pane in browser.run(SHOWN)[2:]] == [500, 500]
