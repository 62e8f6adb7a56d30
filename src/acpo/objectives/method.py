"""One row of the table: its parts, its options, and how they are checked."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from acpo.errors import ACPOError, ACPOWarning
from acpo.objectives.credit import Affine, Branches, CreditRule
from acpo.objectives.gates import GATES
from acpo.objectives.shaping import Reducer, Sequences, Shaped, Shaping
from acpo.objectives.tokens import select

ONE = Affine(1.0, 0.0)
OFFSET_UNCERTAIN = Affine("offset", 1.0)  # offset + S
UNIFORM = CreditRule(Branches(ONE, ONE))
PLAIN = Shaping()

SHARED: Mapping[str, Any] = {
    "align_tol": 1e-6,
    "positive_weight": 1.0,
    "nonpositive_weight": 1.0,
    "positive_share": None,
}
"""Options that every row takes: the tie tolerance of the mode, the weight of each sign of the
advantage (0 leaves it out), and the share of the update that good answers get."""

LEAST_MEAN = 1e-3
"""Bounds a branch's mean multiplier: a policy sure of everything is not scaled up without end."""

Aggregation = Literal["sequence_mean", "token_mean", "fixed_length"]


@dataclass(frozen=True)
class Method:
    """An objective: A · f(w) · c per token, and how tokens are weighed against each other.

    Attributes:
        name: what users type.
        title: what people call it.
        gate: how the ratio enters; a key of `GATES`.
        options: every option the method takes beside the `SHARED` ones, with its value. Others are
            refused.
        credit: the multipliers (c+, c-).
        aggregation: "sequence_mean" averages tokens within a sequence, then sequences;
            "token_mean" averages all tokens of the batch; "fixed_length" divides each sequence's
            sum by the option `max_length`, then averages sequences.
        own_count: whether the TRL trainer averages tokens over each mini-batch's own number; else
            over that of the rollout, divided by its mini-batches.
        shaping: how one advantage per sequence becomes one per token.
        advantage_scale: what `group_advantages` divides by for this method.
        reference: where it comes from.
        formula: what it does to a token, in a line.
        constants: where the values of its options come from.
        notes: how paper, official code and this row differ.
    """

    name: str
    title: str
    gate: str
    options: Mapping[str, Any]
    credit: CreditRule = UNIFORM
    aggregation: Aggregation = "sequence_mean"
    own_count: bool = False
    shaping: Shaping = PLAIN
    advantage_scale: Literal["std", "none"] = "std"
    reference: str = field(default="ACPO, ablation table")
    formula: str = ""
    constants: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", {**SHARED, **self.options})

    def __call__(self, **options: Any) -> "Method":
        """The same method with some options changed and checked."""
        return configure(self, options)

    @property
    def sequence_level(self) -> bool:
        """Whether the gate looks at the other tokens of the sequence."""
        return GATES[self.gate].averages

    @property
    def candidates(self) -> int:
        """How many of the likeliest tokens have a gradient of their own."""
        return int(self.options.get("candidates", 0))

    @property
    def needs(self) -> frozenset[str]:
        """Statistics of the current policy that the whole mini-batch's first gradient waits for."""
        found = set(self.shaping.needs)
        if self.options.get("entropy_norm") == "batch_max":
            found.add("entropy")
        if self.options["positive_share"] is not None:
            found |= {"delta": {"log_pmax"}, "entropy": {"entropy"}}.get(self.credit.signal, set())
        return frozenset(found)

    @property
    def shapes(self) -> bool:
        """Whether the row makes token advantages of its own."""
        return (
            type(self.shaping).shape is not Shaping.shape
            or self._sign_weights != (1.0, 1.0)
            or self.options["positive_share"] is not None
        )

    @property
    def needs_whole_batch(self) -> bool:
        """Whether the row looks at all tokens of a mini-batch before its first gradient."""
        return bool(self.needs or self.shapes)

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        """Token advantages of a mini-batch: the row's shaping, then the weights of the branches."""
        shaped = self.shaping.shape(batch, reduce)
        advantages = shaped.advantages
        if self._sign_weights != (1.0, 1.0):
            weights = select(advantages > 0, *self._sign_weights, advantages.dtype)
            advantages = advantages * weights
        if self.options["positive_share"] is not None:
            advantages = self._share_controlled(advantages, batch, reduce)
        return shaped._replace(advantages=advantages)

    @property
    def _sign_weights(self) -> tuple[float, float]:
        return float(self.options["positive_weight"]), float(self.options["nonpositive_weight"])

    def _share_controlled(self, advantages: Tensor, batch: Sequences, reduce: Reducer) -> Tensor:
        """Advantages scaled by branch, so that good answers make up their share at w = 1.

        With ω a token's weight in the loss, a branch's update is Σ ω|A|c and its advantages weigh
        Σ ω|A|. Each branch is divided by its mean c, so that credit moves within it only, and then
        multiplied so that the good answers have their share of what all advantages weigh.
        "advantages" leaves that share as the advantages have it: one half, where groups are whole
        and centred. A mini-batch of one branch keeps its weight.
        """
        share, credit = self.options["positive_share"], self._first_order(batch, advantages, reduce)
        weight = batch.mask.to(advantages.dtype)
        if self.aggregation == "sequence_mean":
            weight = weight / weight.sum(1, keepdim=True).clamp_min(1)
        size, positive = weight * advantages.abs(), advantages > 0
        both = torch.stack([size * credit, size])
        sums = reduce.sum(torch.stack([both[:, positive].sum(1), both[:, ~positive].sum(1)]))
        mass = sums[:, 1]
        means = (sums[:, 0] / mass.clamp_min(1e-12)).clamp_min(LEAST_MEAN)
        scaled = advantages / torch.where(positive, means[0], means[1])
        if isinstance(share, str) or not bool((mass > 0).all()):
            return scaled
        factors = mass.sum() * mass.new_tensor([share, 1 - share]) / mass
        return scaled * torch.where(positive, factors[0], factors[1])

    def _first_order(self, batch: Sequences, advantages: Tensor, reduce: Reducer) -> Tensor:
        """What each token is multiplied by at w = 1."""
        signal = torch.zeros_like(advantages)
        if self.credit.signal == "delta":
            assert batch.log_pmax is not None
            signal = -torch.expm1(torch.where(batch.mask, batch.log_pmax, 0.0))
        elif self.credit.signal == "entropy":
            assert batch.entropy is not None
            highest = entropy_maximum(self, batch.entropy, batch.mask, reduce)
            assert highest is not None
            signal = (torch.where(batch.mask, batch.entropy, 0.0) / highest).clamp(max=1.0)
        return self.credit.first_order(signal.to(advantages.dtype), advantages > 0, self.options)


