"""`fused_policy_loss`: the loss and its gradients from hidden states, in the forward pass."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.head.call import (
    HeadCall,
    InputGradients,
    gradient_pass,
    spread_gradients,
    spread_rows,
    unless_all,
)
from acpo.head.checks import check_shapes, check_values
from acpo.head.coefficients import missing_sequence_mean, row_coefficients
from acpo.head.lookup import gathered
from acpo.head.passes import Head, Wanted, compute_statistics, run_pass
from acpo.head.projection import Projection
from acpo.head.rows import Policy, RowStats, Sparsity
from acpo.objectives import Method, TokenStats, get_method
from acpo.objectives.gates import segment_mean
from acpo.objectives.methods import SEQUENCE_GATES


class PolicyLoss(NamedTuple):
    """What `fused_policy_loss` returns.

    Attributes:
        loss: the scalar loss, differentiable once.
        stats: `[N]` statistics under the current policy; NaN where not computed.
        computed: `[N]`, which rows have statistics.
        nonfinite: how many rows with a gradient had non-finite logits; they were left out.
    """

    loss: Tensor
    stats: TokenStats
    computed: Tensor
    nonfinite: Tensor


def fused_policy_loss(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    *,
    old_logp: Tensor | None,
    advantages: Tensor,
    weights: Tensor,
    method: str | Method = "acpo",
    bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    sequence_ids: Tensor | None = None,
    entropy_max: Tensor | float | None = None,
    ref_logp: Tensor | None = None,
    beta: float = 0.0,
    entropy_weights: Tensor | None = None,
    all_stats: bool = False,
    sparse: float | None = None,
    logits_dtype: torch.dtype | None = None,
    logits_bytes: int | None = None,
    **options: Any,
) -> PolicyLoss:
    """Policy loss and its gradients from hidden states, in three vocabulary products.

    Advantages, old log-probabilities and normalisers are known before the head runs, so the
    gradients are made in the forward pass. Rows that cannot have a gradient never reach a product.

    Args:
        hidden: `[N, H]` states that predict `tokens`.
        weight: `[V, H]` output embedding; two products if it needs no gradient.
        tokens: `[N]` sampled ids.
        old_logp: `[N]` log-probabilities under the rollout policy; None if that is the current one.
        advantages: `[N]`, per token, as `token_advantages` returns them.
        weights: `[N]`, mask and every normaliser folded in (`aggregation_weights`).
        method: a row of `METHODS`.
        bias, temperature, softcap, logit_scale: as in `token_stats`.
        sequence_ids: `[N]`, equal and consecutive for the tokens of a sequence (gspo, gmpo).
        entropy_max: H_max of the Shannon rows; this call's maximum unless given.
        ref_logp: `[N]` log-probabilities under the reference policy, for `beta`.
        beta: weight of the KL penalty.
        entropy_weights: `[N]` weights of an entropy bonus, normaliser folded in.
        all_stats: also compute the statistics of rows without gradient.
        sparse: skip gradient entries below this size, relative to the row's weight. Approximate.
        logits_dtype: float32 unless given; bfloat16 is faster at small H and less exact.
        logits_bytes: memory for a chunk of logits; from the device's size unless given.
        **options: the method's options.
    """
    method = get_method(method, **options)
    projection = Projection(temperature, softcap, logit_scale)
    projection.check()
    columns = {"advantages": advantages, "weights": weights}
    optional = {
        "old_logp": old_logp,
        "sequence_ids": sequence_ids,
        "ref_logp": ref_logp,
        "entropy_weights": entropy_weights,
    }
    columns |= {name: x for name, x in optional.items() if x is not None}
    check_shapes(hidden, weight, tokens, bias, **columns)
    if beta and ref_logp is None:
        raise ACPOError(f"ref_logp is missing: beta={beta} needs the reference policy's log-probs")
    if method.gate in SEQUENCE_GATES and sequence_ids is None:
        raise ACPOError(f"sequence_ids is missing: method {method.name!r} averages over sequences")
    if sparse is not None and not sparse >= 0:
        raise ACPOError(f"sparse={sparse} must not be negative; pass None for the exact gradient")
    if entropy_max is None and not isinstance(method.options.get("entropy_norm", ""), str):
        entropy_max = float(method.options["entropy_norm"])
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32

    def column(x: Tensor) -> Tensor:
        return x.to(wide).contiguous()  # kernels read columns with stride 1

    policy = Policy(
        method,
        None if old_logp is None else column(old_logp),
        column(advantages),
        column(weights),
        entropy_max,
        None if ref_logp is None else column(ref_logp),
        beta,
        None if entropy_weights is None else column(entropy_weights),
    )
    active = policy.active()
    broken = ~torch.isfinite(hidden.detach().sum(1, dtype=wide))
    numbers = {name: x for name, x in columns.items() if name != "sequence_ids"}
    n_active, n_broken = check_values(tokens, weight.shape[0], numbers, active, broken & active)
    if n_broken:
        policy = policy.without(broken)
        active = policy.active()
        n_active -= n_broken
    rows = None if n_active == tokens.shape[0] else active.nonzero()[:, 0]
    align_tol = float(method.options["align_tol"])
    call = HeadCall.make(
        hidden,
        tokens,
        projection,
        logits_dtype=logits_dtype,
        logits_bytes=logits_bytes,
        align_tol=align_tol,
    )
    loss, *stats, computed, nonfinite = _FusedLoss.apply(
        hidden, weight, bias, call, policy, rows, sequence_ids, all_stats, sparse
    )
    return PolicyLoss(loss, TokenStats(*stats), computed, nonfinite + n_broken)


def _needs_statistics_first(policy: Policy) -> bool:
    """Whether a row's coefficients depend on other rows of the call."""
    averages = policy.method.gate in SEQUENCE_GATES
    return averages or (policy.method.credit.signal == "entropy" and policy.entropy_max is None)


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        call: HeadCall,
        policy: Policy,
        rows: Tensor | None,
        sequence_ids: Tensor | None,
        all_stats: bool,
        sparse: float | None,
    ) -> tuple[Tensor, ...]:
        wanted = Wanted(*ctx.needs_input_grad[:3])
        with gathered(weight, bias):
            head = call.head(hidden, weight, bias)
            if _needs_statistics_first(policy):
                outcome = _two_passes(head, call, policy, sequence_ids, wanted, all_stats, sparse)
            else:
                outcome = _one_pass(head, call, policy, rows, wanted, all_stats, sparse)
            value, stats, computed, result = outcome
            ctx.gradients = result.cast(hidden, weight, bias) if wanted.any() else None
        nonfinite = (computed & policy.active() & ~stats.finite()).sum()
        outputs = (*stats.tokens(), computed, nonfinite)
        ctx.mark_non_differentiable(*outputs)
        return (value.sum(), *outputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(
                "the gradients of fused_policy_loss were made in its forward pass and have been "
                "used; call it again instead of backpropagating twice"
            )
        gradients, ctx.gradients = ctx.gradients, None
        return *(_scaled_(g, grad) for g in gradients), None, None, None, None, None, None


def _scaled_(gradient: Tensor | None, by: Tensor) -> Tensor | None:
    """Multiply in place, without asking the device what the factor is."""
    if gradient is None:
        return None
    if gradient.is_cuda and gradient.dtype != torch.float64:
        from acpo.head import triton

        return triton.scale_(gradient, by)
    return gradient.mul_(by)


_Outcome = tuple[Tensor, RowStats, Tensor, InputGradients]


def _one_pass(
    head: Head,
    call: HeadCall,
    policy: Policy,
    rows: Tensor | None,
    wanted: Wanted,
    all_stats: bool,
    sparse: float | None,
) -> _Outcome:
    """Methods whose coefficients depend on the token alone: statistics and gradient together."""
    part, tokens, local = _select_rows(head, call.tokens, policy, rows)
    stats = RowStats.empty(tokens.shape[0], tokens.device, policy.weights.dtype)
    value = torch.empty_like(local.weights)
    needs_gradient = wanted.any()
    sparsity = None if sparse is None else Sparsity(sparse, local.row_weight())

    def step(raw: Tensor, span: slice) -> Any:
        here, out = local.at(span), stats.at(span)
        if not needs_gradient:
            part.backend.statistics(raw, tokens[span], part.projection, call.align_tol, out)
            value[span] = row_coefficients(out, here).value
            return None
        c, gradient = part.backend.policy_gradient(
            raw,
            tokens[span],
            part.projection,
            here,
            out,
            part.hidden.dtype,
            sparsity and sparsity.at(span),
        )
        value[span] = c.value
        return gradient

    gradients = run_pass(part, step, wanted, sparse=sparse is not None)
    result = spread_gradients(gradients, rows, call.tokens.shape[0])
    if rows is None or not all_stats:
        return value, *_everywhere(stats, rows, call.tokens), result
    everywhere, computed = _everywhere(stats, rows, call.tokens)
    rest = (~computed).nonzero()[:, 0]
    others = compute_statistics(head.at(rest), call.tokens[rest], call.align_tol)
    everywhere.put(rest, others)
    return value, everywhere, torch.ones_like(computed), result


def _two_passes(
    head: Head,
    call: HeadCall,
    policy: Policy,
    sequence_ids: Tensor | None,
    wanted: Wanted,
    all_stats: bool,
    sparse: float | None,
) -> _Outcome:
    """Coefficients that need other tokens' statistics: those first, then the gradient.

    Only rows whose coefficients are not 0, so not clipped ones, reach the second pass.
    """
    # A sequence's mean and the largest entropy include tokens whose own gradient is 0.
    asked = (policy.weights != 0) | policy.active()
    rows = None if all_stats else unless_all(asked)
    part, tokens, local = _select_rows(head, call.tokens, policy, rows)
    stats = compute_statistics(part, tokens, call.align_tol)
    valid = (local.weights != 0) & stats.finite()
    ids = sequence_ids if rows is None or sequence_ids is None else sequence_ids[rows]
    if local.method.credit.signal == "entropy" and local.entropy_max is None:
        highest = torch.where(valid, stats.entropy, 0.0).max() if len(tokens) else 1.0
        highest = torch.as_tensor(highest, device=tokens.device).clamp_min(1e-8)
        local = replace(local, entropy_max=highest)
    mean = missing_sequence_mean if ids is None else segment_mean(ids, valid)
    c = row_coefficients(stats, local, mean)
    sparsity = None if sparse is None else Sparsity(sparse, local.row_weight())
    result = InputGradients(None, None, None)
    if wanted.any():
        result = gradient_pass(part, tokens, stats, c, wanted, sparsity)
        if rows is not None and result.hidden is not None:
            result = result._replace(hidden=spread_rows(result.hidden, rows, call.tokens.shape[0]))
    return c.value, *_everywhere(stats, rows, call.tokens), result


def _select_rows(
    head: Head, tokens: Tensor, policy: Policy, rows: Tensor | None
) -> tuple[Head, Tensor, Policy]:
    if rows is None:
        return head, tokens, policy
    return head.at(rows), tokens[rows], policy.at(rows)


def _everywhere(stats: RowStats, rows: Tensor | None, tokens: Tensor) -> tuple[RowStats, Tensor]:
    """Statistics of all rows, NaN where not computed, and which were."""
    if rows is None:
        return stats, torch.ones_like(tokens, dtype=torch.bool)
    whole = RowStats.empty(tokens.shape[0], tokens.device, stats.logp.dtype).fill_unknown()
    whole.put(rows, stats)
    return whole, torch.zeros_like(tokens, dtype=torch.bool).index_fill_(0, rows, True)
