import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpo.errors import ACPOError
from acpo.tasks.chain import ALPHABET, ChainProblem, chain_problems, chain_task

PROBLEM = ChainProblem(7, (("*", 8), ("+", 6), ("-", 9)))


def test_worked_example():
    assert PROBLEM.prompt == "7*8+6-9:"
    assert PROBLEM.solution == "7*8=6+6=2-9=3"
    assert PROBLEM.answer == "3"
    assert ChainProblem.parse("7*8+6-9:") == PROBLEM


@pytest.mark.parametrize(
    ("completion", "first"),
    [
        ("7*8=6+6=2-9=3", None),
        ("", 0),
        ("8*8=4+6=0-9=1", 0),  # not the problem's digit
        ("7*8=5+6=1-9=2", 0),  # wrong product
        ("7+8=5+6=1-9=2", 0),  # wrong operator
        ("7*8=6+6=3-9=4", 1),
        ("7*8=6+5=1-9=2", 1),  # wrong operand
        ("7*8=6+6=2-9=4", 2),
        ("7*8=6+6=2", 2),  # the last step is missing
        ("7*8=6", 1),
        ("7*8=6+6=2-9=", 2),
        ("7*8=6+6=2-9=3+1=4", 2),  # goes on after the last step
        ("7*8=5+6=2-9=3", 0),  # right answer, wrong step
    ],
)
def test_first_error(completion, first):
    assert PROBLEM.first_error(completion) == first


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(0, 60), st.sampled_from(ALPHABET))
def test_any_changed_character_is_found_in_its_step(seed, steps, position, character):
    problem = chain_problems(1, steps=steps, seed=seed)[0]
    solution = problem.solution
    position %= len(solution)
    changed = solution[:position] + character + solution[position + 1 :]
    expected = None if changed == solution else max(position - 1, 0) // 4
    assert problem.first_error(changed) == expected


def test_steps_agree_with_plain_evaluation():
    for problem in chain_problems(200, steps=6, seed=3):
        value = problem.start
        for operator, digit in problem.operations:
            value = eval(f"({value}){operator}{digit}") % 10
        assert problem.answer == str(value)
        assert ChainProblem.parse(problem.prompt) == problem


def test_problems_repeat_with_the_seed_and_avoid_the_held_out():
    first = chain_problems(300, steps=2, seed=5)
    assert first == chain_problems(300, steps=2, seed=5)
    assert first != chain_problems(300, steps=2, seed=6)
    assert len(set(first)) == 300
    assert not set(chain_problems(2000, steps=2, seed=6, exclude=first)) & set(first)


@pytest.mark.parametrize("bad", [{"count": 0}, {"steps": 0}, {"count": 200, "steps": 1}])
def test_impossible_requests(bad):
    with pytest.raises(ACPOError, match="count="):
        chain_problems(**{"count": 5, **bad})


@pytest.mark.parametrize("prompt", ["", "7", "7*8", "7**8:", "12+3:", "7*8:\n"])
def test_not_a_chain(prompt):
    with pytest.raises(ACPOError, match="not a chain"):
        ChainProblem.parse(prompt)


def test_the_grader_looks_at_the_answer_only():
    completions = ["7*8=6+6=2-9=3", "7*8=5+6=2-9=3", "7*8=6+6=2-9=4", "3", "", "=3=", "x=3\n"]
    grades = [chain_task().grader(completion, {"answer": "3"}) for completion in completions]
    assert grades == [True, True, False, False, False, False, False]
