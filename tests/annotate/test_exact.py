"""The computed first error of chains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpo.annotate.annotators import ExactAnnotator, Status
from acpo.annotate.pairs import Chars, select
from acpo.records import Trace
from acpo.tasks.chain import ChainProblem, chain_problems
from annotate.traces import chain_rows, text_rows, with_error, write_texts

PROBLEM = ChainProblem.parse("7*8+6-9:")  # 7*8=6+6=2-9=3


def trajectory(tmp_path, completion, right=PROBLEM.solution, prompt=PROBLEM.prompt):
    rows = text_rows((right, 1.0), (completion, 0.0), prompt=prompt)
    group = select(Trace.open(write_texts(tmp_path / "t", rows))).groups[0]
    return group.wrong[0], group.right[0]


@pytest.mark.parametrize(
    ("completion", "chars"),
    [
        ("7*8=5+6=1-9=2", Chars(4, 5)),  # wrong result of the first step
        ("7*8=6+6=1-9=2", Chars(8, 9)),
        ("7*8=6+6=2-9=4", Chars(12, 13)),
        ("7*8=6+7=3-9=4", Chars(6, 9)),  # wrong operand: from there to the step's end
        ("7*8=6*6=2-9=4", Chars(5, 9)),
        ("8*8=4+6=0-9=1", Chars(0, 5)),
        ("7*8=6+6=2-9=3+1=4", Chars(13, 14)),  # goes on after the end
        ("nonsense", Chars(0, 5)),
    ],
)
def test_from_the_first_wrong_character_to_the_end_of_its_step(tmp_path, completion, chars):
    wrong, right = trajectory(tmp_path, completion)
    answer = ExactAnnotator().first_error(wrong)
    assert (answer.status, answer.chars) == (Status.LOCATED, chars)
    there = ExactAnnotator().corresponding(wrong, answer.chars, right)
    if chars.start < len(right.completion):
        assert there.chars == Chars(chars.start, min(chars.end, len(right.completion)))
    else:
        assert there.status is Status.NOTHING


@pytest.mark.parametrize(
    ("completion", "status"),
    [
        ("7*8=6+6=2", Status.NOT_COMPUTABLE),  # ends too early: no token is wrong
        ("", Status.NOT_COMPUTABLE),
        (PROBLEM.solution, Status.NOTHING),
    ],
)
def test_no_wrong_token(tmp_path, completion, status):
    wrong, _ = trajectory(tmp_path, completion)
    assert ExactAnnotator().first_error(wrong).status is status


def test_what_is_no_chain_is_not_computable(tmp_path):
    wrong, _ = trajectory(tmp_path, "x = 3", prompt="What is x?")
    assert ExactAnnotator().first_error(wrong).status is Status.NOT_COMPUTABLE


def test_a_right_answer_by_wrong_steps_corresponds_to_nothing(tmp_path):
    wrong, right = trajectory(tmp_path, "7*8=5+6=1-9=2", right="7*8=6+6=1-9=3")
    answer = ExactAnnotator().corresponding(wrong, Chars(4, 5), right)
    assert answer.status is Status.FLAWED


@given(seed=st.integers(0, 10**6), step=st.integers(0, 4), by=st.integers(1, 9))
def test_the_planted_error_is_found(seed, step, by):
    problem = chain_problems(1, seed=seed)[0]
    text = with_error(problem, step, by)

    class Wrong:
        prompt, completion = problem.prompt, text

    answer = ExactAnnotator().first_error(Wrong)
    assert answer.chars == Chars(4 * (step + 1), 4 * (step + 1) + 1)
    assert f"step {step + 1} " in answer.rationale


def test_rows_made_for_other_tests_are_what_they_say(tmp_path):
    rows = chain_rows(chain_problems(4, seed=3))
    assert all((row["completion"][-1] == row["answer"]) == bool(row["reward"]) for row in rows)
