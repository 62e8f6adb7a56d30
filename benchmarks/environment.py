"""Where and with what a benchmark was measured."""

import os
import platform
import shlex
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def environment(*packages: str) -> dict[str, Any]:
    """Machine, load, versions, command, date, and the commit: `ACPO_COMMIT` without git."""
    import torch

    commit = os.environ.get("ACPO_COMMIT")
    if commit is None:
        said = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        )
        commit = said.stdout.strip() or None
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "packages": {name: _installed(name) for name in packages},
        "commit": commit,
        "command": shlex.join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
    return f"{platform.machine()} {model}".strip()


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
