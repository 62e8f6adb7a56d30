"""A part of `worker.py`: one update of a model sharded by FSDP2, gradients saved."""

import os
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from accelerate import FullyShardedDataParallelPlugin
from accelerate.utils import fsdp_utils
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import fully_shard

from acpo.engines.attention import PACKED
from acpo.engines.ranks import Ranks
from acpo.engines.trl import safety
from acpo.engines.trl.forward import Attention, add_policy_forward
from acpo.engines.trl.packing import MiniBatch
from acpo.engines.trl.update import PackedUpdate, TokenTallies, UpdateSettings
from acpo.head import TokenTerms
from acpo.objectives import get_method
from engines.tiny import tiny_model

CASES = [
    (method, tied, own_head)
    for method in ("acpo", "dapo", "8020")
    for tied, own_head in ((True, False), (False, False), (False, True))
]


def rollout(rows: slice, on_policy: bool) -> dict[str, torch.Tensor]:
    """Sixteen sequences of unequal length; the first half of them much shorter."""
    generator = torch.Generator().manual_seed(5)
    count, prompt, width = 16, 4, 12
    ids = torch.randint(2, 60, (count, prompt + width), generator=generator)
    length = torch.randint(1, width + 1, (count, 1), generator=generator)
    length[:8] = length[:8].clamp(max=3)
    mask = (torch.arange(width) < length).long()
    advantages = torch.randn(count, generator=generator)
    advantages[[1, 9, 10]] = 0.0
    tensors = {
        "prompt_ids": ids[:, :prompt],
        "prompt_mask": torch.ones(count, prompt, dtype=torch.long),
        "completion_ids": ids[:, prompt:],
        "completion_mask": mask,
        "advantages": advantages,
    }
    if not on_policy:
        tensors["old_per_token_logps"] = -4 + torch.rand(count, width, generator=generator)
    part = {name: value[rows] for name, value in tensors.items()}
    return {**part, "num_items_in_batch": mask.sum()}


def sharded_by_accelerate(model: Any, rank: int) -> Any:
    """The model as `accelerate launch` with FSDP2 and bfloat16 prepares it."""
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, cpu_ram_efficient_loading=False, auto_wrap_policy="transformer_based_wrap"
    )
    plugin.set_mixed_precision("bf16")
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        mixed_precision="bf16",
        is_main_process=rank == 0,
        device=torch.device("cpu"),
        torch_device_mesh=None,
    )
    return fsdp_utils.fsdp2_prepare_model(accelerator, model)


def probed_with_adapters(rank: int, world: int) -> float:
    """The trial of packing on sharded weights under LoRA, then an update: its gradient's norm."""
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(tiny_model(), config)
    policy = model.get_base_model()
    add_policy_forward(policy)
    model = sharded_by_accelerate(model, rank)
    update = PackedUpdate(
        UpdateSettings(get_method("acpo"), temperature=1.0, budget=64),
        ranks=Ranks(torch.device("cpu")),
        attention=Attention("packed", "test", PACKED),
    )
    trainer = SimpleNamespace(
        model=model,
        policy=policy,
        packed=update,
        temperature=1.0,
        args=SimpleNamespace(objective=get_method("acpo"), update_layout="auto"),
        accelerator=SimpleNamespace(
            device=torch.device("cpu"), autocast=nullcontext, mixed_precision="bf16"
        ),
    )
    safety.require_packing(trainer)
    share = 16 // world
    batch = MiniBatch.read(rollout(slice(rank * share, (rank + 1) * share), True), share=1.0)
    with update.ready(policy):
        update.run(model, batch, backward=lambda loss: loss.backward())
    grads = [p.grad.full_tensor() for p in model.parameters() if p.grad is not None]
    return float(torch.cat([g.flatten() for g in grads]).norm())


HALF_CASES = [(method, tied) for method in ("gspo", "acpo") for tied in (True, False)]


def in_bfloat16(method: str, tied: bool, wrapper: str, rank: int, world: int) -> dict[str, Any]:
    """Gradient of an on-policy update of bfloat16 computations; "none", "ddp" or "fsdp2".

    FSDP2 is set up by accelerate's own preparation, which casts inputs and outputs of the root.
    """
    model = tiny_model(tied=tied, sharpness=3.0)
    if wrapper != "fsdp2":
        model = model.bfloat16()
    add_policy_forward(model)
    no_sync: Any = nullcontext
    if wrapper == "fsdp2":
        model = sharded_by_accelerate(model, rank)
    elif wrapper == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
        no_sync = model.no_sync
    update = PackedUpdate(
        UpdateSettings(get_method(method), temperature=1.0, budget=64),
        ranks=Ranks(torch.device("cpu")),
        attention=Attention("padded", "test"),
    )
    share = 16 // world
    tensors = rollout(slice(rank * share, (rank + 1) * share), on_policy=True)
    tensors["advantages"] = torch.where(tensors["advantages"] == 0, 1.0, tensors["advantages"])
    batch = MiniBatch.read(tensors, share=1.0)
    stats = update.statistics(model, ids=batch.ids, rows=batch.rows, first=batch.first)
    batch.columns["old_logp"] = stats.logp
    seen: list[TokenTerms] = []
    TokenTallies.add, add = (
        lambda self, terms: (seen.append(terms), add(self, terms))[1],
        TokenTallies.add,
    )
    try:
        update.run(model, batch, backward=lambda loss: loss.backward(), no_sync=no_sync)
    finally:
        TokenTallies.add = add
    grads = [getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for p in model.parameters()]
    drift = torch.cat([(t.stats.logp - t.old_logp)[t.computed] for t in seen])
    return {
        "gradient": torch.cat([g.float().flatten() for g in grads]),
        "dtypes": {
            str(x.dtype) for t in seen for k, x in t.columns().items() if k != "sequence_ids"
        },
        "statistics": {str(t.stats.logp.dtype) for t in seen},
        "drift": float(drift.abs().max()),
        "tokens": len(drift),
    }


def gradient(method: str, tied: bool, own_head: bool, rank: int, world: int) -> torch.Tensor:
    model = tiny_model(tied=tied)
    add_policy_forward(model)
    if world > 1:
        for layer in model.model.layers:
            fully_shard(layer)
        if own_head:
            fully_shard(model.lm_head)
        fully_shard(model)

    @contextmanager
    def no_sync():
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)

    settings = UpdateSettings(get_method(method), temperature=1.0, budget=30)
    update = PackedUpdate(
        settings, ranks=Ranks(torch.device("cpu")), attention=Attention("padded", "test")
    )
    share = 16 // world
    rows = slice(rank * share, (rank + 1) * share)
    batch = MiniBatch.read(rollout(rows, on_policy=method == "acpo"), share=1.0)
    more = {"no_sync": no_sync} if world > 1 else {}
    update.run(model, batch, backward=lambda loss: loss.backward(), **more)
    full = [p.grad.full_tensor() if world > 1 else p.grad for p in model.parameters()]
    return torch.cat([g.flatten() for g in full])


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank = dist.get_rank() if world > 1 else 0
    for case in CASES:
        result = gradient(*case, rank, world)
        if rank == 0:
            torch.save(result, folder / f"{'_'.join(map(str, case))}_{world}.pt")
    if world > 1:
        torch.save(probed_with_adapters(rank, world), folder / f"adapters_{rank}.pt")
    for wrapper in ("ddp", "fsdp2") if world > 1 else ("none",):
        for case in HALF_CASES:
            result = in_bfloat16(*case, wrapper, rank, world)
            if rank == 0:
                torch.save(result, folder / f"{'_'.join(map(str, case))}_{wrapper}.pt")
