"""Run by several processes at once: trains with fixed rollouts and saves rank 0's gradients.

`python worker.py FOLDER PORT` is their parent: imports take longer than most of what they do, so
that one process imports and forks them.
"""

import functools
import os
import sys
from collections import Counter
from pathlib import Path

import torch

from acpo.errors import ACPOError
from engines import fsdp_worker
from engines.tiny import prompts, recorded

RUNS = {
    "sapo": {"record_rollouts": True},
    "acpo": {"num_iterations": 2, "max_tokens_per_pack": 30},
    "dapo": {"num_iterations": 2, "max_tokens_per_pack": 30, "update_layout": "packed"},
    "8020": {"num_iterations": 2},
    "gspo": {"num_iterations": 2, "epsilon": 0.2, "epsilon_high": 0.3},
    "shannon": {},
    "gtpo": {"num_iterations": 2, "eval_strategy": "steps", "eval_steps": 1},
    "gtpo_entropy": {"num_iterations": 2},
}


def fixed_rollout(texts, trainer):
    """Completions that depend on the prompt and the place in its group, whoever asks."""
    seen: Counter[str] = Counter()
    prompt_ids, completion_ids = [], []
    for text in texts:
        seen[text] += 1
        seed = sum(map(ord, text)) * 31 + seen[text]
        generator = torch.Generator().manual_seed(seed)
        length = int(torch.randint(2, 12, (1,), generator=generator))
        completion_ids.append(torch.randint(2, 60, (length,), generator=generator).tolist())
        prompt_ids.append(trainer.processing_class(text)["input_ids"])
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}


def uneven_rollout(texts, trainer):
    """The same, but the longest completions are of the first prompt, so of one process alone."""
    found = fixed_rollout(texts, trainer)
    pairs = enumerate(zip(texts, found["completion_ids"], strict=True))
    for place, (text, ids) in pairs:
        if text.startswith("w0 "):
            found["completion_ids"][place] = ids + [5] * (12 - len(ids))
    return found


def reward(completion_ids, **_):
    """Whole groups of some prompts get the same reward, so that processes have unequal work."""
    return [float(sum(ids) % 4 == 0) for ids in completion_ids]


def partly(completion_ids, **_):
    """No verdict on some completions of a group."""
    return [None if sum(ids) % 3 == 0 else 0.5 for ids in completion_ids]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    for method, more in RUNS.items():
        trainer, gradients = recorded(
            folder / f"{method}_{world}",
            rewards=[reward, partly] if method == "shannon" else reward,
            rollout_func=uneven_rollout if method.startswith("gtpo") else fixed_rollout,
            eval_dataset=prompts(4),
            method=method,
            max_steps=2,
            shuffle_dataset=False,
            per_device_train_batch_size=16 // world,
            per_device_eval_batch_size=4 // world,
            num_generations_eval=4,
            ddp_backend="gloo" if world > 1 else None,
            **more,
        )
        if trainer.is_world_process_zero():
            assert trainer.ranks.count == world
            log = trainer.state.log_history[0]
            keep = ("aligned", "entropy", "update/rows_skipped", "loss", "reward", "reward_std")
            result = {
                "gradients": gradients,
                "log": {k: log[k] for k in keep},
                "evaluations": [
                    e["eval_loss"] for e in trainer.state.log_history if "eval_loss" in e
                ],
            }
            torch.save(result, folder / f"{method}_{world}.pt")


def resumed(folder: Path) -> None:
    """Six steps at once against four, then two more from the checkpoint, inside a rollout."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    run = functools.partial(
        recorded,
        folder / f"resumed_{world}",
        rewards=reward,
        max_steps=6,
        steps_per_generation=3,
        save_strategy="steps",
        save_steps=4,
        ddp_backend="gloo" if world > 1 else None,
    )
    ends = []
    for checkpoint in (None, str(folder / f"resumed_{world}" / "checkpoint-4")):
        trainer, _ = run(resume=checkpoint)
        ends.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
    try:  # on every process, or the others would wait for the one that stopped
        run(seed=9, resume=True)
    except ACPOError as error:
        assert "seed: 3 there, 9 here" in str(error)
    else:
        raise AssertionError("another seed was resumed")
    if trainer.is_world_process_zero():
        torch.save(ends, folder / f"resumed_{world}.pt")


def run_rank(rank: int, folder: Path, port: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for part in (main, resumed, fsdp_worker.main):
        part(folder)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.start_processes(
        run_rank, args=(Path(sys.argv[1]), sys.argv[2]), nprocs=2, start_method="fork"
    )
