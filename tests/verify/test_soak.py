"""Thousands of hostile and honest jobs: nothing is left over, and memory stays flat."""

import gc
import os
import random
import tempfile
import time

import pytest

from acpo.verify import MathPool, Outcome
from acpo.verify.code import CodePool
from acpo.verify.proctree import children, tree_memory
from verify.sandboxed import ADD, backend, sandbox_processes

MATH_JOBS, CODE_JOBS = 2_700, 300

HONEST_MATH = [("\\boxed{%dx + %d}", "%d(x+1)"), ("\\boxed{%d/%d}", "1"), ("Answer: %d.%d", "7")]
HOSTILE_MATH = [
    "\\boxed{10^{10^{10}}}",
    "\\boxed{99999999!}",
    "\\boxed{" + "{" * 10_000,
    "\\boxed{\\binom{10^9}{10^8}}",
    "\\boxed{" + "7" * 100_000 + "}",
    "\\boxed{__import__('os').fork()}",
    "\ud800\\boxed{\x00}",
]
HANG = "\\boxed{\\int (x+y+z+w)^{900} dx}"
HOSTILE_CODE = [
    "import os\nos._exit(0)",
    "import os\nfor _ in range(20):\n    if os.fork() == 0: break\ndef add(a, b): return 0",
    "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass\ndef add(a, b): return 0",
    "x = bytearray(10 ** 10)",
    "import ctypes\nctypes.string_at(0)",
    "open('/tmp/fill', 'wb').write(b'x' * 10 ** 6)\ndef add(a, b): return None",
    "import sys\nprint('x' * 10 ** 6)\nsys.exit(0)",
    "import threading, time\nfor _ in range(20):\n"
    "    threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
    "def add(a, b): return 1",
    "import os\nos.close(3)\nos.closerange(0, 99)",
]
HONEST_CODE = "def add(a, b): return a + b"


def math_job(rng: random.Random, index: int) -> tuple[str, str]:
    if index % 1000 == 500:
        return HANG, "x+1"
    if rng.random() < 0.3:
        return rng.choice(HOSTILE_MATH), "x+1"
    number = rng.randint(2, 10**6)
    text, gold = rng.choice(HONEST_MATH)
    return text % (number, number), gold % number if "%" in gold else gold


def zombies() -> list[str]:
    found = []
    for pid in children(os.getpid()):
        with open(f"/proc/{pid}/stat") as file:
            stat = file.read()
        if stat.rpartition(")")[2].split()[0] == "Z":
            found.append(stat)
    return found


def leftovers() -> tuple[int, int, list[str], list[int]]:
    """Open descriptors, temporary files, zombies, children."""
    descriptors = len(os.listdir("/proc/self/fd"))
    return descriptors, len(os.listdir(tempfile.gettempdir())), zombies(), children(os.getpid())


@pytest.mark.sandbox
def test_three_thousand_jobs(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rng = random.Random(5)
    box = backend()
    gc.collect()
    before = leftovers()
    memory = []
    start = time.monotonic()
    with MathPool(1, cpu_seconds=0.5) as math, CodePool(1, box) as code:
        futures = []
        for index in range(MATH_JOBS):
            futures.append(math.verify(*math_job(rng, index)))
            if index % (MATH_JOBS // CODE_JOBS) == 0:
                hostile = rng.random() < 0.5
                source = rng.choice(HOSTILE_CODE) if hostile else HONEST_CODE
                futures.append(code.verify(f"```python\n{source}\n```", ADD))
                futures[-1].honest = not hostile
            if index % 100 == 99:
                memory.append(tree_memory(os.getpid()))
        verdicts = [(future.result(), getattr(future, "honest", None)) for future in futures]
    print(f"\nsoak: {len(verdicts)} jobs in {time.monotonic() - start:.0f} s")
    assert len(verdicts) == MATH_JOBS + CODE_JOBS
    assert not [
        v for v, _ in verdicts if v.outcome in (Outcome.INFRA_ERROR, Outcome.UNPARSEABLE_GOLD)
    ]
    assert {v.outcome for v, honest in verdicts if honest is True} == {Outcome.CORRECT}
    assert Outcome.CORRECT not in {v.outcome for v, honest in verdicts if honest is False}
    assert leftovers() == before
    assert sandbox_processes() == []
    third = len(memory) // 3
    early, late = max(memory[:third]), max(memory[-third:])
    print(f"soak: {early >> 20} MiB in the first third, {late >> 20} MiB in the last")
    assert late - early < 100 << 20
