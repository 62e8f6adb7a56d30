"""Attention over packed sequences, under a name models can be given.

Models that read their attention function from the transformers registry pass the boundaries of a
packed row through as keyword arguments, the ones flash-attention reads.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from acpo.errors import ACPOError

PACKED = "acpo_packed"
HALF = (torch.bfloat16, torch.float16)


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence of a packed row; `[1, heads, T, dim]` in."""
    assert cu_seq_lens_q is not None and max_length_q is not None
    if attention_mask is not None or kwargs.get("s_aux") is not None:
        raise ACPOError(
            f"{type(module).__name__} adds a mask or a sink of its own to its attention scores, "
            "which packs would drop; set update_layout='padded'"
        )
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))  # [T, heads, dim]
    if not query.is_cuda:
        return _each_sequence(query, key, value, cu_seq_lens_q, scaling), None
    # Under autocast, float32 norm weights leave queries and keys wider than the values.
    dtype = value.dtype if value.dtype in HALF else torch.bfloat16
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    # The operator under torch's varlen_attn, whose public form learnt grouped queries in 2.13.
    out = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        cu_seq_lens_q,
        cu_seq_lens_q,
        max_length_q,
        max_length_q,
        0.0,
        True,
        False,
        scale=scaling,
    )[0]
    return out[None], None


@torch.compiler.disable
def _each_sequence(
    query: Tensor, key: Tensor, value: Tensor, boundaries: Tensor, scale: float | None
) -> Tensor:
    """One sequence after another, where there is no kernel for many."""
    parts = []
    for start, stop in zip(boundaries[:-1].tolist(), boundaries[1:].tolist(), strict=True):
        q, k, v = (x[None, start:stop].transpose(1, 2) for x in (query, key, value))
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        parts.append(out.transpose(1, 2))
    return torch.cat(parts, 1)


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, lambda *args, **kwargs: None)
