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
from acpo.objectives.published import CLIP, CLIP_HIGHER, PUBLISHED
from acpo.objectives.shaping import ScoreNormalised, TopEntropy

UNCERTAIN = Affine(0.0, 1.0)  # S
CONFIDENT = Affine(1.0, -1.0)  # 1 - S
SCALED = Branches(
    UNCERTAIN._replace(scale="mismatch_scale"), CONFIDENT._replace(scale="mismatch_scale")
)

SOFT = {"tau_pos": 1.0, "tau_neg": 1.05}
GATE_CONSTANTS = "τ 1 for A > 0, 1.05 elsewhere: SAPO's"
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
    known = {"offset": ("offset 2", "2/τ"), "mismatch_scale": ("scale 3", "1 + 2/τ")}
    ours = [f"{what} (= {why} at τ 1)" for name, (what, why) in known.items() if name in options]
    if "entropy_norm" in options:
        ours.append("H_max the mini-batch's")
    of_acpo = f"; {', '.join(ours)}: ACPO's" if ours else ""
    rest.setdefault("constants", GATE_CONSTANTS + of_acpo)
    rule = {"detached": rest.pop("detached", False), "mismatched": rest.pop("mismatched", None)}
    credit = CreditRule(Branches(positive, nonpositive), signal=signal, **rule)
    return Method(name, title, "soft", options, credit, **rest)


_PAPER = (
    Method(
        "grpo",
        "GRPO",
        "clip",
        CLIP,
        reference="Shao et al. 2024, DeepSeekMath (arXiv:2402.03300)",
        formula="min(w A, clip(w, 1 - ε, 1 + ε) A)",
        constants="ε 0.2: TRL's and verl's",
    ),
    Method(
        "dapo",
        "DAPO",
        "clip",
        CLIP_HIGHER,
        aggregation="token_mean",
        reference="Yu et al. 2025 (arXiv:2503.14476)",
        formula="min(w A, clip(w, 1 - ε, 1 + ε_high) A), averaged over all tokens",
        constants="ε 0.2, ε_high 0.28: the paper's",
        notes="Dynamic sampling and overlong handling are the trainer's. No dual clip",
    ),
    Method(
        "gspo",
        "GSPO",
        "sequence_clip",
        {**CLIP, "epsilon": 3e-4, "epsilon_high": 4e-4},
        reference="Zheng et al. 2025 (arXiv:2507.18071)",
        formula="min(s A, clip(s, 1 - ε, 1 + ε_high) A), s the geometric mean of w over a sequence",
        constants="ε 3e-4, ε_high 4e-4: the paper's",
        notes="With one advantage per token, the paper's GSPO-token",
    ),
    Method(
        "sapo",
        "SAPO",
        "soft",
        SOFT,
        reference="Gao et al. 2025 (arXiv:2511.20347)",
        constants=GATE_CONSTANTS,
        notes="Token level, as in its equation and every framework; its text says sequence level",
    ),
    Method(
        "8020",
        "80/20",
        "clip",
        {**CLIP_HIGHER, "top_entropy_quantile": 0.2},
        aggregation="token_mean",
        shaping=TopEntropy(),
        reference="Wang et al. 2025 (arXiv:2506.01939)",
        formula="DAPO on the 20% of tokens of highest entropy, the denominator all tokens",
        constants="share 0.2: the paper's; ε 0.2, ε_high 0.28: DAPO's",
        notes="Quantile over the mini-batch; TRL takes it over a micro-batch",
    ),
    Method(
        "gtpo",
        "GTPO (trajectory)",
        "ratio",
        {"gamma": 0.1, "entropy_limit": math.log(2), "initial_entropy": 0.0},
        shaping=Conflict(),
        advantage_scale="none",
        reference="Simoni et al. 2025 (arXiv:2508.03772)",
        formula="(A - γ mean H) 2^hits w for A > 0, 0 on conflict tokens of bad answers",
        constants="γ 0.1, limit ln 2: the authors' README; the initial entropy is measured",
        notes="Follows the README. The official code has threshold 0.7, w = 1, and divides each "
        "sequence by its number of conflicts",
    ),
    Method(
        "gtpo_entropy",
        "GTPO (token entropy)",
        "clip",
        {**CLIP_HIGHER, "alpha1": 1.0, "alpha2": 0.1, "norm": "split"},
        aggregation="token_mean",
        shaping=EntropyReward(),
        reference="Tan et al. 2025 (arXiv:2508.04349)",
        formula="rewards shaped by a token's share of its group's entropy, whitened; DAPO's clip",
        constants="α1 1, α2 0.1: the paper's; ε 0.2, ε_high 0.28: DAPO's",
        notes="No official code was found. Entropies are floored where the paper adds ε",
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
        reference="this project: weighs tokens as ACPO does at w = 1, within 3.3%",
    ),
    Method(
        "cispo",
        "CISPO",
        "capped_reinforce",
        {"epsilon_high": 5.0},
        aggregation="token_mean",
        reference="MiniMax-M1 2025 (arXiv:2506.13585)",
        formula="sg[min(w, cap)] A log π",
        constants="cap 5: TRL's",
    ),
    Method(
        "gmpo",
        "GMPO",
        "geometric_clip",
        {"epsilon": 0.4, "epsilon_high": 0.4},
        reference="Zhao et al. 2025 (arXiv:2507.20673)",
        formula="A times the geometric mean of w over a sequence, log w clipped to ±ε",
        constants="ε 0.4, so that w lies in (e^-0.4, e^0.4): the paper's",
    ),
)
_ROWS = {method.name: method for method in _PAPER}

