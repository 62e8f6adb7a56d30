"""The paper's tables as data: one entry per method, made of shared parts.

Adding a row is adding an entry to `METHODS`.
"""

import difflib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from acpo.errors import ACPOError, ACPOWarning
from acpo.objectives.credit import Affine, Branches, CreditRule
from acpo.objectives.shaping import Balance, Conflict, EntropyReward, Shaping, TopEntropy

SEQUENCE_GATES = ("sequence_clip", "geometric_clip")
"""Gates that average log ratios over the sequence."""

ONE = Affine(1.0, 0.0)
UNCERTAIN = Affine(0.0, 1.0)  # S
OFFSET_UNCERTAIN = Affine("offset", 1.0)  # offset + S
CONFIDENT = Affine(1.0, -1.0)  # 1 - S
SCALED = Branches(
    UNCERTAIN._replace(scale="mismatch_scale"), CONFIDENT._replace(scale="mismatch_scale")
)

UNIFORM = CreditRule(Branches(ONE, ONE))
PLAIN = Shaping()


@dataclass(frozen=True)
class Method:
    """An objective: A · f(w) · c per token, and how tokens are weighed against each other.

    Attributes:
        name: what users type.
        title: what people call it.
        gate: how the ratio enters; a key of `GATES`.
        options: every option the method takes, with its value. Others are refused.
        credit: the multipliers (c+, c-).
        aggregation: "sequence_mean" averages tokens within a sequence, then sequences;
            "token_mean" averages all tokens of the batch.
        shaping: how one advantage per sequence becomes one per token.
        advantage_scale: what `group_advantages` divides by for this method.
        reference: where it comes from.
    """

    name: str
    title: str
    gate: str
    options: Mapping[str, Any]
    credit: CreditRule = UNIFORM
    aggregation: Literal["sequence_mean", "token_mean"] = "sequence_mean"
    shaping: Shaping = PLAIN
    advantage_scale: Literal["std", "none"] = "std"
    reference: str = field(default="ACPO, ablation table")

    def __call__(self, **options: Any) -> "Method":
        """The same method with some options changed and checked."""
        return configure(self, options)

    @property
    def sequence_level(self) -> bool:
        """Whether the gate averages log ratios over the sequence."""
        return self.gate in SEQUENCE_GATES

    @property
    def needs(self) -> frozenset[str]:
        """Statistics of the current policy that the whole mini-batch's first gradient waits for."""
        maximum = {"entropy"} if self.options.get("entropy_norm") == "batch_max" else set()
        return frozenset({*self.shaping.needs, *maximum})

    @property
    def shapes(self) -> bool:
        """Whether the row makes token advantages of its own."""
        return type(self.shaping).shape is not Shaping.shape

    @property
    def needs_whole_batch(self) -> bool:
        """Whether the row looks at all tokens of a mini-batch before its first gradient."""
        return bool(self.needs or self.shapes)


SOFT = {"tau_pos": 1.0, "tau_neg": 1.05, "align_tol": 1e-6}
CLIP = {"epsilon": 0.2, "epsilon_high": 0.2, "align_tol": 1e-6}
CLIP_HIGHER = {**CLIP, "epsilon_high": 0.28}
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


_ROWS = (
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
        {"gamma": 0.1, "entropy_limit": math.log(2), "initial_entropy": 0.0, "align_tol": 1e-6},
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
        {"epsilon_high": 5.0, "align_tol": 1e-6},
        aggregation="token_mean",
        reference="MiniMax-M1 2025 (arXiv:2506.13585)",
    ),
    Method(
        "gmpo",
        "GMPO",
        "geometric_clip",
        {**CLIP, "epsilon": 0.4, "epsilon_high": 0.4},
        reference="Zhao et al. 2025 (arXiv:2507.20673)",
    ),
)

BALANCE = Balance()
_OURS = (
    _credit_row(
        "acpo_balanced",
        "ACPO, branches balanced",
        OFFSET_UNCERTAIN,
        CONFIDENT,
        {**OFFSET, "mismatch_scale": 3.0},
        mismatched=SCALED,
        shaping=BALANCE,
        reference="this project, not the paper's",
    ),
    _credit_row(
        "global_sg_balanced",
        "Global SG, branches balanced",
        UNCERTAIN,
        CONFIDENT,
        SOFT,
        detached=True,
        shaping=BALANCE,
        reference="this project, not the paper's",
    ),
)
"""Rows of our own. ACPO weighs the two branches by 3δ and 3(1-δ), so that a confident policy hardly
learns from what went right; these divide each branch by its mean weight."""

METHODS: dict[str, Method] = {method.name: method for method in (*_ROWS, *_OURS)}

ALIASES = {"sapo_temperature_pos": "tau_pos", "sapo_temperature_neg": "tau_neg"}
"""TRL's names for options we share."""


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


def configure(method: Method, options: Mapping[str, Any]) -> Method:
    """A copy of `method` with `options` merged in and checked."""
    renamed = {ALIASES.get(name, name): value for name, value in options.items()}
    for name, value in renamed.items():
        if name not in method.options:
            raise ACPOError(
                f"{name}={value!r} is not an option of method {method.name!r}; "
                f"it takes {', '.join(method.options)}"
            )
        _check_option(name, value)
    configured = replace(method, options={**method.options, **renamed})
    _warn_if_reversing(configured)
    return configured


_WORDS = {"offset": "auto", "mismatch_scale": "auto", "entropy_norm": "batch_max"}
_POSITIVE = {"tau_pos", "tau_neg", "mismatch_scale", "entropy_norm", "entropy_limit"}


def _check_option(name: str, value: Any) -> None:
    if name == "norm":
        if value not in ("split", "joint"):
            raise ACPOError(f"norm={value!r} is unknown; use 'split' (the paper's) or 'joint'")
        return
    if isinstance(value, str) and value == _WORDS.get(name):
        return
    if (
        isinstance(value, str | bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
    ):
        word = f" or {_WORDS[name]!r}" if name in _WORDS else ""
        raise ACPOError(f"{name}={value!r} must be a finite number{word}")
    if name in _POSITIVE and value <= 0:
        raise ACPOError(f"{name}={value} must be positive")
    if name not in _POSITIVE and value < 0:
        raise ACPOError(f"{name}={value} must not be negative")
    if name == "top_entropy_quantile" and not 0 < value <= 1:
        raise ACPOError(f"top_entropy_quantile={value} must lie in (0, 1]; the 80/20 rule uses 0.2")


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
