"""The policy as the sampler reads it: a second module tree over the parameters being trained.

Autocast would turn every matrix from float32 into the compute dtype at every step. The twin's
matrices are copies in that dtype, written over after each update, in place, so that graphs stay
valid; all other parameters are the trained ones themselves. Under the same autocast it does the
arithmetic of the trained model, rounding by rounding. Adapters are merged into the copies.
"""

import copy
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from acpo.errors import ACPOError
from acpo.head.lookup import LanguageModelHead, language_model_head
from acpo.sampling.cache import NAME

_HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
)


class Twin:
    """The backbone and head of a causal LM, for sampling.

    Args:
        model: a causal LM, not wrapped; it is left as it is.
        autocast: the dtype to compute in when it is not the weights'.

    Attributes:
        backbone: the model without its head, in evaluation mode, with the static attention.
        head: its head, in the compute dtype.
    """

    def __init__(self, model: Any, autocast: torch.dtype | None) -> None:
        self._model, self._autocast = model, autocast
        self._copies: list[tuple[Tensor, Callable[[], Tensor]]] = []
        self._configs: dict[int, Any] = {}
        self.backbone: Any = self._mirrored(model.base_model)
        head = language_model_head(model)
        dtype = autocast or model.dtype
        weight = self._copied(lambda: language_model_head(model).weight, head.weight, dtype)
        self.head: LanguageModelHead = head._replace(weight=weight)
        self._addresses = _addresses(model)

    def moved(self) -> bool:
        """Whether the trained parameters are no longer where they were."""
        return self._addresses != _addresses(self._model)

    def refresh(self) -> None:
        """Write the weights of the moment over the copies."""
        for target, source in self._copies:
            target.copy_(source())

    def _copied(self, source: Callable[[], Tensor], like: Tensor, dtype: torch.dtype) -> Tensor:
        if like.dtype == dtype:
            return like
        target = torch.empty_like(like, dtype=dtype, requires_grad=False)
        self._copies.append((target, source))
        return target

    def _mirrored(self, module: Any) -> Any:
        if hasattr(module, "base_layer"):
            return self._merged(module)
        twin = module.__class__.__new__(module.__class__)
        twin.__dict__ = dict(module.__dict__)
        twin.__dict__.pop("forward", None)  # compiled or hooked for training, and bound to it
        for name, value in module.__dict__.items():
            if isinstance(value, MethodType) and value.__self__ is module:
                twin.__dict__[name] = MethodType(value.__func__, twin)
        twin.__dict__.update({name: type(module.__dict__[name])() for name in _HOOKS})
        twin.__dict__.update(training=False, _compiled_call_impl=None)
        twin.__dict__["_parameters"] = dict(module._parameters)
        twin.__dict__["_buffers"] = dict(module._buffers)
        twin.__dict__["_modules"] = {
            name: None if child is None else self._mirrored(child)
            for name, child in module._modules.items()
        }
        if hasattr(module, "config"):
            twin.config = copy.deepcopy(module.config, self._configs)
            twin.config._attn_implementation = NAME
        if self._autocast is not None and isinstance(module, nn.Linear):
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    source = partial(getattr, module, name)
                    copied = self._copied(source, parameter, self._autocast)
                    twin._parameters[name] = nn.Parameter(copied, requires_grad=False)
        return twin

    def _merged(self, layer: Any) -> Any:
        """The layer under an adapter, with the adapter in its weight."""
        biased = any(getattr(layer, "lora_bias", {}).values())
        if not hasattr(layer, "get_delta_weight") or getattr(layer, "lora_variant", None) or biased:
            raise ACPOError(
                f"sampler='static': adapters of type {type(layer).__name__} cannot be merged into "
                "a copy of the weights; use plain LoRA or sampler='generate'"
            )
        base = layer.get_base_layer()
        twin = self._mirrored(base)

        def weight() -> Tensor:
            adapters = [] if layer.disable_adapters or layer.merged else layer.active_adapters
            known = {*layer.lora_A, *layer.lora_embedding_A}
            deltas = [layer.get_delta_weight(name) for name in adapters if name in known]
            return sum(deltas, start=base.weight)

        linear = self._autocast is not None and isinstance(base, nn.Linear)
        target = torch.empty_like(twin.weight, dtype=self._autocast if linear else None)
        self._copies.append((target, weight))
        twin._parameters["weight"] = nn.Parameter(target, requires_grad=False)
        return twin


def _addresses(model: Any) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]
