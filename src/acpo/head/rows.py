"""What the head knows and asks of each row of logits, whatever computes it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from acpo.objectives import Method, TokenStats


class RowStats(NamedTuple):
    """Per-row results of the statistics pass, `[N]` each.

    `top` is the largest logit, in units of the backend that found it, and `log_total` the
    log-sum-exp of the logits above it, so that p = exp(z - top - log_total) loses nothing to
    large logits. `mode` is the index v*, equal to the sampled token where `is_mode`.
    """

    logp: Tensor
    log_pmax: Tensor
    is_mode: Tensor
    entropy: Tensor
    top: Tensor
    log_total: Tensor
    mode: Tensor

    @classmethod
    def empty(cls, rows: int, device: torch.device, dtype: torch.dtype) -> "RowStats":
        """Room for the results, uninitialised."""
        numbers = torch.empty(5, rows, device=device, dtype=dtype)
        logp, log_pmax, entropy, top, log_total = numbers.unbind()
        is_mode = torch.empty(rows, device=device, dtype=torch.bool)
        mode = torch.empty(rows, device=device, dtype=torch.int64)
        return cls(logp, log_pmax, is_mode, entropy, top, log_total, mode)

    def fill_unknown(self) -> "RowStats":
        """Rows that nothing will be computed for read as NaN, never as a plausible number."""
        for column in self:
            column.fill_(torch.nan if column.is_floating_point() else 0)
        return self

    def at(self, where: slice | Tensor) -> "RowStats":
        return RowStats(*(column[where] for column in self))

    def put(self, where: Tensor, rows: "RowStats") -> None:
        """Write `rows` to the given positions."""
        for column, values in zip(self, rows, strict=True):
            column[where] = values

    def tokens(self) -> TokenStats:
        return TokenStats(self.logp, self.log_pmax, self.is_mode, self.entropy)

    def finite(self) -> Tensor:
        """Rows whose logits gave a finite distribution with y in it."""
        return torch.isfinite(self.logp) & torch.isfinite(self.entropy)


class RowSums(NamedTuple):
    """Sums over the logits of each row except its largest, `[N]` each.

    With d = z - max z: `token` is d of the sampled token, `rest` = Σ e^d, `spread` = Σ d e^d,
    `square` = Σ e^2d, `square_d` = Σ d e^2d, `square_dd` = Σ d² e^2d; `mode` is the index of the
    largest logit.
    """

    token: Tensor
    rest: Tensor
    spread: Tensor
    square: Tensor
    square_d: Tensor
    square_dd: Tensor
    mode: Tensor

    @classmethod
    def empty(cls, rows: int, device: torch.device, dtype: torch.dtype) -> "RowSums":
        """Room for the sums, uninitialised."""
        token, rest, spread, square, square_d, square_dd = torch.empty(
            6, rows, device=device, dtype=dtype
        ).unbind()
        mode = torch.empty(rows, device=device, dtype=torch.int64)
        return cls(token, rest, spread, square, square_d, square_dd, mode)

    def at(self, where: slice) -> "RowSums":
        return RowSums(*(column[where] for column in self))


class RowCoefficients(NamedTuple):
    """The loss's logit gradient of each row: a (e_y - p) + bm (e_v* - p) + h (-p (log p + H)).

    Weights, signs and normalisers are folded in. `value` is the row's share of the loss.
    """

    value: Tensor
    a: Tensor
    bm: Tensor
    h: Tensor

    def at(self, where: slice | Tensor) -> "RowCoefficients":
        return RowCoefficients(*(column[where] for column in self))


class Sparsity(NamedTuple):
    """Which gradient entries may be left out: those below `eps` times their row's weight."""

    eps: float
    weight: Tensor

    def at(self, where: slice | Tensor) -> "Sparsity":
        return Sparsity(self.eps, self.weight[where])


class SparseGradient(NamedTuple):
    """A chunk's gradient where it is not negligible: `values[i, j]` at (rows[i], columns[j])."""

    rows: Tensor
    columns: Tensor
    values: Tensor


@dataclass(frozen=True)
class Policy:
    """A method's loss as a function of each row's own statistics.

    Attributes:
        method: the row of the table.
        old_logp, advantages, weights: `[N]`; advantages final, per token; weights fold the mask
            and every normaliser. No old_logp: the rollout policy is the current one.
        entropy_max: H_max of the Shannon rows.
        ref_logp, beta: the KL penalty.
        entropy_weights: `[N]` weights of an entropy bonus, normaliser folded in.
    """

    method: Method
    old_logp: Tensor | None
    advantages: Tensor
    weights: Tensor
    entropy_max: Tensor | float | None = None
    ref_logp: Tensor | None = None
    beta: float = 0.0
    entropy_weights: Tensor | None = None

    def at(self, where: slice | Tensor) -> "Policy":
        """The same loss for some of the rows."""
        return replace(
            self,
            old_logp=None if self.old_logp is None else self.old_logp[where],
            advantages=self.advantages[where],
            weights=self.weights[where],
            ref_logp=None if self.ref_logp is None else self.ref_logp[where],
            entropy_weights=None if self.entropy_weights is None else self.entropy_weights[where],
        )

    def without(self, rows: Tensor) -> "Policy":
        """The same loss with no gradient from some rows, so that they never reach a product."""
        return replace(
            self,
            weights=self.weights.masked_fill(rows, 0.0),
            entropy_weights=None
            if self.entropy_weights is None
            else self.entropy_weights.masked_fill(rows, 0.0),
        )

    @property
    def options(self) -> Mapping[str, Any]:
        return self.method.options

    def row_weight(self) -> Tensor:
        """The scale of each row's gradient."""
        if self.entropy_weights is None:
            return self.weights.abs()
        return torch.maximum(self.weights.abs(), self.entropy_weights.abs())

    def active(self) -> Tensor:
        """Rows that can have a gradient."""
        live = self.weights != 0
        if not self.beta:
            live = live & (self.advantages != 0)
        if self.entropy_weights is not None:
            live = live | (self.entropy_weights != 0)
        return live
