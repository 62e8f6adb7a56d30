"""The table of methods as data: one entry per row, made of shared parts.

Adding a row is adding an entry to `METHODS`.
"""

import difflib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from acpo.errors import ACPOError
from acpo.objectives.credit import Affine, Branches, CreditRule
from acpo.objectives.groups import Conflict, EntropyReward, ScoreBaseline
from acpo.objectives.method import OFFSET_UNCERTAIN, ONE, Method, configure
from acpo.objectives.shaping import (
    CovarianceClip,
    CovariancePenalty,
    EntropyBonus,
    EntropyScale,
    ScoreNormalised,
    TopEntropy,
    Uncertain,
)

UNCERTAIN = Affine(0.0, 1.0)  # S
CONFIDENT = Affine(1.0, -1.0)  # 1 - S
SCALED = Branches(
    UNCERTAIN._replace(scale="mismatch_scale"), CONFIDENT._replace(scale="mismatch_scale")
)

SOFT = {"tau_pos": 1.0, "tau_neg": 1.05}
CLIP = {"epsilon": 0.2, "epsilon_high": 0.2, "delta": None}
CLIP_HIGHER = {**CLIP, "epsilon_high": 0.28}
RANGE = {"epsilon": 0.2, "epsilon_high": 0.2}
OFFSET = {**SOFT, "offset": 2.0}
SHANNON = {**SOFT, "entropy_norm": "batch_max"}


def _credit_row(
    name: str,
    title: str,
    positive: Affine,
    nonpositive: Affine,
    options: Mapping[str, Any],
    signal: Literal["none", "delta", "entropy"] = "delta",
    **rest: Any,
) -> Method:
    """A row of the paper's ablation table: SAPO's gate with other multipliers."""
    rule = {"detached": rest.pop("detached", False), "mismatched": rest.pop("mismatched", None)}
    credit = CreditRule(Branches(positive, nonpositive), signal=signal, **rule)
    return Method(name, title, "soft", options, credit, **rest)


_PAPER = (
    Method("grpo", "GRPO", "clip", CLIP, reference="DeepSeekMath, Shao et al. 2024"),
    Method(
        "dapo",
        "DAPO",
        "clip",
        CLIP_HIGHER,
        aggregation="token_mean",
        reference="Yu et al. 2025 (arXiv:2503.14476)",
    ),
    Method(
        "gspo",
        "GSPO",
        "sequence_clip",
        {**CLIP, "epsilon": 3e-4, "epsilon_high": 4e-4},
        reference="Zheng et al. 2025 (arXiv:2507.18071)",
    ),
    Method("sapo", "SAPO", "soft", SOFT, reference="Gao et al. 2025 (arXiv:2511.20347)"),
    Method(
        "8020",
        "80/20",
        "clip",
        {**CLIP_HIGHER, "top_entropy_quantile": 0.2},
        aggregation="token_mean",
        shaping=TopEntropy(),
        reference="Wang et al. 2025 (arXiv:2506.01939)",
    ),
    Method(
        "gtpo",
        "GTPO (trajectory)",
        "ratio",
        {"gamma": 0.1, "entropy_limit": math.log(2), "initial_entropy": 0.0},
        shaping=Conflict(),
        advantage_scale="none",
        reference="Simoni et al. 2025 (arXiv:2508.03772)",
    ),
    Method(
        "gtpo_entropy",
        "GTPO (token entropy)",
        "clip",
        {**CLIP_HIGHER, "alpha1": 1.0, "alpha2": 0.1, "norm": "split"},
        aggregation="token_mean",
        shaping=EntropyReward(),
        reference="Tan et al. 2025 (arXiv:2508.04349)",
    ),
    _credit_row(
        "acpo",
        "ACPO",
        OFFSET_UNCERTAIN,
        CONFIDENT,
        {**OFFSET, "mismatch_scale": 3.0},
        mismatched=SCALED,
        reference="ACPO, Eq. (acpo_weights)",
    ),
    _credit_row("acpo_no_routing", "ACPO w/o routing", OFFSET_UNCERTAIN, CONFIDENT, OFFSET),
    _credit_row("fixed", "Fixed-weight control", Affine(2.0, 0.0), ONE, SOFT, "none"),
    _credit_row("positive_only", "Positive modulation only", OFFSET_UNCERTAIN, ONE, OFFSET),
    _credit_row("nonpositive_only", "Non-positive modulation only", ONE, CONFIDENT, SOFT),
    _credit_row("shannon", "Shannon weighting", UNCERTAIN, CONFIDENT, SHANNON, "entropy"),
    _credit_row(
        "shannon_offset",
        "Shannon weighting + offset",
        OFFSET_UNCERTAIN,
        CONFIDENT,
        {**SHANNON, "offset": 2.0},
        "entropy",
    ),
    _credit_row("global_sg", "Global SG", UNCERTAIN, CONFIDENT, SOFT, detached=True),
    _credit_row(
        "global_sg_offset", "Global SG + offset", OFFSET_UNCERTAIN, CONFIDENT, OFFSET, detached=True
    ),
    _credit_row(
        "global_sg_x3",
        "Global SG x 3 (control)",
        UNCERTAIN._replace(scale=3.0),
        CONFIDENT._replace(scale=3.0),
        SOFT,
        detached=True,
        reference="this project: equals ACPO at w = 1",
    ),
    Method(
        "cispo",
        "CISPO",
        "capped_reinforce",
        {"epsilon_high": 5.0},
        aggregation="token_mean",
        reference="MiniMax-M1 2025 (arXiv:2506.13585)",
    ),
    Method(
        "gmpo",
        "GMPO",
        "geometric_clip",
        {"epsilon": 0.4, "epsilon_high": 0.4},
        reference="Zhao et al. 2025 (arXiv:2507.20673)",
    ),
)
_ROWS = {method.name: method for method in _PAPER}

