"""Pages on small screens: nothing lies beside the window."""

import pytest

from acpo.objectives import METHODS
from annotate.test_review import case, open_page  # noqa: F401 (a fixture)
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
    write_trace(tmp_path / "t", prompts=3, length=500, steps=2, drift=0.0, header=name)
    browser = screen(width)
    browser.open(view(tmp_path / "t", "--methods", ",".join(METHODS)))
    fits(browser)
    browser.press("b")
    browser.press("v")
    fits(browser)


@pytest.mark.parametrize("width", [390, 800])
def test_the_review_page_fits(screen, case, width):  # noqa: F811
    browser = screen(width)
    open_page(browser, case)
    fits(browser)
    browser.press("a")
    fits(browser)
