"""Two tensor-parallel ranks: Megatron's output head as verl runs it, each with half the vocabulary.

The model behind the head needs a GPU; the head, its process groups and verl's loss do not.
"""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from verl.utils import tensordict_utils as tu
from verl.workers.config import McoreActorConfig, PolicyLossConfig
from verl.workers.engine import EngineRegistry
from verl.workers.utils.losses import ppo_loss

from acpo.engines.verl.checks import AGGREGATION
from acpo.objectives import METHODS
from acpo.verl import ACPOPolicyLossConfig
from engines.verl.batches import verl_batch
from engines.verl.rollouts import GROUP, VOCABULARY

DISTILLATION = "distillation_use_topk"


def actor_config(case: dict[str, Any]) -> McoreActorConfig:
    section = PolicyLossConfig(loss_mode=case["method"])
    if "options" in case:
        section = ACPOPolicyLossConfig(loss_mode=case["method"], options=case["options"])
    return McoreActorConfig(
        rollout_n=GROUP,
        ppo_micro_batch_size_per_gpu=2,
        policy_loss=section,
        loss_agg_mode=AGGREGATION[METHODS[case["method"]].aggregation],
    )


def head_engine(logits: torch.Tensor, temperature: float) -> tuple[Any, torch.Tensor]:
    """verl's Megatron engine as extended, but for the model: these logits stand for its output."""
    stock = EngineRegistry.get_engine_cls("language_model", "megatron")
    width = VOCABULARY // dist.get_world_size()
    mine = logits[:, dist.get_rank() * width :][:, :width].clone().requires_grad_()

    class Head(stock):
        def _stock_batch(self, data: Any, loss_function: Any, forward_only: bool) -> Any:
            # A pass that only looks has no gradients and no outputs of a teacher's.
            assert torch.is_grad_enabled() is not forward_only
            assert tu.get_non_tensor_data(data, DISTILLATION, False) is not forward_only
            ids = data["input_ids"]
            outputs = self._lm_head_logits_processor(
                (mine * 1.0)[None],  # verl writes into the logits
                torch.roll(ids.values(), -1)[None],
                torch.full((1, len(mine)), temperature),
                calculate_sum_pi_squared=False,
                calculate_entropy=bool(tu.get_non_tensor_data(data, "calculate_entropy", False)),
                distillation_use_topk=False,
                distillation_only=False,
                logits_processor_func=loss_function,
                batch=data,
                data_format="thd",
            )
            outputs = {
                name: torch.nested.nested_tensor_from_jagged(value[0], ids.offsets())
                for name, value in outputs.items()
            }
            loss, _ = loss_function(model_output=outputs, data=data)
            if not forward_only:
                loss.backward()
            outputs = {name: value.detach() for name, value in outputs.items()}
            return {"model_output": outputs, "loss": loss.detach()}

    engine = object.__new__(Head)
    engine.engine_config = SimpleNamespace(
        entropy_from_logits_with_chunking=False, dynamic_context_parallel=False
    )
    return engine, mine


def run_case(rollouts: Any, logits: torch.Tensor, case: dict[str, Any]) -> dict[str, torch.Tensor]:
    actor = actor_config(case)
    data = verl_batch(rollouts, case["method"], slice(None))
    count = int(rollouts.mask.sum())
    rows = len(rollouts.mask)
    tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=count, global_batch_size=rows)
    tu.assign_non_tensor(data, **{DISTILLATION: True})
    logits = logits.to(getattr(torch, case.get("dtype", "float32")))
    engine, mine = head_engine(logits, case.get("temperature", 1.0))
    output = engine.forward_backward_batch(data, partial(ppo_loss, config=actor))
    name = type(engine).__mro__[1].__name__
    return {"loss": output["loss"], "gradient": mine.grad, "engine": name}


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    job = torch.load(folder / "job.pt", weights_only=False)
    results = {
        name: run_case(job["rollouts"], job["logits"], case) for name, case in job["cases"].items()
    }
    torch.save(results, folder / f"head_worker{dist.get_world_size()}_{dist.get_rank()}.pt")
    dist.destroy_process_group()