_PUBLISHED = (
    Method(
        "entropy_adv",
        "Entropy-based advantage",
        "clip",
        {**CLIP_HIGHER, "alpha": 0.4, "kappa": 2.0},
        aggregation="token_mean",
        shaping=EntropyBonus(),
        reference="Cheng et al. 2025, Reasoning with Exploration (arXiv:2506.14758)",
        formula="A' = A + min(α sg[H], |A|/κ), then DAPO's clip",
        constants="α 0.4, κ 2: the paper's",
        notes="No code of the authors was found. Public copies of the line agree, but one "
        "multiplies the bonus by A once more, which turns it against bad answers",
    ),
    Method(
        "low_prob",
        "Advantage reweighting",
        "likelihood_weighted_clip",
        {**CLIP, "alpha": 0.2},
        aggregation="token_mean",
        reference="Yang et al. 2025, Do Not Let Low-Probability Tokens Over-Dominate "
        "(arXiv:2505.12929)",
        formula="A' = A (α π_old(y) + 1 - α), then PPO's clip",
        constants="α 0.2: the authors' K&K scripts; 0.3 where they combine it with Lopti",
        notes="As the official code's both_linear_normal: both signs",
    ),
    Method(
        "clip_cov",
        "Clip-Cov",
        "clip",
        {**CLIP, "cov_share": 2e-4, "cov_low": 1.0, "cov_high": 5.0},
        aggregation="token_mean",
        shaping=CovarianceClip(),
        reference="Cui et al. 2025, The Entropy Mechanism (arXiv:2505.22617)",
        formula="no gradient on a random share r of the unclipped tokens with cov_low < (A - "
        "mean A)(log π - mean log π) < cov_high",
        constants="share 2e-4, bounds 1 and 5: verl's and the authors' defaults",
        notes="verl takes means and draws over a micro-batch, this row over the mini-batch. The "
        "draw is a hash of the completion's tokens, so it does not depend on how they are split",
    ),
    Method(
        "kl_cov",
        "KL-Cov",
        "penalised_ratio",
        {"cov_share": 2e-4, "beta_cov": 1.0},
        aggregation="token_mean",
        shaping=CovariancePenalty(),
        reference="Cui et al. 2025, The Entropy Mechanism (arXiv:2505.22617)",
        formula="J = A w - β |log w| on the share k of largest (A - mean A)(log π - mean log π), "
        "A w elsewhere",
        constants="k 2e-4 (the authors' range ends at 2e-3), β 1: verl's and the authors' defaults",
        notes="Never clipped, as in verl. The penalty acts on tokens of advantage 0 too. verl "
        "ranks within a micro-batch, this row within the mini-batch. |log w| below 1e-5 counts "
        "as 0",
    ),
    Method(
        "aspo",
        "ASPO",
        "flipped_ratio",
        {
            "epsilon": 0.2,
            "epsilon_uncertain": 0.4,
            "entropy_quantile": 0.8,
            "ratio_cap": 3.0,
        },
        aggregation="token_mean",
        shaping=Uncertain(),
        reference="Wang et al. 2025, ASPO (arXiv:2510.06062)",
        formula="g = min(1/w, 3) while w <= 1 + ε (A > 0), min(w, 3) while w >= 1 - ε (A < 0)",
        constants="3, ε 0.2 and 0.4, quantile 0.8: the official scripts",
        notes="Gradient goes on above the bound 3. The official code's high_entropy_mask is true "
        "on low-entropy tokens: the names are swapped, the values are these",
    ),
    Method(
        "ce_gppo",
        "CE-GPPO",
        "gradient_keeping_clip",
        {**RANGE, "beta_low": 0.5, "beta_high": 1.0, "ratio_cap": 10.0},
        aggregation="token_mean",
        reference="Su et al. 2025, CE-GPPO (arXiv:2509.20712)",
        formula="g = β1 (1 - ε) below the range (A < 0), β2 (1 + ε) above it (A > 0), w inside",
        constants="β1 0.5 (1.5B; 0.75 for 7B), β2 1, dual clip 10: the official scripts",
    ),
    Method(
        "dcpo",
        "DCPO (dynamic clip)",
        "dynamic_clip",
        {**RANGE, "epsilon_high": 0.28, "ratio_cap": 10.0},
        aggregation="token_mean",
        reference="Yang et al. 2025, DCPO (arXiv:2509.02333)",
        formula="clip w to [(1 + √max(0, 1 - 4ε/π_old))/2, min(10, (1 + √(1 + 4ε_high/π_old))/2)]",
        constants="ε 0.2, ε_high 0.28, cap 10: the official code",
        notes="The paper's smoothed advantage over steps is not part of the row. Where π_old < "
        "4ε the lower bound is 1/2, as in the code",
    ),
    Method(
        "maspo",
        "MASPO",
        "variance_gate",
        {"sigma": 1.0, "alpha": 0.3, "beta_sigma": 0.03},
        aggregation="token_mean",
        reference="MASPO 2026 (arXiv:2602.17550)",
        formula="g = w exp(-(w - 1)²/2σ²) where w moved as A pushes it, w elsewhere; σ = "
        "clip(σ_b π_old^-α, σ_b, 10) clip(1 + βA, .1, 10), for A < 0 clip(1/(1 - βA), .1, 10)",
        constants="σ_b 1, α 0.3, β 0.03: the official code",
    ),
    Method(
        "hapo",
        "HAPO (heterogeneous)",
        "entropy_adaptive_clip",
        {**RANGE, "entropy_quantile": 0.8, "alpha": 1.0, "beta_entropy": 1.0},
        aggregation="token_mean",
        shaping=EntropyScale(),
        reference="HAPO 2025 (arXiv:2509.16591)",
        formula="ĥ = log H about its 0.8 quantile, in [-1, 1]; A' = A (1 + β ĥ); clip to [1 - "
        "ε(1 - α ĥ⁻), 1 + ε_high(1 + α ĥ⁺)]",
        constants="quantile 0.8, α and β 1, ε 0.2: the paper's",
        notes="The paper's. The official code divides negative values by a negative minimum, so "
        "that ĥ >= 0 everywhere and its branches for low entropy never run",
    ),
    Method(
        "dppo_tv",
        "DPPO (total variation)",
        "total_variation_mask",
        {**RANGE, "ratio_cap": 20.0},
        aggregation="token_mean",
        reference="DPPO 2026 (arXiv:2602.04879)",
        formula="g = min(w, 20), 0 where π - π_old > ε_high (A > 0) or < -ε (A <= 0)",
        constants="cap 20 and ε 0.2: verl's",
    ),
    Method(
        "dppo_kl",
        "DPPO (binary KL)",
        "binary_divergence_mask",
        {**RANGE, "ratio_cap": 20.0},
        aggregation="token_mean",
        reference="DPPO 2026 (arXiv:2602.04879)",
        formula="g = min(w, 20), 0 where the token's binary KL(π_old || π) exceeds ε and w moved "
        "as A pushes it",
        constants="cap 20 and ε 0.2: verl's",
    ),
    Method(
        "dr_grpo",
        "Dr. GRPO",
        "clip",
        {**CLIP, "max_length": None},
        aggregation="fixed_length",
        advantage_scale="none",
        reference="Liu et al. 2025 (arXiv:2503.20783)",
        formula="GRPO's clip; r - mean without the deviation; sums over tokens divided by the "
        "longest completion allowed",
        constants="ε 0.2: TRL's",
        notes="TRL's dr_grpo leaves the deviation to scale_rewards; this row sets it",
    ),
    Method(
        "bnpo",
        "BNPO (token mean)",
        "clip",
        CLIP,
        aggregation="token_mean",
        reference="TRL's loss_type='bnpo'",
        formula="GRPO's clip, averaged over all tokens",
        constants="ε 0.2: TRL's",
        notes="TRL averages over the tokens of a micro-batch, this row over the mini-batch: the "
        "same where one is the other",
    ),
    Method(
        "vespo",
        "VESPO",
        "gamma_weight",
        {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0},
        aggregation="token_mean",
        reference="VESPO 2026; TRL's loss_type='vespo'",
        formula="J = A sg[φ(W)] log π, φ(W) = e^λ W^k e^(-λW), W the ratio of the whole sequence",
        constants="k 2 and 3, λ 3 and 2: TRL's",
    ),
)

