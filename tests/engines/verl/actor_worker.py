"""`ActorRolloutRefWorker` from a recipe's configuration: updates of mini-batches, weights saved."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.padding import left_right_2_no_padding

from engines.verl.recipes import configuration


def build(overrides: list[str]) -> ActorRolloutRefWorker:
    config = configuration(overrides)
    worker = ActorRolloutRefWorker(config=config.actor_rollout_ref, role="actor")
    worker.init_model()
    return worker


def weights(worker: ActorRolloutRefWorker) -> dict[str, torch.Tensor]:
    parameters = dict(worker.actor.engine.module.named_parameters())
    return {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for name, p in parameters.items()
    }


def batch(tensors: dict[str, torch.Tensor], settings: dict[str, Any]) -> Any:
    attention = torch.cat([tensors["prompt_mask"], tensors["mask"]], 1)
    mask = tensors["mask"]
    data = tu.get_tensordict(
        {
            "input_ids": torch.cat([tensors["prompts"], tensors["responses"]], 1),
            "attention_mask": attention,
            "position_ids": (attention.cumsum(1) - 1).clamp_min(0),
            "prompts": tensors["prompts"],
            "responses": tensors["responses"],
            "response_mask": mask,
            "old_log_probs": tensors["old_logp"].expand(mask.shape).clone(),
            "advantages": tensors["advantages"][:, None] * mask,
            "uid": [str(row // 4) for row in range(len(mask))],
        },
        {"epochs": 1, "seed": 0, "dataloader_kwargs": {"shuffle": False}, **settings},
    )
    return left_right_2_no_padding(data)


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    results = {}
    for name, job in torch.load(folder / "jobs.pt", weights_only=False).items():
        worker = build(job["overrides"])
        before = weights(worker)
        output = worker.update_actor(batch(job["tensors"], job["settings"]))
        metrics = tu.get(output, "metrics")
        results[name] = {"before": before, "after": weights(worker), "metrics": metrics}
    torch.save(results, folder / "actor_worker1_0.pt")
    dist.destroy_process_group()
