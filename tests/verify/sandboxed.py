"""What the sandbox tests share: one backend with short limits, and ways to look at the machine."""

import functools
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

from acpo.verify.code import judge_code
from acpo.verify.sandbox import BubblewrapLauncher, LocalBackend
from acpo.verify.session import Limits
from acpo.verify.verdict import Verdict
from conftest import require_tool

# The wall is far off: on a busy machine honest code waits for its turn, too.
SHORT = Limits(cpu_seconds=2, wall_seconds=60.0, memory_bytes=512 << 20)
# For code that never ends: the time it takes is the limit's.
HASTY = replace(SHORT, cpu_seconds=1, wall_seconds=2.5)
ADD = {
    "raw_problem": "",
    "new_problem": 'def add(a, b):\n    """The sum."""\n',
    "test_code": "assert add(1, 2) == 3\nassert add(-5, 7) == 2\nassert add(40, 2) == 42\n",
}


# Several test processes may share this machine; each looks for its own runners only.
MARK = f"acpo-test-{os.getpid()}"


class MarkedLauncher(BubblewrapLauncher):
    """The launcher under test, with a last argument that the runner ignores."""

    def __init__(self) -> None:
        require_tool(shutil.which("bwrap") is not None, "bubblewrap")
        super().__init__()

    def command(self, channel: int, limits: Limits) -> tuple[list[str], list[int]]:
        command, extra = super().command(channel, limits)
        return [*command, MARK], extra


@functools.cache
def backend(limits: Limits = SHORT) -> LocalBackend:
    return LocalBackend(MarkedLauncher(), limits)


def judge(code: str, problem: dict = ADD, limits: Limits = SHORT) -> Verdict:
    """The verdict on bare code, which has to be Python: what does not compile attacks nothing."""
    verdict = judge_code(f"```python\n{code}\n```", problem, backend(limits))
    assert "IndentationError" not in verdict.detail
    return verdict


def inside(source: str, *expressions: str) -> list:
    """What `expressions` give inside the sandbox, after loading `source`."""
    replies: list[str] = []

    def keep(reply: dict) -> bool:
        replies.append(json.dumps(reply))
        return True

    run = backend().run_calls([source], expressions, keep)
    assert run.ended is None, run.ended
    return replies


def sandbox_processes() -> list[str]:
    """Command lines of every runner of this test process that is still alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if MARK.encode() in line:
                found.append(line.decode(errors="replace"))
    return found
