"""Graders, and the answer with which a completion votes."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from acpo.tasks import get_task
from acpo.tasks.grading import Judges, vote


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