OURS = "this project, not the paper's"
_OURS = (
    replace(
        configure(_ROWS["acpo"], {"positive_share": "advantages"}),
        name="acpo_balanced",
        title="ACPO, branches balanced",
        reference=OURS,
        formula="acpo with positive_share='advantages'",
    ),
    replace(
        configure(_ROWS["global_sg"], {"positive_share": "advantages"}),
        name="global_sg_balanced",
        title="Global SG, branches balanced",
        reference=OURS,
        formula="global_sg with positive_share='advantages'",
    ),
    Method(
        "score_normalised",
        "Score-normalised SAPO",
        "soft",
        {**SOFT, "exponent": 0.5},
        shaping=ScoreNormalised(),
        reference=OURS,
        formula="A'_i = A_i (mean n / n_i)^½, n_i = Σ_t |e_y - p|²",
        constants="exponent 0.5: a small study of ours (docs/method-ours.md)",
    ),
    Method(
        "score_baseline",
        "SAPO, score-weighted baseline",
        "soft",
        SOFT,
        shaping=ScoreBaseline(),
        reference=OURS,
        formula="A'_i = A_i - Σ_j n_j A_j / Σ_j n_j over the group, n_i = Σ_t |e_y - p|²",
    ),
)
"""Rows of our own. ACPO weighs the two branches by 3δ and 3(1-δ), so that a confident policy hardly
learns from what went right; the balanced rows divide each branch by its mean weight."""

METHODS: dict[str, Method] = {
    **_ROWS,
    **{method.name: method for method in (*_PUBLISHED, *_OURS)},
}


def get_method(method: str | Method, **options: Any) -> Method:
    """Look a method up by name and set its options.

    Raises:
        ACPOError: for an unknown name (the nearest is suggested), an option the method does not
            take, or a value out of range.
    """
    if isinstance(method, str):
        if method not in METHODS:
            near = difflib.get_close_matches(method, METHODS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ACPOError(f"method={method!r} is unknown; {hint}choose from {', '.join(METHODS)}")
        method = METHODS[method]
    return configure(method, options) if options else method
