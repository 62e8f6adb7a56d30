"""Checkers as many projects have them, to show that an attack is one. Never use them."""

import subprocess
import sys

NAIVE_SECONDS = 20


def exit_code_checker(solution: str, test: str, seconds: float = NAIVE_SECONDS) -> bool:
    """Run solution and asserts as one file; exit status 0 is a pass."""
    program = f"{solution}\n{test}\n"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=seconds,
        check=False,
    )
    return done.returncode == 0


def same_process_checker(solution: str, test: str) -> bool:
    """Run both by `exec` and print a verdict unless something was raised."""
    program = (
        "import sys\n"
        "try:\n"
        f"    exec({solution + chr(10) + test!r}, {{}})\n"
        "    print('passed')\n"
        "except BaseException:\n"
        "    print('failed')\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=NAIVE_SECONDS,
        check=False,
    )
    return "passed" in done.stdout.decode(errors="replace")
