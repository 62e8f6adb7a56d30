"""One browser for all page tests of a worker."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from acpo.cli import app
from conftest import require_tool
from viewer.browser import CHROMIUM, Browser


@pytest.fixture(scope="session")
def shared_browser() -> Iterator[Browser]:
    require_tool(CHROMIUM is not None, "chromium")
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(shared_browser: Browser) -> Iterator[Browser]:
    """The page must have neither failed nor asked for anything by the end of the test."""
    yield shared_browser
    assert shared_browser.problems() == []
    assert shared_browser.requests() == []


@pytest.fixture
def view(tmp_path: Path) -> Callable[..., Path]:
    """`acpo view` on a trace; gives the page."""

    def run(trace: Path, *options: str) -> Path:
        page = tmp_path / "page.html"
        result = CliRunner().invoke(app, ["view", str(trace), "-o", str(page), *options])
        assert result.exit_code == 0, result.output
        return page

    return run
