"""Graders, and the answer with which a completion votes."""

import json
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from acpo.tasks import Task, get_task, grading
from acpo.tasks.grading import Judges, vote
from acpo.verify.sandbox import ProgramRun
from acpo.verify.session import Limits


@pytest.mark.parametrize(
    "answer", ["wait " * 6_400 + "5", "0." + "3" * 32_000, "\\text{a}" * 4_000 + "5"]
)
def test_a_repetitive_answer_is_no_burden(answer):
    start = time.process_time()
    voted = vote(get_task("math500"), f"Answer: {answer}")
    assert time.process_time() - start < 2
    assert voted is not None and len(voted) <= 200


def test_oversized_answers_vote_for_themselves_alone():
    task = get_task("math500")
    long, longer = (vote(task, f"\\boxed{{{'x+' * count}1}}") for count in (2_000, 2_001))
    assert long == vote(task, f"So \\boxed{{{'x+' * 2_000}1}}")
    assert long != longer
    assert vote(task, "\\boxed{\\frac12}") == vote(task, "\\boxed{\\dfrac12}") == "\\frac12"
    assert vote(task, "nothing") is None


def test_a_grader_that_two_threads_need_at_once_is_started_once(monkeypatch):
    started = []

    def slowly(self, task):
        time.sleep(0.1)
        started.append(task.judge)
        return started

    monkeypatch.setattr(Judges, "_started", slowly)
    judges = Judges()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(judges.prepare, [get_task("math500")] * 4))
    assert started == ["math"] and all(one is started for one in found)


class Silent:
    """A backend that runs nothing."""

    limits = Limits()

    def run_program(self, source, stdin, within):
        time.sleep(0.01)  # while the queue fills up
        return ProgramRun(b"3", 0, "", None, 0.0)


def test_completions_of_a_row_share_its_test_cases(monkeypatch):
    row = json.dumps({"inputs": ["x" * 2**20], "outputs": ["3"]})
    task = Task(name="large", grader="code")
    with Judges(4, Silent) as judges:
        judges.prepare(task)
        monkeypatch.setattr(grading, "_shared_judges", lambda: judges)
        tracemalloc.start()
        verdicts = grading.grade_all(task, ["```python\nprint(3)\n```"] * 40, [row] * 40)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert all(verdict.correct for verdict in verdicts)
    assert peak < 10 * 2**20, "the row, and the input of each of four runs"


def test_ctrl_c_waits_for_no_verdict():
    """What is queued was judged first, and a grader that was still starting was waited for."""
    hang = "\\boxed{\\int (x+y+z+w)^{900} dx}"
    with pytest.raises(KeyboardInterrupt), Judges(1) as judges:
        for _ in range(4):
            judges.verify(get_task("gsm8k"), hang, {"answer": "x+1"})
        began = time.monotonic()
        raise KeyboardInterrupt
    assert time.monotonic() - began < 2
