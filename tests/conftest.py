"""Shared test settings."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real benchmark files beside the checkout; absent on most machines."""
    if not SHARED_DATA.is_dir():
        pytest.skip("no benchmark files beside this checkout")
    return SHARED_DATA


def require_tool(found: bool, name: str) -> None:
    """Skip when a system tool is missing, or fail where CI promised to install it."""
    if found:
        return
    if os.environ.get("ACPO_REQUIRE_TOOLS"):
        pytest.fail(f"{name} is required here but missing")
    pytest.skip(f"{name} is not installed")
