"""What the head knows and asks of each row of logits, whatever computes it."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from acpo.head.terms import TokenTerms
from acpo.objectives import TokenStats, token_coefficients
from acpo.objectives.gates import GATES, SequenceMean
from acpo.objectives.loss import kl_penalty, kl_ratio


def _columns(count: int, rows: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Uninitialised `[rows]` columns, each aligned to 16 bytes.

    Were addresses to depend on the number of rows, Triton would compile a kernel for each kind.
    """
    padded = math.ceil(rows / 16) * 16
    return torch.empty(count, padded, device=device, dtype=dtype)[:, :rows].unbind()


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
        logp, log_pmax, entropy, top, log_total = _columns(5, rows, device, dtype)
        is_mode = torch.empty(rows, device=device, dtype=torch.bool)
        mode = torch.empty(rows, device=device, dtype=torch.int64)
        return cls(logp, log_pmax, is_mode, entropy, top, log_total, mode)

    def at(self, where: slice | Tensor) -> "RowStats":
        return RowStats(*(column[where] for column in self))

    def spread(self, rows: Tensor, total: int) -> "RowStats":
        """These rows among `total`; the others read as NaN, never as a plausible number."""
        whole = []
        for column in self:
            unknown = torch.nan if column.is_floating_point() else 0
            whole.append(column.new_full((total,), unknown))
            whole[-1][rows] = column
        return RowStats(*whole)

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
        token, rest, spread, square, square_d, square_dd = _columns(6, rows, device, dtype)
        mode = torch.empty(rows, device=device, dtype=torch.int64)
        return cls(token, rest, spread, square, square_d, square_dd, mode)

    def at(self, where: slice) -> "RowSums":
        return RowSums(*(column[where] for column in self))


class RowCoefficients(NamedTuple):
    """The loss's logit gradient of each row: a (e_y - p) + bm (e_v* - p) + h (-p (log p + H)).

    Weights, signs and normalisers are folded in. `value` is the row's share of the loss. `top`,
    `[N, K]`, adds Σ_k top_k (e_k - p) over the K likeliest tokens; None in methods without.
    """

    value: Tensor
    a: Tensor
    bm: Tensor
    h: Tensor
    top: Tensor | None = None

    def at(self, where: slice | Tensor) -> "RowCoefficients":
        return RowCoefficients(*(None if x is None else x[where] for x in self))  # type: ignore[arg-type]

    def live(self) -> Tensor:
        """Rows that have a gradient."""
        found = (self.a != 0) | (self.bm != 0) | (self.h != 0)
        return found if self.top is None else found | self.gives()

    def gives(self) -> Tensor:
        """Rows whose likeliest tokens have a gradient of their own."""
        assert self.top is not None
        return (self.top != 0).any(1)


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


def missing_sequence_mean(x: Tensor, *, total: bool = False) -> Tensor:
    raise AssertionError("a method that averages over sequences needs sequence_ids")


def row_coefficients(
    stats: RowStats, terms: TokenTerms, sequence_mean: SequenceMean = missing_sequence_mean
) -> RowCoefficients:
    """Loss share and gradient scalars of each row, by torch; the Triton kernel computes the same.

    All 0 where the row's logits are not finite.
    """
    assert terms.weights is not None
    finite = stats.finite()
    clean = stats.tokens()._replace(
        logp=torch.where(finite, stats.logp, 0.0),
        log_pmax=torch.where(finite, stats.log_pmax, 0.0),
        entropy=torch.where(finite, stats.entropy, 0.0),
    )
    inputs = terms.inputs(clean, sequence_mean)
    beta = 0.0 if terms.corrects_kl else terms.beta
    c = token_coefficients(terms.method, inputs, ref_logp=terms.ref_logp, beta=beta)
    weights = torch.where(finite, terms.weights, 0.0)
    value, a, h = -weights * c.value, -weights * c.a, -weights * c.h
    if terms.corrects_kl:
        kl, slope = _corrected_kl(terms, weights, clean.logp, inputs.old_logp, sequence_mean)
        value, a = value + kl, a + slope
    if terms.entropy_weights is not None:
        bonus = torch.where(finite, terms.entropy_weights, 0.0)
        value, h = value - bonus * clean.entropy, h - bonus
    bm = -weights * c.b * clean.log_pmax.exp()
    top = None if c.top is None else -weights[:, None] * c.top
    return RowCoefficients(value, a, bm, h, top)


def _corrected_kl(
    terms: TokenTerms, weights: Tensor, logp: Tensor, old_logp: Tensor, sequence_mean: SequenceMean
) -> tuple[Tensor, Tensor]:
    """The KL estimate times the importance ratio, weighted, and its slope in log π(y).

    A ratio that a sequence shares moves with each of its tokens, by their mean.
    """
    assert terms.ref_logp is not None
    shared = GATES[terms.method.gate].one_ratio
    scale = terms.beta * weights * kl_ratio(terms.method, logp - old_logp, sequence_mean)
    kl = scale * kl_penalty(logp, terms.ref_logp)
    of_ratio = torch.where(weights != 0, sequence_mean(kl), 0.0) if shared else kl
    return kl, of_ratio + scale * (1 - (terms.ref_logp - logp).exp())
