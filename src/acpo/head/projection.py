"""The linear map from hidden states to logits, and its matrix products."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from acpo.errors import ACPOError


class Projection(NamedTuple):
    """How raw products become scaled logits: softcap(logit_scale · (hWᵀ + bias)) / temperature."""

    temperature: float = 1.0
    softcap: float | None = None
    logit_scale: float = 1.0

    def check(self) -> None:
        """Raise for values no model has."""
        if not 0 < self.temperature < math.inf:
            raise ACPOError(
                f"temperature={self.temperature} must be positive and finite; use the one the "
                "rollouts were sampled with"
            )
        if not self.logit_scale > 0:
            raise ACPOError(f"logit_scale={self.logit_scale} must be positive")
        if self.softcap is not None and not self.softcap > 0:
            raise ACPOError(f"softcap={self.softcap} must be positive; pass None for no softcap")

    def scaled(self, raw: Tensor) -> Tensor:
        """Scaled logits z; differentiable."""
        z = raw * self.logit_scale
        if self.softcap is not None:
            z = self.softcap * torch.tanh(z / self.softcap)
        return z / self.temperature

    @property
    def factor(self) -> float:
        """What is left to multiply after `squash_`. Subtract the maximum first: it is exacter."""
        return (self.logit_scale if self.softcap is None else self.softcap) / self.temperature

    def squash_(self, raw: Tensor) -> Tensor:
        """The softcap's tanh, in place; nothing without one."""
        if self.softcap is None:
            return raw
        return raw.mul_(self.logit_scale / self.softcap).tanh_()

    def pull_back_(self, gradient: Tensor, squashed: Tensor | None) -> Tensor:
        """Turn the gradient for z into the one for the raw product, in place; ends `squashed`."""
        gradient.mul_(self.logit_scale / self.temperature)
        if self.softcap is not None:
            assert squashed is not None
            gradient.mul_(1 - squashed.square_())
        return gradient


def wide_dtype(compute: torch.dtype) -> torch.dtype:
    """Of logits and sums: float32, and float64 where the head is computed in it."""
    return torch.float64 if compute == torch.float64 else torch.float32


def matmul(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = a @ b, accumulated and rounded once to out's dtype."""
    if out.dtype == a.dtype:
        torch.mm(a, b, out=out)
    elif a.is_cuda:
        torch.mm(a, b, out_dtype=out.dtype, out=out)
    else:
        out.copy_(a.to(out.dtype) @ b.to(out.dtype))


def add_matmul(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b in total's dtype."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif a.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))
