"""verl's engines, extended: they carry the mode margin from the logits to the policy loss.

An extended engine does what verl's does. Where the loss is one of our rows, it adds one number per
token to the model's outputs and, for rows that look at a whole mini-batch, a pass without gradient
in front of it.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name, get_vendor
from verl.workers.engine import EngineRegistry
from verl.workers.utils.padding import no_padding_2_padding

from acpo.engines.verl.config import configured_row
from acpo.engines.verl.internals import FSDP, MEGATRON, check_internals
from acpo.engines.verl.loss import MicroBatch, policy_loss, scored
from acpo.engines.verl.margin import mode_margin, sharded_mode_margin
from acpo.engines.verl.minibatch import (
    RolloutEntropy,
    keep_entropy,
    look_up_entropy,
    mini_batch_entropy_max,
    read_marks,
    shape_advantages,
)
from acpo.errors import ACPOError
from acpo.objectives import Method

MARGIN = "acpo_margin"


class RowLoss:
    """verl's loss function, with a row's statistics within reach of its policy loss."""

    def __init__(
        self, stock: Callable[..., Any], row: Method, entropy_max: float | None = None
    ) -> None:
        self.stock, self.row, self.entropy_max = stock, row, entropy_max

    def __call__(self, *args: Any, model_output: Any = None, data: Any = None, **rest: Any) -> Any:
        if model_output is None:  # distillation calls it on logits, before there are outputs
            return self.stock(*args, data=data, **rest)
        entropy = model_output.get("entropy", None)
        micro_batch = MicroBatch(
            self.row,
            no_padding_2_padding(model_output[MARGIN], data),
            None if entropy is None else no_padding_2_padding(entropy, data),
            self.entropy_max,
            read_marks(data),
        )
        with scored(micro_batch):
            return self.stock(*args, model_output=model_output, data=data, **rest)


def _no_loss(**_: Any) -> tuple[Tensor, dict[str, Any]]:
    """For a pass that only looks."""
    return torch.zeros((), device=get_device_id()), {}


def asking_actor(loss_function: Any) -> Any:
    """The actor behind verl's `partial(ppo_loss, config=actor)`, if it trains one of our rows."""
    actor = (getattr(loss_function, "keywords", None) or {}).get("config")
    section = getattr(actor, "policy_loss", None)
    mode = None if section is None else section.get("loss_mode", None)
    return actor if POLICY_LOSS_REGISTRY.get(mode) is policy_loss else None


class RowEngine:
    """What every extended engine shares; mixed into verl's class."""

    keeps_rollout_entropy = False
    _rollout_entropy: RolloutEntropy | None = None

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Any, forward_only: bool = False
    ) -> Any:
        actor = asking_actor(loss_function)
        if actor is None:
            output = self._stock_batch(data, loss_function, forward_only)
            if self.keeps_rollout_entropy and "entropy" in output["model_output"]:
                self._rollout_entropy = keep_entropy(data, output["model_output"]["entropy"])
            return output
        row = configured_row(actor)
        entropy_max = None
        if row.needs_whole_batch:
            entropy_max = self._look_ahead(data, row, group_size=actor.rollout_n)
        if row.credit.differentiates_entropy:
            tu.assign_non_tensor(data, calculate_entropy=True)
        return self._stock_batch(data, RowLoss(loss_function, row, entropy_max), forward_only)

    def _stock_batch(self, data: TensorDict, loss_function: Any, forward_only: bool) -> Any:
        return super().forward_backward_batch(  # type: ignore[misc]
            data, loss_function, forward_only=forward_only
        )

    def _look_ahead(self, data: TensorDict, row: Method, *, group_size: int) -> float | None:
        """Shape the mini-batch's advantages as the row does; H_max, where it has one."""
        group = self.get_data_parallel_group()  # type: ignore[attr-defined]
        seen = self._statistics(data, row) if row.needs else {}
        if "old_entropy" in row.shaping.group_needs:
            if self._rollout_entropy is None:
                raise ACPOError(
                    f"policy_loss.loss_mode={row.name} needs the rollout policy's entropies, and "
                    "no log-probability pass was seen; set "
                    "algorithm.rollout_correction.bypass_mode=False"
                )
            seen["old_entropy"] = look_up_entropy(self._rollout_entropy, data)
        if row.shapes:
            shape_advantages(data, row, group_size=group_size, seen=seen, dp=group)
        if row.options.get("entropy_norm") != "batch_max":
            return None
        return mini_batch_entropy_max(data, row, entropy=seen["entropy"], dp=group)

    def _statistics(self, data: TensorDict, row: Method) -> dict[str, Tensor]:
        """What the row needs of the current policy, `[B, T]`, by a pass that only looks."""
        keys = ("calculate_entropy", "distillation_use_topk", "distillation_only")
        asked = {key: tu.get_non_tensor_data(data, key=key, default=False) for key in keys}
        looks = dict.fromkeys(keys, False)
        looks["calculate_entropy"] = bool(asked["calculate_entropy"] or "entropy" in row.needs)
        tu.assign_non_tensor(data, **looks)
        with torch.no_grad():  # verl's Megatron engine leaves it to its callers
            output = self._stock_batch(data, RowLoss(_no_loss, row), forward_only=True)
        tu.assign_non_tensor(data, **asked)
        output = output["model_output"]
        seen = {"logp": no_padding_2_padding(output["log_probs"], data)}
        if "entropy" in row.needs:
            seen["entropy"] = no_padding_2_padding(output["entropy"], data)
        if "log_pmax" in row.needs:
            margin = no_padding_2_padding(output[MARGIN], data)
            seen["log_pmax"] = MicroBatch(row, margin).stats(seen["logp"]).log_pmax
        return seen


