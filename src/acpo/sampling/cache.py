"""Keys and values in slots of fixed shape, and the attention that reads them.

A sequence has a slot to itself, filled from the first place on. Prompts are read padded on the
right, where nothing attends to the padding; while decoding, every row writes behind its own last
token and attends to its own places alone, so rows of all lengths share one batch.
"""

from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from acpo.errors import ACPOError
from acpo.head.products import INTERPRET

NAME = "acpo_static"


class StaticKV:
    """Keys and values of `slots` sequences of at most `length` tokens.

    Before a forward pass say what it does: `reading` prompts into slots, or `stepping` one token
    ahead in each.
    """

    def __init__(
        self, config: Any, *, slots: int, length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = self.shape(config, slots, length)
        # Zeros, not garbage: a masked place still meets a probability of 0, and 0 · NaN is NaN.
        self.keys = [
            torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)
        ]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.length, self.dtype = length, dtype
        self._by_kernel = dtype != torch.float64 and (device.type == "cuda" or INTERPRET)
        self._slots = self._rows = torch.empty(0)
        self._reading = False

    @staticmethod
    def shape(config: Any, slots: int, length: int) -> tuple[int, int, int, int]:
        """Of a layer's keys, and of its values."""
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None)
        return slots, heads, length, width or config.hidden_size // config.num_attention_heads

    def reading(self, slots: Tensor, copies: Tensor) -> None:
        """The next pass reads prompts; `slots` `[n]` take those at `copies` `[n]`."""
        self._slots, self._rows, self._reading = slots, copies, True

    def stepping(self, slots: Tensor, lengths: Tensor) -> None:
        """The next pass advances `slots`, of which `lengths` places are filled."""
        self._slots, self._rows, self._reading = slots, lengths, False
        if not self._by_kernel:
            self._visible = int(lengths.max()) + 1
            seen = torch.arange(self._visible, device=slots.device) <= lengths[:, None]
            self._mask = seen[:, None, None]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None
    ) -> Tensor:
        """Store the new tokens of one layer and attend to them and all before: `[B, Q, H · D]`.

        Not `[B, Q, H, D]`: where rows are as many as heads, the compiler takes one for the other.
        """
        keys, values = self.keys[layer], self.values[layer]
        rows, heads, length, width = query.shape
        groups = heads // key.shape[1]
        if self._by_kernel and not self._reading:  # which rounds to the cache's dtype itself
            from acpo.sampling.kernels import attend

            scale = width**-0.5 if scaling is None else scaling
            return attend(query, key, value, keys, values, self._slots, self._rows, scale)
        query, key, value = (x.to(self.dtype) for x in (query, key, value))
        if self._reading:
            keys[self._slots, :, :length] = key[self._rows]
            values[self._slots, :, :length] = value[self._rows]
            key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
            out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
            return out.transpose(1, 2).flatten(2)
        keys[self._slots, :, self._rows] = key[:, :, 0]
        values[self._slots, :, self._rows] = value[:, :, 0]
        # One query per row and several heads per key head is one key head with several queries.
        out = F.scaled_dot_product_attention(
            query.view(rows, key.shape[1], groups, width),
            keys[self._slots, :, : self._visible],
            values[self._slots, :, : self._visible],
            self._mask,
            scale=scaling,
        )
        return out.reshape(rows, 1, heads * width)


@torch.compiler.disable
def static_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    static_kv: StaticKV,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention through the cache that the model was called with."""
    masked = attention_mask is not None and attention_mask.numel() > 1  # ours has one element
    if masked or kwargs.get("s_aux") is not None:
        raise ACPOError(
            f"sampler='static': {type(module).__name__} adds a mask or a sink of its own to its "
            "attention scores, which the static cache would drop; use sampler='generate'"
        )
    return static_kv.attend(module.layer_idx, query, key, value, scaling), None


AttentionInterface.register(NAME, static_attention)
AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)


def unusual_layers(config: Any, usual: Collection[str] = ("full_attention",)) -> str | None:
    """Which layers of a model are of another kind than the usual, in words; None if none are."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"]) - set(usual)
    return f"has layers of type {', '.join(sorted(kinds))}" if kinds else None


def unusual_attention(model: Any) -> str | None:
    """What about a model's attention is not the plain one a function of ours can stand in for."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if not getattr(model, "_supports_attention_backend", False):
        return "does not read its attention function from the registry"
    if layers := unusual_layers(config):
        return layers
    if window and not getattr(config, "layer_types", None):
        return f"attends within a sliding window of {config.sliding_window}"
    if getattr(config, "attn_logit_softcapping", None):
        return "caps its attention scores"
    return "compresses its keys" if hasattr(config, "kv_lora_rank") else None


def refuse_attention(model: Any) -> None:
    """Raise for a model whose keys and values this cache cannot hold."""
    why = unusual_attention(model)
    rope = (getattr(model.config.get_text_config(), "rope_parameters", None) or {}).get("rope_type")
    if why is None and rope in ("dynamic", "longrope"):
        why = f"rotates by frequencies that change with the longest of a batch (rope_type={rope!r})"
    if why is not None:
        name = type(model).__name__
        raise ACPOError(f"sampler='static': {name} {why}; use sampler='generate'")
