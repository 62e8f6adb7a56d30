"""Pages as the command writes them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from commandline import acpo


@pytest.fixture
def view(tmp_path: Path) -> Callable[..., Path]:
    """`acpo view` on a trace; gives the page."""

    def run(trace: Path, *options: object) -> Path:
        page = tmp_path / "page.html"
        acpo("view", trace, "-o", page, *options)
        return page

    return run
