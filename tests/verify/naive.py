"""Checkers as many projects have them, to show that an attack is one. Never use them."""

import json
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


JUDGE_EACH = """
import json, os, signal, sys
programs = json.load(sys.stdin)
os.dup2(os.open(os.devnull, os.O_RDWR), 0)
os.dup2(0, 2)
report = os.dup(1)
os.dup2(0, 1)
for program in programs:
    child = os.fork()
    if child == 0:
        os.close(report)
        signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]))
        status = 1
        try:
            exec(compile(program, "program", "exec"), {"__name__": "__main__"})
            status = 0
        except SystemExit as end:
            status = int(bool(end.code))
        finally:
            os._exit(status)
    os.write(report, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def exit_codes(programs: list[str], cpu_seconds: float) -> list[int]:
    """Exit status of each program in a process of its own; negative where it ran out of time."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", JUDGE_EACH, str(cpu_seconds)],
        input=json.dumps(programs),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return [int(line) for line in done.stdout.split()]


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
