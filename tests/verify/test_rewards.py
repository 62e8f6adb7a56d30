"""Reward functions as TRL calls them."""

import asyncio
import inspect
import shutil

import pytest

from acpo.errors import ACPOError
from acpo.verify import Outcome, Verdict, rewards
from conftest import require_tool
from verify.sandboxed import ADD

COMPLETIONS = ["\\boxed{x+x}", "\\boxed{3x}", "no answer", "\\boxed{x+1}"]
GOLDS = ["2x", "2x", "2x", "\\frac{"]


def chat(text: str) -> list[dict]:
    return [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]


def test_undecided_outcomes_have_no_reward():
    for outcome in Outcome:
        undecided = outcome in (Outcome.INFRA_ERROR, Outcome.UNPARSEABLE_GOLD)
        assert (Verdict(outcome).reward() is None) is undecided
    assert Verdict(Outcome.CORRECT).reward() == 1.0
    assert Verdict(Outcome.TIMEOUT).reward(wrong=-1.0) == -1.0
    assert Verdict(Outcome.LIMIT).reward() == 0.0


def test_math_rewards():
    prompts = ["?"] * 4
    expected = [1.0, 0.0, 0.0, None]
    assert rewards.math_correct(prompts, COMPLETIONS, answer=GOLDS) == expected
    assert rewards.math_correct(prompts, [chat(c) for c in COMPLETIONS], answer=GOLDS) == expected
    signed = rewards.math_correct_signed(prompts, COMPLETIONS, answer=GOLDS, completion_ids=[])
    assert signed == [1.0, -1.0, -1.0, None]
    renamed = rewards.math_reward(gold_field="gold")(prompts, COMPLETIONS, gold=GOLDS)
    assert renamed == expected
    assert inspect.iscoroutinefunction(rewards.math_correct_async)
    assert asyncio.run(rewards.math_correct_async(prompts, COMPLETIONS, answer=GOLDS)) == expected


def test_a_gold_may_be_as_long_as_a_solution():
    solution = "We compute. " * 200 + "So $\\boxed{5}$."
    reward = rewards.math_reward(gold_field="solution")
    answers = ["\\boxed{5}", "\\boxed{6}"]
    assert reward(None, answers, solution=[solution] * 2) == [1.0, 0.0]
    assert reward(None, answers, solution=["5" * 2_001, f"\\boxed{{{'x' * 2_001}}}"]) == [None] * 2


def test_rewards_have_names_to_be_logged_under():
    assert rewards.math_correct.__name__ == "math_correct"
    assert rewards.code_correct.__name__ == "code_correct"


def test_outcomes_are_logged():
    logged = {}
    rewards.math_correct(["?"] * 4, COMPLETIONS, answer=GOLDS, log_metric=logged.__setitem__)
    assert logged == {
        "verify/correct": 0.25,
        "verify/incorrect": 0.5,
        "verify/timeout": 0.0,
        "verify/limit": 0.0,
        "verify/unparseable_gold": 0.25,
        "verify/infra_error": 0.0,
        "verify/left_undone": 0.0,
    }


def test_right_answers_that_are_left_undone_are_counted():
    answers = ["12", "10 + 2", "\\frac{24}{2}", "13 + 1", "12 eggs", "x + 1", "x+1", "\\frac12"]
    answers += ["x = 12", "10 + 2 = 12", "(12)", "12\\%", "10 + 2"]
    golds = ["12", "12", "#### 12", "12", "12", "1 + x", "x+1", "\\frac{1}{2}"]
    golds += ["12", "12", "12", "12", "12\\%"]
    logged = {}
    completions = [f"So \\boxed{{{answer}}}" for answer in answers]
    prompts = ["?"] * len(golds)
    found = rewards.math_correct(prompts, completions, answer=golds, log_metric=logged.__setitem__)
    assert found == [1.0] * 3 + [0.0] + [1.0] * 9
    assert logged["verify/left_undone"] == 3 / 13
    strict = rewards.digits_correct(prompts[:5], completions[:5], answer=golds[:5])
    assert strict == [1.0, 0.0, 0.0, 0.0, 1.0]


def test_a_missing_column_is_named():
    with pytest.raises(ACPOError, match=r"gold_field='answer'.*\['solution'\]"):
        rewards.math_correct(["?"], ["x"], solution=["1"])


def test_numbers_as_gold():
    assert rewards.math_correct(["?"] * 2, ["\\boxed{7}"] * 2, answer=[7, None]) == [1.0, None]


@pytest.mark.sandbox
def test_code_rewards():
    require_tool(shutil.which("bwrap") is not None, "bubblewrap")
    completions = [
        "def add(a, b): return a + b",
        "def add(a, b): return 0",
        "import os; os._exit(0)",
    ]
    columns = {name: [value] * 3 for name, value in ADD.items()}
    columns["test_code"][2] = "broken ("
    expected = [1.0, 0.0, None]
    assert rewards.code_correct(["?"] * 3, completions, **columns, trainer_state=None) == expected
    assert asyncio.run(rewards.code_correct_async(["?"] * 3, completions, **columns)) == expected
    assert rewards.code_correct_signed(["?"] * 3, completions, **columns) == [1.0, -1.0, None]


def test_formats():
    texts = [
        "<think>a</think> \\boxed{1}",
        "a</think> Answer: 1",
        "\\boxed{1}",
        "<think>\\boxed{1}",
    ]
    assert rewards.answer_format([], texts) == [1.0, 1.0, 1.0, 0.0]
    assert rewards.think_format([], texts) == [1.0, 1.0, 0.0, 0.0]
    assert rewards.think_format([], ["<think>a</think></think> \\boxed{1}"]) == [0.0]
    assert rewards.answer_format([], [chat("\\boxed{1}"), [], chat("")]) == [1.0, 0.0, 0.0]


def test_parts_of_a_message_are_joined():
    message = [
        {"role": "assistant", "content": [{"type": "text", "text": "\\boxed{"}, {"text": "1}"}]}
    ]
    assert rewards.completion_text(message) == "\\boxed{1}"
