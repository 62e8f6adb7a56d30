"""Scripts end as `python script.py` does, and are judged by all they print until then."""

import dataclasses
import json

import pytest

from acpo.verify import Outcome
from acpo.verify.code import judge_code
from acpo.verify.sandbox import LocalBackend
from verify.sandboxed import SHORT, MarkedLauncher, backend, inside, judge

pytestmark = pytest.mark.sandbox

DOUBLE = {"inputs": ["21\n"], "outputs": ["42\n"]}
HONEST = {
    "exit": "print(2 * int(input()))\nexit()\nprint('not reached')",
    "quit": "print(2 * int(input()))\nquit(0)",
    "thread": (
        "import threading\n"
        "def main(): print(2 * int(input()))\n"
        "threading.stack_size(1 << 26)\n"
        "threading.Thread(target=main).start()"
    ),
    "slow thread": (
        "import threading, time\n"
        "def main():\n    time.sleep(0.2)\n    print(2 * int(input()))\n"
        "threading.Thread(target=main).start()"
    ),
    "atexit": "import atexit\natexit.register(lambda: print(2 * int(input())))",
    "unflushed file": "out = open(1, 'w')\nout.write(str(2 * int(input())))",
    "unflushed file after exit": "out = open(1, 'w')\nout.write(str(2 * int(input())))\nexit()",
    "device": "print(2 * int(open('/dev/stdin').read()))",
    "descriptor": "import os\nprint(2 * int(os.read(0, 9)))",
    "device for output": "open('/dev/stdout', 'w').write(str(2 * int(input())))",
    "pool": (
        "from multiprocessing import Pool\n"
        "def double(n): return 2 * n\n"
        "if __name__ == '__main__':\n"
        "    with Pool(2) as pool: print(*pool.map(double, [int(input())]))"
    ),
    "executor": (
        "from concurrent.futures import ProcessPoolExecutor\n"
        "def double(n): return 2 * n\n"
        "if __name__ == '__main__':\n"
        "    with ProcessPoolExecutor(2) as pool: print(*pool.map(double, [int(input())]))"
    ),
    "queue": (
        "from multiprocessing import Process, Queue\n"
        "def work(q, n): q.put(2 * n)\n"
        "q = Queue()\np = Process(target=work, args=(q, int(input())))\n"
        "p.start()\nprint(q.get())\np.join()"
    ),
    "main": "import sys\ndef main(): print(2 * int(input())); return 0\nsys.exit(main())",
}
DISHONEST = {
    "status": "print(42)\nexit(1)",
    "message": "print(42)\nexit('failed')",
    "raised": "print(42)\nraise ValueError",
    "raised with threads": (
        "import threading\nthreading.Thread(target=lambda: print(42)).start()\nraise ValueError"
    ),
    "more at the end": "import atexit\natexit.register(lambda: print(43))\nprint(42)",
    "killed": "import os, signal\nprint(42, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_scripts_pass(name):
    verdict = judge(HONEST[name], DOUBLE)
    assert verdict.outcome is Outcome.CORRECT, verdict


@pytest.mark.parametrize("name", DISHONEST)
def test_scripts_that_fail_in_python_fail_here(name):
    assert judge(DISHONEST[name], DOUBLE).reward() == 0.0


def test_a_thread_that_never_ends_is_a_timeout():
    short = LocalBackend(MarkedLauncher(), dataclasses.replace(SHORT, wall_seconds=1.0))
    code = (
        "import threading, time\nprint(42)\nthreading.Thread(target=time.sleep, args=(60,)).start()"
    )
    assert judge_code(code, DOUBLE, short).outcome is Outcome.TIMEOUT


def test_all_runs_of_a_problem_share_one_limit():
    limits = dataclasses.replace(SHORT, problem_seconds=1.0)
    many = {"inputs": ["21"] * 50, "outputs": ["42"] * 50}
    code = "import time\ntime.sleep(0.3)\nprint(42)"
    verdict = judge_code(code, many, LocalBackend(MarkedLauncher(), limits))
    assert verdict.outcome is Outcome.TIMEOUT
    assert 1.0 <= verdict.seconds < 15.0, "what all fifty would sleep"


def test_shared_memory_is_small_and_for_scripts_alone():
    fill = (
        "written = 0\n"
        "try:\n"
        "    for n in range(100):\n"
        "        with open(f'/dev/shm/{n}', 'wb') as f: written += f.write(b'x' * (1 << 20))\n"
        "except OSError: pass\n"
        "print(written >> 20)\n"
    )
    sizes = {"inputs": [""], "outputs": [str(SHORT.file_bytes >> 20)]}
    assert judge(fill, sizes).correct
    assert "Read-only" in inside("", "open('/dev/shm/x', 'w')")[0]


def test_installed_packages_are_not_there():
    look = (
        "import glob, os, sys\n"
        "def packages():\n"
        "    found = []\n"
        "    for folder in {os.path.dirname(os.__file__), '/usr/lib/python3', sys.prefix}:\n"
        "        for name in ('site-packages', 'dist-packages'):\n"
        "            found += glob.glob(f'{folder}/{name}/*')\n"
        "    return found\n"
    )
    assert json.loads(inside(look, "packages()")[0])["value"] == {"list": []}


def test_functions_see_the_same_builtins():
    [reply] = inside("def leave(): exit(3)", "leave()")
    assert json.loads(reply)["error"].startswith("SystemExit")
    assert backend().limits is SHORT
