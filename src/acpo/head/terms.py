"""The loss of some tokens as one object, from the plan of an update to the kernel and back."""

import copy
from typing import Any

import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.objectives import Method, TokenStats, get_method
from acpo.objectives.batch import require_columns
from acpo.objectives.gates import SequenceMean, TokenInputs, segment_mean


class TokenTerms:
    """What the loss of `[N]` tokens is made of and, once it was computed, what came of it.

    A plain class on purpose. FSDP, DDP and autocast cast the tensors of whatever they can open,
    dataclasses and tuples included, and a ratio to old log-probabilities rounded to bfloat16 is
    another objective. So the terms go through a wrapped model unopened, results are written here,
    and nothing but the scalar loss is returned.

    Args:
        tokens: `[N]` sampled ids.
        advantages: `[N]`, final, per token; None to ask for statistics alone.
        weights: `[N]`, mask and every normaliser folded in (`aggregation_weights`).
        method: a row of `METHODS`.
        old_logp: `[N]` log-probabilities under the rollout policy; None if that is the current one.
        temperature: rollout temperature; the policy is softmax(logits / temperature).
        sequence_ids: `[N]`, equal and consecutive for the tokens of a sequence (gspo, gmpo, vespo).
        entropy_max: H_max of the Shannon rows; the largest of these tokens unless given.
        ref_logp: `[N]` log-probabilities under the reference policy, for `beta`.
        beta: weight of the KL penalty.
        corrects_kl: multiply the KL estimate by the importance ratio.
        entropy_weights: `[N]` weights of an entropy bonus, normaliser folded in.
        marks: `[N]`, what the row's shaping left for its gate (`shape_tokens`).
        **options: the method's options.

    Attributes:
        states: `[N]` places of the predicting states among a backbone's outputs (trainers).
        loss: the loss's value, float32, detached.
        stats: `[N]` statistics under the current policy; NaN where not computed.
        computed: `[N]`, which tokens have statistics.
        nonfinite: how many tokens with a gradient had non-finite logits; they were left out.
    """

    COLUMNS = (
        *("advantages", "weights", "old_logp", "sequence_ids", "ref_logp"),
        *("entropy_weights", "marks"),
    )

    states: Tensor | None = None
    loss: Tensor
    stats: TokenStats
    computed: Tensor
    nonfinite: Tensor

    def __init__(
        self,
        tokens: Tensor,
        advantages: Tensor | None = None,
        weights: Tensor | None = None,
        *,
        method: str | Method = "acpo",
        old_logp: Tensor | None = None,
        temperature: float = 1.0,
        sequence_ids: Tensor | None = None,
        entropy_max: Tensor | float | None = None,
        ref_logp: Tensor | None = None,
        beta: float = 0.0,
        corrects_kl: bool = False,
        entropy_weights: Tensor | None = None,
        marks: Tensor | None = None,
        **options: Any,
    ) -> None:
        self.method = get_method(method, **options)
        self.tokens, self.temperature = tokens, temperature
        self.advantages, self.weights, self.old_logp = advantages, weights, old_logp
        self.sequence_ids, self.entropy_max = sequence_ids, entropy_max
        self.ref_logp, self.beta, self.corrects_kl = ref_logp, beta, corrects_kl and bool(beta)
        self.entropy_weights, self.marks = entropy_weights, marks
        require_columns(self.method, beta, ref_logp, marks, shaped=advantages is not None)
        if self.method.sequence_level and advantages is not None and sequence_ids is None:
            raise ACPOError(
                f"sequence_ids is missing: method {self.method.name!r} averages over sequences"
            )
        if entropy_max is None and not isinstance(self.method.options.get("entropy_norm", ""), str):
            self.entropy_max = float(self.method.options["entropy_norm"])

    @property
    def align_tol(self) -> float:
        """The tie tolerance of the mode."""
        return float(self.method.options["align_tol"])

    def columns(self) -> dict[str, Tensor]:
        """The `[N]` columns that are there, tokens aside."""
        found = {name: getattr(self, name) for name in self.COLUMNS}
        return {name: x for name, x in found.items() if x is not None}

    def numbers(self) -> dict[str, Tensor]:
        """The columns but for `sequence_ids`."""
        return {name: x for name, x in self.columns().items() if name != "sequence_ids"}

    def with_columns(self, **columns: Any) -> "TokenTerms":
        """The same loss with some columns, or other parts, replaced."""
        other = copy.copy(self)
        for name, value in columns.items():
            setattr(other, name, value)
        return other

    def at(self, where: slice | Tensor | tuple[Tensor, ...]) -> "TokenTerms":
        """The same loss for some of the tokens."""
        picked = {name: x[where] for name, x in self.columns().items()}
        return self.with_columns(tokens=self.tokens[where], **picked)

    def wide(self, dtype: torch.dtype) -> "TokenTerms":
        """Columns as kernels read them: one dtype, stride 1."""
        return self.with_columns(
            tokens=self.tokens.contiguous(),
            **{name: x.to(dtype).contiguous() for name, x in self.numbers().items()},
        )

    def without(self, rows: Tensor) -> "TokenTerms":
        """The same loss with no gradient from some tokens, so that they never reach a product."""
        weights = {k: v for k, v in self.columns().items() if k in ("weights", "entropy_weights")}
        return self.with_columns(**{k: v.masked_fill(rows, 0.0) for k, v in weights.items()})

    def inputs(self, stats: TokenStats, sequence_mean: SequenceMean) -> TokenInputs:
        """What gate and credit read, given what the current policy says of the tokens."""
        assert self.advantages is not None
        old_logp = stats.logp.detach() if self.old_logp is None else self.old_logp
        own = (self.advantages, sequence_mean, self.method.options, self.entropy_max, self.marks)
        return TokenInputs(stats, old_logp, *own)

    def row_weight(self) -> Tensor:
        """The scale of each token's gradient."""
        assert self.weights is not None
        if self.entropy_weights is None:
            return self.weights.abs()
        return torch.maximum(self.weights.abs(), self.entropy_weights.abs())

    def active(self) -> Tensor:
        """Tokens that can have a gradient."""
        assert self.weights is not None and self.advantages is not None
        live = self.weights != 0
        if not self.beta:
            moved = self.advantages != 0
            if self.method.shaping.acts_alone and self.marks is not None:
                moved = moved | (self.marks != 0)
            live = live & moved
        if self.entropy_weights is not None:
            live = live | (self.entropy_weights != 0)
        return live

    def uneven(self) -> Tensor:
        """Tokens whose advantage or weight is not that of their sequence's other tokens."""
        assert self.weights is not None and self.advantages is not None
        assert self.sequence_ids is not None
        valid = self.weights != 0
        mean, found = segment_mean(self.sequence_ids, valid), torch.zeros_like(valid)
        for column in (self.advantages.double(), self.weights.double()):
            found |= (column - mean(column)).abs() > 1e-5 * column.abs()
        return found & valid
