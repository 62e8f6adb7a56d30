"""Shared test settings."""

import contextlib
import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from viewer.browser import Browser

os.environ.setdefault("HF_HUB_OFFLINE", "1")
with contextlib.suppress(ImportError):  # verl's environment is without
    from hypothesis import settings

    settings.register_profile("acpo", derandomize=True, deadline=None)
    settings.load_profile("acpo")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it behind `&`
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_finish() -> None:
    """What was imported stays: collections, one at the end of every training, pass over it."""
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real benchmark files beside the checkout; absent on most machines."""
    if not SHARED_DATA.is_dir():
        pytest.skip("no benchmark files beside this checkout")
    return SHARED_DATA


@pytest.fixture
def compiled_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Every compilation by a backend of the test's instead of Inductor."""
    import torch

    compile_ = torch.compile

    def use(backend: Any) -> None:
        torch.compiler.reset()
        monkeypatch.setattr(
            torch, "compile", lambda f, **how: compile_(f, **{**how, "backend": backend})
        )

    return use


def require_tool(found: bool, name: str) -> None:
    """Skip when a system tool is missing, or fail where CI promised to install it."""
    if found:
        return
    if os.environ.get("ACPO_REQUIRE_TOOLS"):
        pytest.fail(f"{name} is required here but missing")
    pytest.skip(f"{name} is not installed")


@pytest.fixture(scope="session")
def shared_browser() -> "Iterator[Browser]":
    """One browser for all page tests of a worker."""
    from viewer.browser import CHROMIUM, Browser

    require_tool(CHROMIUM is not None, "chromium")
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(shared_browser: "Browser") -> "Iterator[Browser]":
    """The page must have neither failed nor asked for anything by the end of the test."""
    yield shared_browser
    assert shared_browser.problems() == []
    assert shared_browser.requests() == []
