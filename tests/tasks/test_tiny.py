import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import acpo.tasks
from acpo.tasks.chain import ALPHABET, Mistakes, held_out_chains, is_hard, misremembered
from acpo.tasks.tiny import chain_tokenizer, tiny_model
from acpo.tasks.warmstart import warm_start

CHECKPOINT = Path(acpo.tasks.__file__).parent / "checkpoints" / "chain"


def test_one_token_per_character_and_back():
    tokenizer = chain_tokenizer()
    ids = tokenizer("7*8+6-9:")["input_ids"]
    assert len(ids) == 8
    assert tokenizer.decode(ids) == "7*8+6-9:"
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == "7*8+6-9:"
    assert sorted(tokenizer(ALPHABET)["input_ids"]) == list(range(2, 2 + len(ALPHABET)))


def test_model_is_tiny_and_repeats_with_its_seed():
    first, again, other = tiny_model(seed=1), tiny_model(seed=1), tiny_model(seed=2)
    assert first.num_parameters() < 200_000
    pairs = list(zip(first.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(first.model.embed_tokens.weight, other.model.embed_tokens.weight)
    assert tiny_model(tied=False).lm_head.weight.data_ptr() != first.lm_head.weight.data_ptr()


def test_warm_start_learns_and_repeats():
    settings = {
        "updates": 12,
        "batch_size": 16,
        "learning_rate": 3e-3,
        "mistakes": Mistakes(),
        "seed": 3,
    }
    model, _, losses = warm_start(**settings)
    again, _, losses_again = warm_start(**settings)
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
    problems = held_out_chains(100, steps=5)
    for problem, rows in zip(problems, digit_probabilities(policy, problems), strict=True):
        for step, p in zip(problem.steps, rows, strict=True):
            chances[is_hard(step)].append((p[step.result], p[misremembered(step)]))
    hard, easy = (torch.tensor(chances[kind]) for kind in (True, False))
    assert (1 - easy[:, 0]).mean().item() == pytest.approx(made["easy"], abs=0.03)
    assert (1 - hard[:, 0]).mean().item() == pytest.approx(made["hard"], abs=0.05)
    assert (easy[:, 0] > 0.5).float().mean() > 0.99  # knows them
    assert (hard[:, 1] > hard[:, 0]).float().mean() > 0.9  # believes the wrong digit


def test_shipped_files_are_small():
    assert sum(file.stat().st_size for file in CHECKPOINT.iterdir()) < 2 << 20
