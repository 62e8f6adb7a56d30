"""The script that makes the quickstart's checkpoint, and the checkpoint it made."""

import json
import random
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import acpo.tasks
from acpo.errors import ACPOError
from acpo.tasks.chain import HELD_OUT_SEED, Step, chain_problems

CHECKPOINT = Path(acpo.tasks.__file__).parent / "checkpoints" / "chain"
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "warmstart.py"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(SCRIPT.parent))
    warmstart = SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def wrong_share(mistakes, hard):
    rng = random.Random(0)
    wrong = total = 0
    for problem in chain_problems(4000, steps=5, seed=9):
        trace, left = mistakes.trace(problem, rng), problem.start
        for index, (operator, digit) in enumerate(problem.operations):
            result = int(trace[4 * (index + 1)])
            step = Step(left, operator, digit, eval(f"({left}){operator}{digit}") % 10)
            if warmstart.is_hard(step) == hard:
                total += 1
                wrong += result != step.result
            left = result
    return wrong / total


def test_mistakes_come_at_the_rates_asked_for():
    mistakes = warmstart.Mistakes(easy=0.1, hard=0.7)
    assert wrong_share(mistakes, hard=False) == pytest.approx(0.1, abs=0.01)
    assert wrong_share(mistakes, hard=True) == pytest.approx(0.7, abs=0.03)
    problem = chain_problems(1, seed=4)[0]
    assert warmstart.Mistakes(0, 0).trace(problem, random.Random(0)) == problem.solution


def test_a_misremembered_product_is_wrong():
    for left in range(10):
        for right in range(6, 10):
            step = Step(left, "*", right, left * right % 10)
            assert warmstart.misremembered(step) != step.result


def test_a_rate_is_a_share():
    with pytest.raises(ACPOError, match=r"hard=1\.5"):
        warmstart.Mistakes(hard=1.5)


def test_warm_start_learns_and_repeats():
    settings = {
        "updates": 12,
        "batch_size": 16,
        "learning_rate": 3e-3,
        "mistakes": warmstart.Mistakes(),
        "seed": 3,
    }
    model, _, losses = warmstart.warm_start(**settings)
    again, _, losses_again = warmstart.warm_start(**settings)
    assert losses == losses_again
    pairs = zip(model.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert losses[-1] < 0.9 * losses[0]


@pytest.fixture(scope="module")
def policy():
    return (
        AutoModelForCausalLM.from_pretrained(CHECKPOINT).eval(),
        AutoTokenizer.from_pretrained(CHECKPOINT),
    )


@torch.no_grad()
def digit_probabilities(policy, problems):
    """P(digit) for the result of every step, after the right steps before it: [B, steps, 10]."""
    model, tokenizer = policy
    texts = [problem.prompt + problem.solution for problem in problems]
    logits = model(torch.tensor(tokenizer(texts)["input_ids"])).logits
    digits = tokenizer("0123456789")["input_ids"]
    results = len(problems[0].prompt) + 4 * torch.arange(1, 1 + len(problems[0].steps))
    return logits.softmax(-1)[:, results - 1][..., digits]


def test_shipped_checkpoint_makes_the_mistakes_it_was_taught(policy):
    made = json.loads((CHECKPOINT / "warmstart.json").read_text())
    chances = {True: [], False: []}
    problems = chain_problems(100, steps=5, seed=HELD_OUT_SEED)
    for problem, rows in zip(problems, digit_probabilities(policy, problems), strict=True):
        for step, p in zip(problem.steps, rows, strict=True):
            chances[warmstart.is_hard(step)].append(
                (p[step.result], p[warmstart.misremembered(step)])
            )
    hard, easy = (torch.tensor(chances[kind]) for kind in (True, False))
    assert (1 - easy[:, 0]).mean().item() == pytest.approx(made["easy"], abs=0.03)
    assert (1 - hard[:, 0]).mean().item() == pytest.approx(made["hard"], abs=0.05)
    assert (easy[:, 0] > 0.5).float().mean() > 0.99  # knows them
    assert (hard[:, 1] > hard[:, 0]).float().mean() > 0.9  # believes the wrong digit
