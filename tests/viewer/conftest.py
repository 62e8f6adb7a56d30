"""Pages as the command writes them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from acpo.cli import app


@pytest.fixture
def view(tmp_path: Path) -> Callable[..., Path]:
    """`acpo view` on a trace; gives the page."""

    def run(trace: Path, *options: str) -> Path:
        page = tmp_path / "page.html"
        result = CliRunner().invoke(app, ["view", str(trace), "-o", str(page), *options])
        assert result.exit_code == 0, result.output
        return page

    return run
