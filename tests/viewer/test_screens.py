"""Pages on small screens, of long completions, of many parts: they fit, scroll and open."""

import pytest

from acpo import record_columns
from acpo.objectives import METHODS
from acpo.records import TraceWriter
from annotate.test_review import case, open_page  # noqa: F401 (a fixture)
from viewer.test_training_traces import columns
from viewer.traces import write_trace

WIDE = """[...document.querySelectorAll('body *')].filter((e) => {
  const box = e.getBoundingClientRect();
  return box.width && box.right > innerWidth + 1 && !e.closest('.spoken, .pane, .scroll');
}).map((e) => `${e.tagName}.${e.className}#${e.id} ${e.getBoundingClientRect().right}`)"""


@pytest.fixture
def screen(browser):
    def of_width(width):
        size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": False}
        browser.send("Emulation.setDeviceMetricsOverride", **size)
        return browser

    yield of_width
    browser.send("Emulation.setDeviceMetricsOverride", **browser.size)


def fits(browser):
    browser.frames()
    assert browser.run(WIDE) == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [390, 800])
def test_the_credit_page_fits(screen, tmp_path, view, width):
    name = {"model": "organisation/" + "x" * 80}
    write_trace(tmp_path / "t", prompts=2, group=2, length=150, steps=2, drift=0.0, header=name)
    browser = screen(width)
    browser.open(view(tmp_path / "t", "--methods", ",".join(METHODS)))
    fits(browser)
    browser.press("b", "v")
    fits(browser)


@pytest.mark.parametrize("width", [390, 800])
def test_the_review_page_fits(screen, case, width):  # noqa: F811
    browser = screen(width)
    open_page(browser, case)
    fits(browser)
    browser.press("a")
    fits(browser)


def long_trace(path, *, tokens):
    """Columns of one completion: what a page draws, and nothing that takes long to make."""
    pieces = [b" w%d" % (i % 50) if i % 40 else b"\n" for i in range(tokens)]
    with TraceWriter(path, {"method": "sapo"}) as writer:
        row = {"prompt_id": "q", "sample": 0, "tokens": tokens, "reward": 1.0, "advantage": 1.0}
        writer.append([row], columns(tokens, piece=pieces))


def test_200_000_tokens_scroll(tmp_path, view, browser):
    long_trace(tmp_path / "t", tokens=200_000)
    browser.open(view(tmp_path / "t", "--methods", "sapo"))

    def scroll():
        on, far, end, back = "+= 900", "= 4e5", "= 1e9", "-= 900"
        for place in (on, on, "+= 3000", far, on, on, end, back):
            for _ in range(3):
                browser.run(f"document.querySelector('.pane').scrollTop {place}")
                browser.frames(1)

    runs = []
    while len(runs) < 3 and (not runs or max(runs[-1]) >= 400.0):  # a busy machine charges its own
        runs.append(browser.main_thread_tasks(scroll))
    assert len(runs[-1]) > 20 and max(runs[-1]) < 400.0, "CPU ms of one task: about 40 when alone"
    built = browser.count(".pane .t")
    assert 0 < built < 10_000, "what has left the window is given up"
    last = "[...document.querySelectorAll('.pane .t')].at(-1)"
    browser.run("document.querySelector('.pane').scrollTop = 1e9")
    browser.frames(4)
    assert browser.run(f"{last}.index") == 199_999
    assert browser.run(f"{last}.getBoundingClientRect().bottom < innerHeight")


def test_many_parts_are_each_opened_a_few_times(tmp_path, view, monkeypatch):
    write_trace(tmp_path / "t", prompts=3, steps=4)
    opened = []
    real = record_columns._open
    monkeypatch.setattr(record_columns, "_open", lambda file: opened.append(file) or real(file))
    view(tmp_path / "t", "--methods", "sapo,acpo,8020")
    tokens = [file.name for file in opened if file.name.startswith("tokens")]
    assert len(set(tokens)) == 12
    assert len(tokens) <= 3 * 12, "its columns' names, the methods' columns, the page's"
