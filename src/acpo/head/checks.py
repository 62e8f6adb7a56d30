"""Errors for inputs that would give a silently wrong loss."""

import torch
from torch import Tensor

from acpo.errors import ACPOError


def check_inputs(
    hidden: Tensor, weight: Tensor, tokens: Tensor, bias: Tensor | None, **columns: Tensor
) -> None:
    """Shapes and devices agree, token ids exist, and the columns are finite."""
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise ACPOError(
            f"hidden has shape {list(hidden.shape)}, weight {list(weight.shape)}; they must be "
            "[N, H] and [V, H]"
        )
    rows, vocab = hidden.shape[0], weight.shape[0]
    for name, x in {"tokens": tokens, **columns}.items():
        if x.shape != (rows,):
            raise ACPOError(
                f"{name} has shape {list(x.shape)}; with hidden {list(hidden.shape)} it must be "
                f"[{rows}]: select the positions that predict completion tokens, then flatten"
            )
    if bias is not None and bias.shape != (vocab,):
        raise ACPOError(f"bias has shape {list(bias.shape)}; weight asks for [{vocab}]")
    others = {"weight": weight, "tokens": tokens, "bias": bias, **columns}
    for name, other in others.items():
        if other is not None and other.device != hidden.device:
            raise ACPOError(
                f"{name} is on {other.device}, hidden on {hidden.device}; move them to one device"
            )
    if tokens.dtype.is_floating_point:
        raise ACPOError(f"tokens has dtype {tokens.dtype}; token ids are integers")
    if rows == 0:
        return
    # One transfer for every check, so that the device is asked only once.
    finite = [torch.isfinite(x).all() for x in columns.values()]
    low, high = tokens.aminmax()
    answers = torch.stack([low, high, *(f.to(low.dtype) for f in finite)]).tolist()
    if answers[0] < 0 or answers[1] >= vocab:
        raise ACPOError(
            f"tokens holds ids from {answers[0]} to {answers[1]}; the head has {vocab} rows. "
            "Drop padding and prompt positions first"
        )
    for name, ok in zip(columns, answers[2:], strict=True):
        if not ok:
            count = int((~torch.isfinite(columns[name])).sum())
            raise ACPOError(f"{name} has {count} non-finite value(s); mask those tokens out")
