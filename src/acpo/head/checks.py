"""Errors for inputs that would give a silently wrong loss."""

import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.head.lookup import LanguageModelHead


def check_shapes(
    hidden: Tensor, head: LanguageModelHead, tokens: Tensor, **columns: Tensor
) -> None:
    """Shapes, dtypes and devices agree. Asks the device nothing."""
    weight, bias = head.weight, head.bias
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


def check_values(
    tokens: Tensor, vocab: int, columns: dict[str, Tensor], *counted: Tensor
) -> list[int]:
    """Token ids exist and the columns are finite; returns how many are true of each mask.

    One transfer answers everything, because each would stop the device for as long as all.
    """
    if tokens.numel() == 0:
        return [0] * len(counted)
    low, high = tokens.aminmax()
    answers = [low, high, *(mask.sum() for mask in counted)]
    if columns:
        finite = torch.isfinite(torch.stack(list(columns.values()))).all(1)
        answers += finite.unbind()
    smallest, largest, *rest = torch.stack([a.to(torch.int64) for a in answers]).tolist()
    if smallest < 0 or largest >= vocab:
        raise ACPOError(
            f"tokens holds ids from {smallest} to {largest}; the head has {vocab} rows. "
            "Drop padding and prompt positions first"
        )
    for name, ok in zip(columns, rest[len(counted) :], strict=True):
        if not ok:
            count = int((~torch.isfinite(columns[name])).sum())
            raise ACPOError(
                f"{name} has {count} non-finite value(s); give those tokens weight 0 and 0 here, "
                "or leave them out"
            )
    return rest[: len(counted)]