OURS = "this project, not the paper's"
_OURS = (
    *(
        replace(
            configure(row, {"positive_share": "advantages"}),
            name=f"{row.name}_balanced",
            title=f"{row.title}, branches balanced",
            reference=OURS,
            formula=f"{row.name} with positive_share='advantages'",
            constants=f"{row.constants}; the share is the advantages' own",
        )
        for row in (_ROWS["acpo"], _ROWS["global_sg"])
    ),
    Method(
        "score_normalised",
        "Score-normalised SAPO",
        "soft",
        {**SOFT, "exponent": 0.5},
        shaping=ScoreNormalised(),
        reference=OURS,
        formula="A'_i = A_i (mean n / n_i)^½, n_i = Σ_t |e_y - p|², of p only y and the mode",
        constants=f"{GATE_CONSTANTS}; exponent 0.5: a small study of ours (docs/method-ours.md)",
    ),
    Method(
        "score_baseline",
        "SAPO, score-weighted baseline",
        "soft",
        SOFT,
        shaping=ScoreBaseline(),
        reference=OURS,
        formula="A'_i = A_i - Σ_j n_j A_j / Σ_j n_j over the group, n as in score_normalised",
        constants=GATE_CONSTANTS,
    ),
)
"""Rows of our own. ACPO weighs the two branches by 3δ and 3(1-δ), so that a confident policy hardly
learns from what went right; the balanced rows divide each branch by its mean weight."""

METHODS: dict[str, Method] = {
    **_ROWS,
    **{method.name: method for method in (*PUBLISHED, *_OURS)},
}


def get_method(method: str | int | Method, **options: Any) -> Method:
    """Look a method up by name and set its options.

    Raises:
        ACPOError: for an unknown name (the nearest is suggested), an option the method does not
            take, or a value out of range.
    """
    if isinstance(method, int):  # 8020, as YAML reads it
        method = str(method)
    if isinstance(method, str):
        if method not in METHODS:
            near = difflib.get_close_matches(method, METHODS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ACPOError(f"method={method!r} is unknown; {hint}choose from {', '.join(METHODS)}")
        method = METHODS[method]
    return configure(method, options) if options else method