def entropy_maximum(
    method: Method, entropy: Tensor, mask: Tensor, reduce: Reducer | None = None
) -> Tensor | float | None:
    """H_max of the Shannon rows: the option's number, or the mini-batch's (detached) maximum."""
    norm = method.options.get("entropy_norm")
    if norm is None:
        return None
    if not isinstance(norm, str):
        return float(norm)
    valid = torch.where(mask, entropy.detach(), 0.0)
    highest = valid.amax() if valid.numel() else valid.sum()
    return (reduce or Reducer()).maximum(highest).clamp_min(1e-8)


ALIASES = {"sapo_temperature_pos": "tau_pos", "sapo_temperature_neg": "tau_neg"}
"""TRL's names for options we share."""


def by_our_names(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names of the table; one that is given twice must have one value."""
    found: dict[str, tuple[str, Any]] = {}
    for part in parts:
        for name, value in part.items():
            ours = ALIASES.get(name, name)
            other, known = found.setdefault(ours, (name, value))
            if known != value and str(known) != str(value):  # NaN is never itself
                raise ACPOError(f"{other}={known} and {name}={value} name the same option; set one")
    return {ours: value for ours, (_, value) in found.items()}


def configure(method: Method, options: Mapping[str, Any]) -> Method:
    """A copy of `method` with `options` merged in and checked."""
    renamed = by_our_names(options)
    for name, value in renamed.items():
        if name not in method.options:
            raise ACPOError(
                f"{name}={value!r} is not an option of method {method.name!r}; "
                f"it takes {', '.join(method.options)}"
            )
        _check_option(name, value)
    configured = replace(method, options={**method.options, **renamed})
    _check_together(configured)
    _warn_if_reversing(configured)
    return configured


_WORDS = {
    "offset": ("auto",),
    "mismatch_scale": ("auto",),
    "entropy_norm": ("batch_max",),
    "norm": ("split", "joint"),
    "positive_share": ("advantages",),
}
_POSITIVE = {"tau_pos", "tau_neg", "mismatch_scale", "entropy_norm", "entropy_limit", "kappa"}
_POSITIVE |= {"ratio_cap", "sigma", "max_length", "lambda_pos", "lambda_neg"}
_UNSET = {"delta", "positive_share", "max_length"}
"""Options that may be None."""
_WITHIN: dict[str, tuple[float, float, str]] = {
    "top_entropy_quantile": (0.0, 1.0, "the 80/20 rule uses 0.2"),
    "cov_share": (0.0, 1.0, "the authors use 2e-4"),
    "positive_share": (0.0, 1.0, "0.5 gives good and bad answers the same"),
    "entropy_quantile": (0.0, 1.0, "the authors use 0.8"),
    "candidates": (0, 64, "the authors use 3"),
    "exponent": (-math.inf, 4.0, "0.5 divides by the norm itself"),
    "align_tol": (-math.inf, 1.0, "it is compared with a difference of probabilities"),
}
_AT_MOST_1 = {
    "likelihood_weighted_clip": "alpha",
    "shared_clip": "alpha",
    "entropy_adaptive_clip": "beta_entropy",
}
"""Of a gate, the option that reverses it when larger."""


def _check_option(name: str, value: Any) -> None:
    words = _WORDS.get(name, ())
    if (isinstance(value, str) and value in words) or (value is None and name in _UNSET):
        return
    if name == "norm":
        raise ACPOError(f"norm={value!r} is unknown; use 'split' (the paper's) or 'joint'")
    if (
        isinstance(value, str | bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
    ):
        word = "".join(f" or {word!r}" for word in words)
        raise ACPOError(f"{name}={value!r} must be a finite number{word}")
    if name in _POSITIVE and value <= 0:
        raise ACPOError(f"{name}={value} must be positive")
    if name not in _POSITIVE and value < 0:
        raise ACPOError(f"{name}={value} must not be negative")
    if name == "candidates" and value != int(value):
        raise ACPOError(f"{name}={value} must be a whole number")
    low, high, hint = _WITHIN.get(name, (-math.inf, math.inf, ""))
    if not low < value <= high:
        raise ACPOError(f"{name}={value} must lie in ({low:g}, {high:g}]; {hint}")


def _check_together(method: Method) -> None:
    """What no option can be told alone."""
    delta = method.options.get("delta")
    if delta is not None and delta <= 1 + float(method.options["epsilon_high"]):
        raise ACPOError(
            f"delta={delta} must exceed 1 + epsilon_high="
            f"{1 + float(method.options['epsilon_high']):g}; TRL's two-sided clipping uses 4"
        )
    name = _AT_MOST_1.get(method.gate)
    if name is not None and (value := method.options[name]) > 1:
        raise ACPOError(f"{name}={value} must be at most 1: a larger one pushes good tokens down")
    low, high = (method.options.get(name) for name in ("cov_low", "cov_high"))
    if low is not None and high is not None and not low < high:
        raise ACPOError(f"cov_low={low} must be below cov_high={high}: no token lies between them")


def _warn_if_reversing(method: Method) -> None:
    """M+ = offset + 1 - (1 + 2/τ) p is proportional to δ only if offset = 2/τ."""
    rule, options = method.credit, method.options
    if rule.signal != "delta" or rule.detached or rule.aligned.positive != OFFSET_UNCERTAIN:
        return
    tau, offset = float(options["tau_pos"]), options["offset"]
    needed = 2 / tau
    if offset == "auto" or math.isclose(offset, needed, rel_tol=1e-9):
        return
    effect = (
        "confident positive tokens are pushed down"
        if offset < needed
        else "fully confident positive tokens still gain"
    )
    warnings.warn(
        f"tau_pos={tau:g} with offset={offset:g}: the positive update is no longer proportional to "
        f"delta ({effect}); offset='auto' (here {needed:g}) repairs it",
        ACPOWarning,
        stacklevel=4,
    )
