"""How long the tests wait for worker processes depends on what these do, not on the machine."""

import math
import subprocess
import sys

import pytest

from engines.verl.launch import wait_for

BURN = "import time\nstart = time.process_time()\nwhile time.process_time() < start + {0}: pass\n"


@pytest.fixture
def start():
    started = []

    def run(program):
        started.append(subprocess.Popen([sys.executable, "-c", program]))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_slow_progress_is_progress(start):
    program = "import time\nfor _ in range(8):\n    time.sleep(0.3)\n    "
    program += BURN.format(0.1).replace("\n", "\n    ")
    assert wait_for([start(program)], stalled=2.0) == [0]


def test_processes_that_wait_for_ever(start):
    with pytest.raises(AssertionError, match="no progress for"):
        wait_for([start("import time; time.sleep(99)")], stalled=1.0)


def test_processes_that_run_in_a_circle(start):
    with pytest.raises(AssertionError, match="not done after"):
        wait_for([start(BURN.format(99))], limit=0.5)


def test_one_failure_ends_the_group(start):
    assert sorted(
        wait_for([start("raise SystemExit(3)"), start("import time; time.sleep(99)")])
    ) == [0, 3]


def test_other_measures_of_progress(start, tmp_path):
    log = tmp_path / "log"
    log.touch()
    process = start(
        f"import time\nfor _ in range(9):\n    time.sleep(0.2); open({str(log)!r}, 'a').write('x')"
    )
    assert wait_for([process], lambda: log.stat().st_size, stalled=5.0, limit=math.inf) == [0]
