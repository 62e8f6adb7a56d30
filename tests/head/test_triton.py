"""All Triton kernels, in Triton's interpreter: no GPU needed, small shapes."""

import os
import subprocess
import sys
from pathlib import Path

from conftest import require_tool

TESTS = Path(__file__).parents[1]
CASES = ("head/kernel_cases.py", "sampling/kernel_cases.py")


def test_kernels_in_the_interpreter():
    try:
        import triton  # noqa: F401

        found = True
    except ImportError:
        found = False
    require_tool(found, "triton")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *CASES]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:]
