"""Rows published after the paper, or in frameworks: what people compare with."""

from functools import partial

from acpo.objectives.method import Method
from acpo.objectives.shaping import (
    CovarianceClip,
    CovariancePenalty,
    EntropyBonus,
    EntropyScale,
    Uncertain,
    UncertainMode,
)

RANGE = {"epsilon": 0.2, "epsilon_high": 0.2}
CLIP = {**RANGE, "delta": None}
CLIP_HIGHER = {**CLIP, "epsilon_high": 0.28}

_row = partial(Method, aggregation="token_mean")
"""What nearly all of them do: every token counts the same."""

PUBLISHED = (
    _row(
        "entropy_adv",
        "Entropy-based advantage",
        "clip",
        {**CLIP_HIGHER, "alpha": 0.4, "kappa": 2.0},
        shaping=EntropyBonus(),
        reference="Cheng et al. 2025, Reasoning with Exploration (arXiv:2506.14758)",
        formula="A' = A + min(α sg[H], |A|/κ), then DAPO's clip",
        constants="α 0.4, κ 2: the paper's; ε 0.2, ε_high 0.28: DAPO's",
        notes="No code of the authors was found. Public copies of the line agree, but one "
        "multiplies the bonus by A once more, which turns it against bad answers",
    ),
    _row(
        "low_prob",
        "Advantage reweighting",
        "likelihood_weighted_clip",
        {**CLIP, "alpha": 0.2},
        reference="Yang et al. 2025, Do Not Let Low-Probability Tokens Over-Dominate "
        "(arXiv:2505.12929)",
        formula="A' = A (α π_old(y) + 1 - α), then PPO's clip",
        constants="α 0.2: the authors' K&K scripts; 0.3 where they combine it with Lopti",
        notes="As the official code's both_linear_normal: both signs",
    ),
    _row(
        "clip_cov",
        "Clip-Cov",
        "clip",
        {**CLIP, "cov_share": 2e-4, "cov_low": 1.0, "cov_high": 5.0},
        shaping=CovarianceClip(),
        reference="Cui et al. 2025, The Entropy Mechanism (arXiv:2505.22617)",
        formula="no gradient on a random share r of the unclipped tokens with cov_low < (A - "
        "mean A)(log π - mean log π) < cov_high",
        constants="share 2e-4, bounds 1 and 5: verl's and the authors' defaults",
        notes="verl takes means and draws over a micro-batch, this row over the mini-batch. The "
        "draw is a hash of the completion's tokens, so it does not depend on how they are split",
    ),
    _row(
        "kl_cov",
        "KL-Cov",
        "penalised_ratio",
        {"cov_share": 2e-4, "beta_cov": 1.0},
        shaping=CovariancePenalty(),
        reference="Cui et al. 2025, The Entropy Mechanism (arXiv:2505.22617)",
        formula="J = A w - β |log w| on the share k of largest (A - mean A)(log π - mean log π), "
        "A w elsewhere",
        constants="k 2e-4 (the authors' range ends at 2e-3), β 1: verl's and the authors' defaults",
        notes="Never clipped, as in verl. The penalty acts on tokens of advantage 0 too. verl "
        "ranks within a micro-batch, this row within the mini-batch. |log w| below 1e-5 counts "
        "as 0",
    ),
    _row(
        "simko",
        "SimKO",
        "shared_clip",
        {**CLIP, "alpha": 0.01, "candidates": 3, "mode_scale": 1.1, "entropy_quantile": 0.8},
        shaping=UncertainMode(),
        reference="Peng et al. 2025, SimKO (arXiv:2510.14807)",
        formula="where H exceeds its completion's quantile: w -> (1 - α) w + (α/K) Σ_k sg[w/w_k] "
        "w_k over the K likeliest (A > 0), A -> 1.1 A if y is the mode (A < 0); then PPO's clip",
        constants="α 0.01, K 3, 1.1, quantile 0.8: the official scripts (1.1 is fixed in the code)",
        notes="The code calls an answer good by its reward of 1, this row by A > 0. A clipped "
        "token gives the likeliest nothing. At a tie for rank K the smaller id counts",
    ),
    _row(
        "aspo",
        "ASPO",
        "flipped_ratio",
        {"epsilon": 0.2, "epsilon_uncertain": 0.4, "entropy_quantile": 0.8, "ratio_cap": 3.0},
        shaping=Uncertain(),
        reference="Wang et al. 2025, ASPO (arXiv:2510.06062)",
        formula="g = min(1/w, 3) while w <= 1 + ε (A > 0), min(w, 3) while w >= 1 - ε (A < 0)",
        constants="3, ε 0.2 and 0.4, quantile 0.8: the official scripts",
        notes="Gradient goes on above the bound 3. The official code's high_entropy_mask is true "
        "on low-entropy tokens: the names are swapped, the values are these",
    ),
    _row(
        "ce_gppo",
        "CE-GPPO",
        "gradient_keeping_clip",
        {**RANGE, "beta_low": 0.5, "beta_high": 1.0, "ratio_cap": 10.0},
        reference="Su et al. 2025, CE-GPPO (arXiv:2509.20712)",
        formula="g = β1 (1 - ε) below the range (A < 0), β2 (1 + ε) above it (A > 0), w inside",
        constants="β1 0.5 (1.5B; 0.75 for 7B), β2 1, dual clip 10: the official scripts",
    ),
    _row(
        "dcpo",
        "DCPO (dynamic clip)",
        "dynamic_clip",
        {**RANGE, "epsilon_high": 0.28, "ratio_cap": 10.0},
        reference="Yang et al. 2025, DCPO (arXiv:2509.02333)",
        formula="clip w to [(1 + √max(0, 1 - 4ε/π_old))/2, min(10, (1 + √(1 + 4ε_high/π_old))/2)]",
        constants="ε 0.2, ε_high 0.28, cap 10: the official code",
        notes="The paper's smoothed advantage over steps is not part of the row. Where π_old < "
        "4ε the lower bound is 1/2, as in the code",
    ),
    _row(
        "maspo",
        "MASPO",
        "variance_gate",
        {"sigma": 1.0, "alpha": 0.3, "beta_sigma": 0.03},
        reference="MASPO 2026 (arXiv:2602.17550)",
        formula="g = w exp(-(w - 1)²/2σ²) where w moved as A pushes it, w elsewhere; σ = "
        "clip(σ_b π_old^-α, σ_b, 10) clip(1 + βA, .1, 10), for A < 0 clip(1/(1 - βA), .1, 10)",
        constants="σ_b 1, α 0.3, β 0.03: the official code",
    ),
    _row(
        "hapo",
        "HAPO (heterogeneous)",
        "entropy_adaptive_clip",
        {**RANGE, "entropy_quantile": 0.8, "alpha": 1.0, "beta_entropy": 1.0},
        shaping=EntropyScale(),
        reference="HAPO 2025 (arXiv:2509.16591)",
        formula="ĥ = log H about its 0.8 quantile, in [-1, 1]; A' = A (1 + β ĥ); clip to [1 - "
        "ε(1 - α ĥ⁻), 1 + ε_high(1 + α ĥ⁺)]",
        constants="quantile 0.8, α and β 1, ε 0.2: the paper's",
        notes="The paper's. The official code divides negative values by a negative minimum, so "
        "that ĥ >= 0 everywhere and its branches for low entropy never run",
    ),
    _row(
        "dppo_tv",
        "DPPO (total variation)",
        "total_variation_mask",
        {**RANGE, "ratio_cap": 20.0},
        reference="DPPO 2026 (arXiv:2602.04879)",
        formula="g = min(w, 20), 0 where π - π_old > ε_high (A > 0) or < -ε (A <= 0)",
        constants="cap 20: the formula's (verl's configuration sets 3); ε 0.2: verl's",
    ),
    _row(
        "dppo_kl",
        "DPPO (binary KL)",
        "binary_divergence_mask",
        {**RANGE, "ratio_cap": 20.0},
        reference="DPPO 2026 (arXiv:2602.04879)",
        formula="g = min(w, 20), 0 where the token's binary KL(π_old || π) exceeds ε and w moved "
        "as A pushes it",
        constants="cap 20: the formula's (verl's configuration sets 3); ε 0.2: verl's",
    ),
    _row(
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
    _row(
        "bnpo",
        "BNPO (token mean)",
        "clip",
        CLIP,
        own_count=True,
        reference="TRL's loss_type='bnpo'",
        formula="GRPO's clip, averaged over all tokens",
        constants="ε 0.2: TRL's",
        notes="TRL averages over the tokens of a micro-batch, this row over the mini-batch: the "
        "same where one is the other",
    ),
    _row(
        "vespo",
        "VESPO",
        "gamma_weight",
        {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0},
        reference="VESPO 2026; TRL's loss_type='vespo'",
        formula="J = A sg[φ(W)] log π, φ(W) = e^λ W^k e^(-λW), W the ratio of the whole sequence",
        constants="k 2 and 3, λ 3 and 2: TRL's",
    ),
)