class FSDPRowEngine(RowEngine):
    """FSDP and FSDP2: whole logits, with or without padding."""

    def prepare_model_outputs(
        self,
        output: Any,
        output_args: dict[str, Any],
        micro_batch: TensorDict,
        logits_processor_func: Any,
    ) -> dict[str, Any]:
        margin = self._margin(output, output_args, micro_batch, logits_processor_func)
        outputs = super().prepare_model_outputs(  # type: ignore[misc]
            output, output_args, micro_batch, logits_processor_func
        )
        return outputs if margin is None else {**outputs, MARGIN: margin}

    def _margin(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, loss: Any
    ) -> Tensor | None:
        if not isinstance(loss, RowLoss):
            return None
        if tu.get_non_tensor_data(micro_batch, key="use_fused_kernels", default=False):
            raise ACPOError(
                "use_fused_kernels=True in the batch: the logits are needed; set "
                "actor_rollout_ref.model.use_fused_kernels=False"
            )
        differentiable = loss.row.credit.differentiates_mode
        logits = output.logits
        if hasattr(logits, "full_tensor"):
            logits = logits.full_tensor()
        tokens = output_args["input_ids_rmpad_rolled"]
        offsets = micro_batch["input_ids"].offsets()
        if tu.get_non_tensor_data(micro_batch, key="use_remove_padding", default=True):
            flat = mode_margin(
                logits=logits.squeeze(0),
                tokens=tokens,
                temperature=output_args["temperature_rmpad"],
                differentiable=differentiable,
            )
            flat = self._gather_and_unpad_packed(  # type: ignore[attr-defined]
                flat, output_args["pad_size"]
            )
        else:
            valid = torch.arange(logits.shape[1], device=logits.device) < offsets.diff()[:, None]
            padded = torch.zeros(valid.shape, dtype=tokens.dtype, device=tokens.device)
            flat = mode_margin(
                logits=logits,
                tokens=padded.masked_scatter(valid, tokens),
                temperature=output_args["temperature"][:, None],
                differentiable=differentiable,
            )[valid]
        return torch.nested.nested_tensor_from_jagged(flat, offsets)


class MegatronRowEngine(RowEngine):
    """Megatron: every tensor-parallel rank holds a slice of the vocabulary."""

    def _lm_head_logits_processor(
        self, logits: Tensor, label: Tensor, temperature: Tensor, **rest: Any
    ) -> dict[str, Any]:
        from megatron.core import parallel_state

        loss, margin = rest.get("logits_processor_func"), None
        if isinstance(loss, RowLoss):  # first: verl scales and consumes the logits in place
            margin = sharded_mode_margin(
                logits=logits,
                tokens=label,
                temperature=temperature,
                differentiable=loss.row.credit.differentiates_mode,
                group=parallel_state.get_tensor_model_parallel_group(),
            )
        outputs = super()._lm_head_logits_processor(  # type: ignore[misc]
            logits, label, temperature, **rest
        )
        return outputs if margin is None else {**outputs, MARGIN: margin}


EXTENSIONS: dict[str, tuple[type[RowEngine], dict[str, tuple[str, ...]]]] = {
    "fsdp": (FSDPRowEngine, FSDP),
    "fsdp2": (FSDPRowEngine, FSDP),
    "megatron": (MegatronRowEngine, MEGATRON),
}
"""A strategy -> what extends its engine, and what of the engine that leans on."""


def install(strategy: str, row: Method) -> type[RowEngine] | None:
    """Put the extended engine in front of verl's for this machine's device; its class.

    verl prefers an engine registered for (device, vendor) to one registered for the device. A
    driver without an accelerator validates configurations too, and has no engine to extend.
    """
    try:
        extended = EngineRegistry.get_engine_cls("language_model", strategy)
    except (AssertionError, ValueError):  # a worker gets the same from verl when it asks
        return None
    if not issubclass(extended, RowEngine):
        extension, leaned_on = EXTENSIONS[strategy]
        check_internals(extended, leaned_on)
        extended = type(f"ACPO{extended.__name__}", (extension, extended), {})
        device = os.getenv("VERL_ENGINE_DEVICE") or get_device_name()
        vendor = os.getenv("VERL_ENGINE_VENDOR") or get_vendor()
        EngineRegistry.register("language_model", strategy, device, vendor)(extended)
    extended.keeps_rollout_entropy |= "old_entropy" in row.shaping.group_needs
    return extended
