"""Find a model's output head, whatever has wrapped or sharded it, at the time of the call."""

from typing import Any, NamedTuple

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial

from acpo.errors import ACPOError
from acpo.head.projection import Projection

SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Under which names configurations keep c of c · tanh(logits / c)."""


class LanguageModelHead(NamedTuple):
    """Weights of the output projection and how its products become logits.

    Attributes:
        weight: `[V, H]` output embedding.
        bias: `[V]`, if there is one.
        softcap: the model's final logit softcapping.
        logit_scale: the model's logit multiplier.
    """

    weight: Tensor
    bias: Tensor | None = None
    softcap: float | None = None
    logit_scale: float = 1.0

    @staticmethod
    def of(head: "LanguageModelHead | Tensor") -> "LanguageModelHead":
        """A head from its weight alone, or itself."""
        return LanguageModelHead(head) if isinstance(head, Tensor) else head

    def projection(self, temperature: float) -> Projection:
        """How products become scaled logits, checked."""
        projection = Projection(temperature, self.softcap, self.logit_scale)
        projection.check()
        return projection

    def logits(self, hidden: Tensor) -> Tensor:
        """`[..., V]` logits, materialised."""
        product = hidden @ self.weight.to(hidden.dtype).t()
        if self.bias is not None:
            product = product + self.bias
        return Projection(1.0, self.softcap, self.logit_scale).scaled(product)


def language_model_head(model: Any) -> LanguageModelHead:
    """The output head of a transformers causal LM, as plain tensors.

    Look it up on every call: FSDP and PEFT replace modules, and tied weights follow the embedding.
    FSDP2 shards are gathered; their gradient flows back averaged over the ranks, as FSDP2's does.
    """
    layer = model.get_output_embeddings()
    if layer is None or not isinstance(getattr(layer, "weight", None), Tensor):
        raise ACPOError(
            f"{type(model).__name__} has no output embedding with a weight; acpo trains causal "
            "language models with a linear head"
        )
    if hasattr(layer, "base_layer"):
        raise ACPOError(
            f"the output head of {type(model).__name__} carries an adapter "
            f"({type(layer).__name__}), which the fused head would leave out; take it from "
            "target_modules, or train the head itself with modules_to_save"
        )
    config = model.config.get_text_config()
    weight, bias = layer.weight, getattr(layer, "bias", None)
    return LanguageModelHead(
        _whole(weight),
        None if bias is None else _whole(bias),
        next(filter(None, (getattr(config, name, None) for name in SOFT_CAPS)), None),
        _logit_scale(config),
    )


def _whole(parameter: Tensor) -> Tensor:
    if isinstance(parameter, DTensor):
        placements = [Partial() for _ in parameter.placements]
        whole = parameter.full_tensor(grad_placements=placements)
        if whole.requires_grad:
            # FSDP averages gradients over its ranks, as it does those it gathers itself.
            ranks = parameter.device_mesh.size()
            whole.register_hook(lambda gradient: gradient / ranks)
        return whole
    return parameter


def _logit_scale(config: Any) -> float:
    """The multiplier each model family applies to its logits, under the name it gives it."""
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        value = getattr(config, name, None)
        if value is not None:
            return float(value)
    scaling = getattr(config, "logits_scaling", None)
    if scaling is None:
        return 1.0
    return float(scaling) if config.model_type == "hyperclovax" else 1 / float(scaling)
