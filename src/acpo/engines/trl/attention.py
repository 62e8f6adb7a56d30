"""Variable-length attention: many sequences in one row, none seeing another.

Models that read their attention function from the transformers registry pass the boundaries of a
packed row through as keyword arguments, the same ones flash-attention reads.
"""

import functools
import importlib.util
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from acpo.engines.trl.packing import Layout

NAME = "acpo_packed"
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
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))  # [T, heads, dim]
    if query.is_cuda:
        return _varlen(query, key, value, cu_seq_lens_q, max_length_q, scaling)[None], None
    parts = []
    for start, stop in zip(cu_seq_lens_q[:-1].tolist(), cu_seq_lens_q[1:].tolist(), strict=True):
        q, k, v = (x[None, start:stop].transpose(1, 2) for x in (query, key, value))
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
        )
        parts.append(out.transpose(1, 2))
    return torch.cat(parts, 1), None


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, boundaries: Tensor, longest: int, scale: float | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    # Under autocast, float32 norm weights leave queries and keys wider than the values.
    dtype = next((x.dtype for x in (query, key, value) if x.dtype in HALF), None)
    dtype = dtype or torch.get_autocast_dtype("cuda")
    query, key, value = (x.to(dtype) for x in (query, key, value))
    known = _parameters(varlen_attn)
    more: dict[str, Any] = {}
    if key.shape[1] != query.shape[1]:
        if "enable_gqa" in known:  # torch >= 2.13
            more["enable_gqa"] = True
        else:
            groups = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    if "scale" in known:
        more["scale"] = scale
    elif scale is not None:
        query = query * (scale * query.shape[-1] ** 0.5)
    out = varlen_attn(
        query, key, value, boundaries, boundaries, longest, longest, window_size=(-1, 0), **more
    )
    assert isinstance(out, Tensor)
    return out


@functools.cache
def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)


class PackedAttention:
    """Which layout a model's update uses, and the attention function that goes with it.

    Attributes:
        layout: "packed" or "padded".
        reason: why, in words for the log.
        implementation: the registered function to install during the update; None keeps the
            model's own.
    """

    def __init__(self, layout: Layout, reason: str, implementation: str | None = None) -> None:
        self.layout, self.reason, self.implementation = layout, reason, implementation

    @contextmanager
    def installed(self, *models: Any) -> Iterator[None]:
        """Use it for everything inside, backward passes that recompute the forward included."""
        configs = [m.config for m in models if m is not None]
        before = [c._attn_implementation for c in configs]
        try:
            if self.implementation is not None:
                for config in configs:
                    config._attn_implementation = self.implementation
            yield
        finally:
            for config, value in zip(configs, before, strict=True):
                config._attn_implementation = value


def choose_attention(
    model: Any, *, device: torch.device, half_precision: bool, wanted: str = "auto"
) -> PackedAttention:
    """Decide once, at construction, how a model's sequences are laid out.

    Args:
        model: the policy, unwrapped.
        device: where it trains.
        half_precision: whether attention runs in bfloat16 or float16.
        wanted: "packed" or "padded" to insist, "auto" to choose.
    """
    if wanted == "padded":
        return PackedAttention("padded", "update_layout='padded'")
    current = str(model.config._attn_implementation or "")
    if "flash" in current and device.type == "cuda" and half_precision:
        return PackedAttention("packed", f"{current} takes sequences of any length")
    obstacle = _obstacle(model)
    if obstacle is None and device.type == "cuda":
        obstacle = _kernel_obstacle(device, half_precision)
    if obstacle is not None:
        return PackedAttention("padded", obstacle)
    if device.type == "cuda" or wanted == "packed":
        return PackedAttention("packed", "variable-length attention", NAME)
    return PackedAttention("padded", f"no variable-length attention on {device.type}")


def _kernel_obstacle(device: torch.device, half_precision: bool) -> str | None:
    """Why the kernel cannot run here; None if it can."""
    if not half_precision:
        return "variable-length attention needs bfloat16 (bf16=True)"
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return f"torch {torch.__version__} has no variable-length attention"
    if torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0):
        return "variable-length attention needs an Ampere GPU or newer"
    return None


def _obstacle(model: Any) -> str | None:
    """Why a model's attention cannot be packed; None if it can."""
    config = model.config.get_text_config()
    name = type(model).__name__
    if not getattr(model, "_supports_attention_backend", False):
        return f"{name} does not read its attention function from the registry"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        return f"{name} has layers of type {', '.join(sorted(kinds - {'full_attention'}))}"
    windowed = getattr(config, "sliding_window", None) and getattr(
        config, "use_sliding_window", True
    )
    if windowed and not getattr(config, "layer_types", None):
        return f"{name} attends within a sliding window of {config.sliding_window}"
    if getattr(config, "attn_logit_softcapping", None):
        return f"{name} caps its attention scores"
    if getattr(config, "attention_dropout", 0.0) or getattr(config, "attn_pdrop", 0.0):
        return f"{name} drops attention weights; set attention_dropout=0 to pack"
    if (getattr(config, "head_dim", None) or 0) > 256:
        return f"{name} has heads of {config.head_dim} dimensions; the kernel takes up to 256"
    if hasattr(config, "kv_lora_rank"):
        return f"{name} has an attention that has not been packed"
    return None
