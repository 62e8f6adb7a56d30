"""A key-value cache of fixed shape, and the attention that reads it.

Every prompt is read once; its keys and values are then copied to each of its completions. While
decoding, one token per row is written at the cursor, which is a tensor, so that a captured graph
writes at a new place every time it runs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from acpo.errors import ACPOError

NAME = "acpo_static"


class StaticKV(Cache):
    """Keys and values of `rows` sequences of at most `length` tokens.

    Attributes:
        cursor: `[1]`, where the next token of every row is written.
        visible: how many places decoding reads, from the first; the rest is not touched.
        copies: while prompts are read, the prompt of each row; None while decoding.
    """

    def __init__(
        self, config: Any, *, rows: int, length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(layers=[])
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        shape = (rows, heads, length, width)
        # Zeros, not garbage: a masked place still meets a probability of 0, and 0 · NaN is NaN.
        self.keys = [
            torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)
        ]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.rows, self.length, self.dtype = rows, length, dtype
        self.cursor = torch.zeros(1, dtype=torch.long, device=device)
        self.visible = length
        self.copies: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the new tokens of one layer; returns what they attend to."""
        key, value = key_states.to(self.dtype), value_states.to(self.dtype)
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        if self.copies is not None:
            width = key.shape[2]
            keys[:, :, :width] = key.index_select(0, self.copies)
            values[:, :, :width] = value.index_select(0, self.copies)
            return key, value
        keys.index_copy_(2, self.cursor, key)
        values.index_copy_(2, self.cursor, value)
        return keys[:, :, : self.visible], values[:, :, : self.visible]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions are always given, so nothing is counted from here."""
        return 0


def static_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention over whatever `attention_mask` `[B, 1, Q, K]` (additive) lets through.

    One query per row and several heads per key head is one key head with several queries: keys and
    values are read once, not once per query head.
    """
    batch, heads, length, width = query.shape
    groups = heads // key.shape[1]
    query = query.to(key.dtype)
    if length == 1:
        query = query.view(batch, key.shape[1], groups, width)
    elif groups > 1:
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    out = F.scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)
    if length == 1:
        return out.reshape(batch, 1, heads, width), None
    return out.transpose(1, 2), None


AttentionInterface.register(NAME, static_attention)
AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)


@contextmanager
def static_attention_in(model: Any) -> Iterator[None]:
    """Use `static_attention` for everything inside."""
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def refuse_attention(model: Any) -> None:
    """Raise for a model whose attention is not the plain one this cache holds.

    Raises:
        ACPOError: for sliding windows, capped scores, compressed keys, and models that do not read
            their attention function from the registry.
    """
    config, name = model.config.get_text_config(), type(model).__name__
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if not getattr(model, "_supports_attention_backend", False):
        why = "does not read its attention function from the registry"
    elif kinds != {"full_attention"}:
        why = f"has layers of type {', '.join(sorted(kinds - {'full_attention'}))}"
    elif window and not getattr(config, "layer_types", None):
        why = f"attends within a sliding window of {config.sliding_window}"
    elif getattr(config, "attn_logit_softcapping", None):
        why = "caps its attention scores"
    elif hasattr(config, "kv_lora_rank"):
        why = "compresses its keys"
    else:
        return
    raise ACPOError(f"sampler='static': {name} {why}; use sampler='generate'")


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where `visible`, -inf elsewhere."""
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, -torch.inf)


def left_padded(prompts: Sequence[Sequence[int]], width: int, pad: int) -> tuple[Tensor, Tensor]:
    """`[N, width]` ids, and `[N]` columns at which the prompts begin."""
    ids = torch.full((len(prompts), width), pad)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
    return ids, torch.tensor([width - len(prompt) for prompt in prompts])
