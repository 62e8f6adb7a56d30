"""Credit multipliers (c+, c-): the paper's Eq. "acpo_weights" and every ablation row, as data.

Each multiplier is affine in an uncertainty signal S, either δ = 1 - p_max or the normalised
entropy ē = H / H_max, so a row is a handful of numbers and a rule for its gradient.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from acpo.objectives.gates import TokenInputs
from acpo.objectives.tokens import select


class Affine(NamedTuple):
    """c = scale · (offset + slope · S). A string names the option that supplies the number."""

    offset: float | Literal["offset"]
    slope: float
    scale: float | Literal["mismatch_scale"] = 1.0

    def numbers(self, options: Mapping[str, Any], tau: float) -> tuple[float, float]:
        """(constant, slope) of the multiplier on the branch whose gate temperature is τ."""
        offset = self.offset if not isinstance(self.offset, str) else options[self.offset]
        scale = self.scale if not isinstance(self.scale, str) else options[self.scale]
        offset = 2 / tau if offset == "auto" else float(offset)
        scale = 1 + 2 / tau if scale == "auto" else float(scale)
        return scale * offset, scale * self.slope


class Branches(NamedTuple):
    """The multipliers for A > 0 and A <= 0."""

    positive: Affine
    nonpositive: Affine


@dataclass(frozen=True)
class CreditRule:
    """One row of the paper's ablation table.

    Attributes:
        aligned: multipliers where the sampled token is the mode (everywhere, if `mismatched` is
            unset).
        mismatched: multipliers where it is not; always detached. Set only for routed ACPO.
        signal: what S is; "none" for constant multipliers.
        detached: whether S is detached everywhere.
    """

    aligned: Branches
    mismatched: Branches | None = None
    signal: Literal["none", "delta", "entropy"] = "none"
    detached: bool = False

    @property
    def routed(self) -> bool:
        return self.mismatched is not None

    @property
    def differentiates_mode(self) -> bool:
        """Whether gradient flows through p_max of a mode that was not sampled."""
        return self.signal == "delta" and not self.detached and not self.routed

    @property
    def differentiates_entropy(self) -> bool:
        return self.signal == "entropy" and not self.detached

    def table(self, options: Mapping[str, Any]) -> list[list[tuple[float, float]]]:
        """(constant, slope) as [[aligned +, aligned -], [mismatched +, mismatched -]]."""
        taus = (float(options.get("tau_pos", 1.0)), float(options.get("tau_neg", 1.0)))
        rows = (self.aligned, self.mismatched or self.aligned)
        return [[m.numbers(options, t) for m, t in zip(row, taus, strict=True)] for row in rows]

    def first_order(self, delta: Tensor, positive: Tensor, options: Mapping[str, Any]) -> Tensor:
        """The weight 3δ or 3(1-δ) that routed ACPO gives a token at w = 1, detached.

        Mismatched tokens have it as their multiplier; on aligned ones the gradient through δ
        makes it up (to within 2/τ - 2). For rows without routing, the multiplier itself.
        """
        (cp, sp), (cn, sn) = self.table(options)[1]
        constant = select(positive, cp, cn, delta.dtype)
        return constant + select(positive, sp, sn, delta.dtype) * delta.detach()


class Credit(NamedTuple):
    """The multiplier c of each token and its closed-form slope dc/dS (0 where S is detached)."""

    value: Tensor
    slope: Tensor


def credit_multipliers(rule: CreditRule, inputs: TokenInputs) -> Credit:
    """c+ where A > 0, c- elsewhere, for every token."""
    (ap, an), (mp, mn) = rule.table(inputs.options)
    like, positive = inputs.logp.detach(), inputs.positive

    def choose(column: int) -> Tensor:
        aligned = select(positive, ap[column], an[column], like.dtype)
        mismatched = select(positive, mp[column], mn[column], like.dtype)
        return torch.where(inputs.stats.is_mode, aligned, mismatched)

    constant, slope = choose(0), choose(1)
    if rule.signal == "none":
        return Credit(constant, torch.zeros_like(like))
    signal, live = uncertainty(rule, inputs)
    return Credit(constant + slope * signal, torch.where(live, slope, 0.0))


def uncertainty(rule: CreditRule, inputs: TokenInputs) -> tuple[Tensor, Tensor]:
    """The signal S and where gradient flows through it."""
    stats, live = inputs.stats, torch.ones_like(inputs.stats.is_mode)
    if rule.signal == "entropy":
        assert inputs.entropy_max is not None
        signal = stats.entropy / inputs.entropy_max
        if not isinstance(inputs.options["entropy_norm"], str):
            live = signal.detach() <= 1
            signal = signal.clamp(max=1.0)
    else:
        log_pmax = stats.log_pmax
        if rule.routed:
            live, log_pmax = stats.is_mode, log_pmax.detach()
        signal = -torch.expm1(torch.where(stats.is_mode, stats.logp, log_pmax))
    if rule.detached:
        return signal.detach(), torch.zeros_like(live)
    return signal, live
