"""Build the checkpoint the quickstart starts from.

    python benchmarks/warmstart.py src/acpo/tasks/checkpoints/chain

Supervised training on traces with a known rate of wrong steps. The result knows how to write a
trace and mostly knows the right step, but often samples a wrong one, as base models do.
"""

import functools
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from chain_model import chain_tokenizer, tiny_model

from acpo.errors import ACPOError
from acpo.tasks.chain import (
    HELD_OUT_SEED,
    ChainProblem,
    Step,
    apply,
    chain_problems,
    write_trace,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

LENGTHS = (3, 4, 5, 6)
"""Chains the warm start has seen."""

PROBLEM_SEED = 2


@dataclass(frozen=True)
class Mistakes:
    """How often, and how, a trace gets a step wrong.

    Multiplying by 6 or more is hard: it mostly comes out as one particular wrong digit, the way a
    misremembered table does, so that the likeliest digit is wrong and the right one is still
    sampled. Everything else goes wrong rarely, to a random digit. `easy` and `hard` are the shares
    of such steps that are wrong.
    """

    easy: float = 0.06
    hard: float = 0.6

    def __post_init__(self) -> None:
        for name in ("easy", "hard"):
            if not 0 <= getattr(self, name) <= 1:
                raise ACPOError(f"{name}={getattr(self, name)} must be a share between 0 and 1")

    def trace(self, problem: ChainProblem, rng: random.Random) -> str:
        """A completion that carries every mistake on to the end, as a model would."""
        steps: list[Step] = []
        for operator, digit in problem.operations:
            left = steps[-1].result if steps else problem.start
            right_step = Step(left, operator, digit, apply(left, operator, digit))
            steps.append(right_step._replace(result=self._result(right_step, rng)))
        return write_trace(steps)

    def _result(self, step: Step, rng: random.Random) -> int:
        hard = is_hard(step)
        if rng.random() >= (self.hard if hard else self.easy):
            return step.result
        return misremembered(step) if hard else (step.result + rng.randrange(1, 10)) % 10


def is_hard(step: Step) -> bool:
    """Whether a step is a product that `Mistakes` gets wrong more often than right."""
    return step.operator == "*" and step.right >= 6


def misremembered(step: Step) -> int:
    """The wrong digit a hard product is taken for: one multiple off, or the next digit."""
    neighbour = apply(step.left, "*", step.right - 1)
    return neighbour if neighbour != step.result else (step.result + 1) % 10


def warm_start(
    *, updates: int, batch_size: int, learning_rate: float, mistakes: Mistakes, seed: int = 0
) -> tuple["Qwen3ForCausalLM", "PreTrainedTokenizerFast", list[float]]:
    """A fresh tiny model trained on noisy traces, its tokenizer, and the loss of every update."""
    import torch

    tokenizer, model = chain_tokenizer(), tiny_model(seed=seed)
    rng = random.Random(seed)
    pools = {steps: _problems(steps) for steps in LENGTHS}
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=learning_rate, total_steps=updates, pct_start=0.1
    )
    losses = []
    for update in range(updates):
        problems = rng.choices(pools[rng.choice(LENGTHS)], k=batch_size)
        loss = _loss(model, tokenizer, problems, mistakes, rng)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if update % 100 == 99:
            typer.echo(f"update {update + 1}/{updates}  loss {losses[-1]:.4f}", err=True)
    return model, tokenizer, losses


@functools.cache
def _problems(steps: int) -> list[ChainProblem]:
    available = 10 * 24**steps
    held = chain_problems(min(2048, available // 4), steps=steps, seed=HELD_OUT_SEED)
    return chain_problems(min(50_000, available // 4), steps=steps, seed=PROBLEM_SEED, exclude=held)


def _loss(
    model: "Qwen3ForCausalLM",
    tokenizer: "PreTrainedTokenizerFast",
    problems: list[ChainProblem],
    mistakes: Mistakes,
    rng: random.Random,
) -> "torch.Tensor":
    """Cross entropy of the completions; problems of one batch have the same length."""
    import torch

    texts = [problem.prompt + mistakes.trace(problem, rng) for problem in problems]
    ids = torch.tensor(
        [[*row, tokenizer.eos_token_id] for row in tokenizer(texts)["input_ids"]]
    )  # [B, T]
    labels = ids.clone()
    labels[:, : len(problems[0].prompt)] = -100
    return model(input_ids=ids, labels=labels).loss


def main(
    output: Path,
    updates: int = 2000,
    batch_size: int = 128,
    learning_rate: float = 3e-3,
    easy: float = Mistakes.easy,
    hard: float = Mistakes.hard,
    seed: int = 0,
) -> None:
    """Write model, tokenizer and `warmstart.json` (how it was made) to OUTPUT."""
    settings: dict[str, Any] = {
        "updates": updates,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
    }
    model, tokenizer, losses = warm_start(**settings, mistakes=Mistakes(easy, hard))
    model.generation_config.max_length = None
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    (output / "model.safetensors").chmod(0o644)  # written for its owner alone
    record = {**settings, "easy": easy, "hard": hard, "final_loss": sum(losses[-50:]) / 50}
    (output / "warmstart.json").write_text(json.dumps(record, indent=2) + "\n")
    typer.echo(f"{output}: {model.num_parameters():,} parameters, loss {record['final_loss']:.4f}")


if __name__ == "__main__":
    typer.run(main)
