"""One rank: every case through the FSDP2 engine and stock `ppo_loss`; loss and gradient saved."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.workers.config import (
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    PolicyLossConfig,
)
from verl.workers.engine import EngineRegistry
from verl.workers.utils.losses import ppo_loss

from acpo.objectives import METHODS
from acpo.verl import ACPOPolicyLossConfig
from engines.verl.batches import nested, verl_batch
from engines.verl.rollouts import GROUP


def actor_config(case: dict[str, Any]) -> FSDPActorConfig:
    token_mean = METHODS[case["method"]].aggregation == "token_mean"
    if case.get("options"):
        section = ACPOPolicyLossConfig(loss_mode=case["method"], options=case["options"])
    else:
        section = PolicyLossConfig(loss_mode=case["method"])
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=GROUP,
        ppo_micro_batch_size_per_gpu=4,
        policy_loss=section,
        loss_agg_mode="token-mean" if token_mean else "seq-mean-token-mean",
        entropy_coeff=case.get("entropy_coeff", 0.0),
        use_kl_loss=bool(case.get("beta")),
        kl_loss_coef=case.get("beta", 0.0),
        fsdp_config=engine_config(),
    )


def engine_config() -> FSDPEngineConfig:
    precision = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    return FSDPEngineConfig(
        strategy="fsdp2",
        dtype="float32",
        mixed_precision=precision,
        use_torch_compile=False,
        model_dtype="fp32",
        entropy_from_logits_with_chunking=False,
    )


def build_engine(folder: Path) -> Any:
    model = HFModelConfig(
        path=str(folder),
        override_config={"attn_implementation": "eager"},
        enable_gradient_checkpointing=False,
        external_lib="acpo.verl",
    )
    engine = EngineRegistry.new(
        model_type="language_model",
        backend="fsdp2",
        model_config=model,
        engine_config=engine_config(),
        optimizer_config=FSDPOptimizerConfig(lr=1e-3),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def run_case(engine: Any, rollouts: Any, case: dict[str, Any]) -> dict[str, torch.Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    share = len(rollouts.mask) // world
    # Scattered: every group has responses on every rank.
    whole_groups = slice(rank * share, (rank + 1) * share)
    data = verl_batch(
        rollouts,
        case["method"],
        slice(rank, None, world) if case.get("scattered") else whole_groups,
        temperature=case.get("temperature", 1.0),
        use_remove_padding=case.get("remove_padding", True),
        use_dynamic_bsz=case.get("dynamic", False),
        max_token_len_per_gpu=30,
        micro_batch_size_per_gpu=4,
        calculate_entropy=bool(case.get("entropy_coeff")),
        global_batch_size=len(rollouts.mask),
        per_token=case.get("per_token", False),
    )
    if case.get("nested"):
        data = nested(data)
    actor = actor_config(case)
    with engine.train_mode(disable_auto_offload=True):
        shaping = METHODS[case["method"]].shaping
        if "old_entropy" in shaping.group_needs:  # the log-probability pass before the update
            tu.assign_non_tensor(data, calculate_entropy=True)
            engine.infer_batch(data)
            tu.assign_non_tensor(data, calculate_entropy=False)
        engine.optimizer_zero_grad()
        output = engine.forward_backward_batch(data, partial(ppo_loss, config=actor))
        gradients = whole_gradients(engine.module)  # leaving the context clears them
    loss = torch.tensor(sum(output["loss"]))
    dist.all_reduce(loss)
    return {"loss": loss / world, "metrics": output["metrics"], **gradients}


def whole_gradients(module: Any) -> dict[str, torch.Tensor]:
    gradients = {name: p.grad for name, p in module.named_parameters()}
    return {
        name: (g.full_tensor() if isinstance(g, DTensor) else g).clone()
        for name, g in gradients.items()
    }


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    job = torch.load(folder / "job.pt", weights_only=False)
    world = dist.get_world_size()
    cases = {name: case for name, case in job["cases"].items() if case.get("world", world) == world}
    for case in cases.values():  # the order of a worker: the actor's config, then its engine
        actor_config(case)
    engine = build_engine(folder / "model")
    results = {
        name: run_case(engine, job["rollouts"][case.get("temperature", 1.0)], case)
        for name, case in cases.items()
    }
    results["engine"] = type(engine).__name__
    name = f"engine_worker{world}_{dist.get_rank()}.pt"
    torch.save(results, folder / name)
    dist.destroy_process_group()
