"""How many tokens fit in a forward and backward pass."""

from typing import Any

import torch

CPU_BYTES = 2 << 30
MOST_TOKENS = {"cpu": 8192, "cuda": 65536}
SAFE_SHARE = 0.6


def activation_bytes(config: Any, *, itemsize: int, checkpointing: bool) -> int:
    """Bytes of activations one token leaves behind, estimated from a decoder's shape.

    Per layer, what is kept for the backward pass is about ten vectors of the hidden width, four of
    the queries', four of the keys' and values', and five of the feed-forward width. Checkpointing
    keeps one hidden vector per layer and one layer's worth of the rest.
    """
    hidden = config.hidden_size
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    keys = (getattr(config, "num_key_value_heads", None) or heads) * head_dim
    wide = getattr(config, "intermediate_size", None) or 4 * hidden
    layer = 10 * hidden + 4 * heads * head_dim + 4 * keys + 5 * wide
    layers = config.num_hidden_layers
    kept = layers * hidden + layer if checkpointing else layers * layer
    return kept * itemsize


def free_bytes(model: Any, device: torch.device, *, optimizer_started: bool) -> int:
    """Memory for activations, once gradients and optimizer states have taken theirs."""
    if device.type != "cuda":
        return CPU_BYTES
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    trained = [p for p in model.parameters() if p.requires_grad]
    pending = 0 if optimizer_started else sum(3 * _local(p) for p in trained)
    head = model.get_output_embeddings().weight
    logits = min(1 << 30, total // 16) + 4 * head.numel()
    return max(0, free - pending - logits)


def pack_budget(free: int, per_token: int, device: torch.device) -> int:
    """Tokens per pack, a multiple of 256."""
    share = 1.0 if device.type != "cuda" else SAFE_SHARE
    fitting = int(free * share) // per_token
    most = MOST_TOKENS.get(device.type, MOST_TOKENS["cpu"])
    return max(256, min(fitting, most) // 256 * 256)


def _local(parameter: torch.Tensor) -> int:
    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return local.numel() * local.element_size()
