"""Where and with what a benchmark was measured."""

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch


def environment(*packages: str) -> dict[str, Any]:
    """Machine, versions, command, date, and the commit: `ACPO_COMMIT` where there is no git."""
    commit = os.environ.get("ACPO_COMMIT")
    if commit is None:
        said = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        )
        commit = said.stdout.strip() or None
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cpu": platform.machine(),
        "python": platform.python_version(),
        "packages": {name: _installed(name) for name in packages},
        "commit": commit,
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
