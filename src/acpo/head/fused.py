"""`token_stats` and `fused_policy_loss`: what the trainers call."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.head.checks import check_inputs
from acpo.head.coefficients import row_coefficients
from acpo.head.lookup import gathered
from acpo.head.passes import Gradients, Head, Wanted, compute_statistics, run_pass
from acpo.head.projection import Projection, logits_dtype_for
from acpo.head.rows import Policy, RowCoefficients, RowStats, Sparsity
from acpo.objectives import Method, TokenStats, get_method
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


@dataclass
class _Call:
    """Everything of one call that is not differentiated."""

    tokens: Tensor
    projection: Projection
    logits_dtype: torch.dtype | None
    logits_bytes: int | None
    align_tol: float

    def head(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Head:
        device = hidden.device.type
        dtype = hidden.dtype
        if torch.is_autocast_enabled(device) and dtype != torch.float64:
            dtype = torch.get_autocast_dtype(device)
        if device == "cpu" and dtype in (torch.bfloat16, torch.float16):
            dtype = torch.float32  # CPU half products round the logits
        logits = logits_dtype_for(hidden.to(dtype) if dtype != hidden.dtype else hidden, None)
        if self.logits_dtype is not None and device != "cpu":
            logits = self.logits_dtype
        return Head(
            hidden.detach().to(dtype),
            weight.detach().to(dtype),
            None if bias is None else bias.detach().to(logits),
            self.projection,
            logits,
            self.logits_bytes,
        )


def token_stats(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    align_tol: float = 1e-6,
    differentiable: tuple[str, ...] = ("logp",),
    logits_dtype: torch.dtype | None = None,
    logits_bytes: int | None = None,
) -> TokenStats:
    """Statistics of the policy at each token, without `[N, V]` logits.

    Args:
        hidden: `[N, H]` states that predict `tokens`.
        weight: `[V, H]` output embedding.
        tokens: `[N]` sampled ids.
        bias: `[V]`, if the head has one.
        temperature: rollout temperature.
        softcap: the model's final logit softcapping.
        logit_scale: the model's logit multiplier.
        align_tol: largest p_max - p_y at which the sampled token counts as the mode.
        differentiable: which of "logp", "log_pmax" and "entropy" carry gradient. The backward
            pass recomputes the logits.
        logits_dtype: dtype of a chunk of logits; float32 unless given.
        logits_bytes: memory for a chunk of logits; from the device's size unless given.
    """
    unknown = set(differentiable) - {"logp", "log_pmax", "entropy"}
    if unknown:
        raise ACPOError(
            f"differentiable={differentiable} names {', '.join(sorted(unknown))}; "
            "choose from logp, log_pmax, entropy"
        )
    projection = Projection(temperature, softcap, logit_scale)
    projection.check()
    check_inputs(hidden, weight, tokens, bias)
    logits_dtype_for(hidden, logits_dtype)
    call = _Call(tokens, projection, logits_dtype, logits_bytes, align_tol)
    return TokenStats(*_Statistics.apply(hidden, weight, bias, call, differentiable))


class _Statistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        call: _Call,
        differentiable: tuple[str, ...],
    ) -> tuple[Tensor, ...]:
        with gathered(weight, bias):
            stats = compute_statistics(call.head(hidden, weight, bias), call.tokens, call.align_tol)
        ctx.save_for_backward(hidden, weight, bias)
        ctx.call, ctx.stats = call, stats
        outputs = stats.tokens()
        ctx.mark_non_differentiable(
            *(x for name, x in outputs._asdict().items() if name not in differentiable)
        )
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        g_logp, g_log_pmax, _, g_entropy = grads
        hidden, weight, bias = ctx.saved_tensors
        stats: RowStats = ctx.stats
        zero = torch.zeros_like(stats.logp)
        finite = stats.finite()

        def usable(gradient: Tensor | None) -> Tensor:
            return zero if gradient is None else torch.where(finite, gradient, 0.0)

        coefficients = RowCoefficients(zero, usable(g_logp), usable(g_log_pmax), usable(g_entropy))
        wanted = Wanted(*ctx.needs_input_grad[:3])
        with gathered(weight, bias):
            head = ctx.call.head(hidden, weight, bias)
            result = _gradient_pass(head, ctx.call.tokens, stats, coefficients, wanted, None)
            return *result.cast(hidden, weight, bias), None, None


class _Result(NamedTuple):
    """Gradients for the inputs as the caller passed them."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    def cast(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        pairs = zip(self, (hidden, weight, bias), strict=True)
        return tuple(None if g is None or x is None else g.to(x.dtype) for g, x in pairs)


def _scatter(gradients: Gradients, rows: Tensor | None, total: int) -> _Result:
    """Put the hidden-state gradients of the computed rows back among all rows."""
    dh = gradients.hidden
    if dh is not None and rows is not None:
        dh = dh.new_zeros(total, dh.shape[1]).index_copy_(0, rows, dh)
    dw = gradients.weight
    if dw is None and gradients.wanted.weight:
        dw = torch.zeros_like(gradients.head.weight)
    return _Result(dh, dw, gradients.bias)


def _gradient_pass(
    head: Head,
    tokens: Tensor,
    stats: RowStats,
    coefficients: RowCoefficients,
    wanted: Wanted,
    sparsity: Sparsity | None,
) -> _Result:
    """Gradients from known coefficients, over the rows where any is not 0."""
    total = tokens.shape[0]
    live = (coefficients.a != 0) | (coefficients.bm != 0) | (coefficients.h != 0)
    rows = _unless_all(live)
    if rows is not None:
        head, tokens = head.at(rows), tokens[rows]
        stats, coefficients = stats.at(rows), coefficients.at(rows)
        sparsity = sparsity and sparsity.at(rows)

    def step(raw: Tensor, span: slice) -> Any:
        return head.backend.gradient(
            raw,
            tokens[span],
            head.projection,
            stats.at(span),
            coefficients.at(span),
            head.hidden.dtype,
            sparsity and sparsity.at(span),
        )

    return _scatter(run_pass(head, step, wanted, sparse=sparsity is not None), rows, total)


def _unless_all(mask: Tensor) -> Tensor | None:
    """Indices of the true rows, or None if that is every row."""
    rows = mask.nonzero()[:, 0]
    return None if rows.numel() == mask.numel() else rows


def fused_policy_loss(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    *,
    old_logp: Tensor,
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
        old_logp: `[N]` log-probabilities under the rollout policy.
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
    columns = {"old_logp": old_logp, "advantages": advantages, "weights": weights}
    optional = {
        "sequence_ids": sequence_ids,
        "ref_logp": ref_logp,
        "entropy_weights": entropy_weights,
    }
    columns |= {name: x for name, x in optional.items() if x is not None}
    check_inputs(hidden, weight, tokens, bias, **columns)
    if beta and ref_logp is None:
        raise ACPOError(f"ref_logp is missing: beta={beta} needs the reference policy's log-probs")
    if method.gate in SEQUENCE_GATES and sequence_ids is None:
        raise ACPOError(f"sequence_ids is missing: method {method.name!r} averages over sequences")
    if sparse is not None and not sparse >= 0:
        raise ACPOError(f"sparse={sparse} must not be negative; pass None for the exact gradient")
    logits_dtype_for(hidden, logits_dtype)
    if entropy_max is None and not isinstance(method.options.get("entropy_norm", ""), str):
        entropy_max = float(method.options["entropy_norm"])
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    policy = Policy(
        method,
        old_logp.to(wide),
        advantages.to(wide),
        weights.to(wide),
        entropy_max,
        None if ref_logp is None else ref_logp.to(wide),
        beta,
        None if entropy_weights is None else entropy_weights.to(wide),
    )
    broken = ~torch.isfinite(hidden.detach()).all(1)
    nonfinite_hidden = (policy.active() & broken).sum()
    policy = policy.without(broken)
    align_tol = float(method.options["align_tol"])
    call = _Call(tokens, projection, logits_dtype, logits_bytes, align_tol)
    loss, *stats, computed, nonfinite = _FusedLoss.apply(
        hidden, weight, bias, call, policy, sequence_ids, all_stats, sparse
    )
    return PolicyLoss(loss, TokenStats(*stats), computed, nonfinite + nonfinite_hidden)


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
        call: _Call,
        policy: Policy,
        sequence_ids: Tensor | None,
        all_stats: bool,
        sparse: float | None,
    ) -> tuple[Tensor, ...]:
        wanted = Wanted(*ctx.needs_input_grad[:3])
        with gathered(weight, bias):
            head = call.head(hidden, weight, bias)
            run = _two_passes if _needs_statistics_first(policy) else _one_pass
            value, stats, computed, result = run(
                head, call, policy, sequence_ids, wanted, all_stats, sparse
            )
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
        return *(_scaled_(g, grad) for g in gradients), None, None, None, None, None


def _scaled_(gradient: Tensor | None, by: Tensor) -> Tensor | None:
    """Multiply in place, without asking the device what the factor is."""
    if gradient is None:
        return None
    if gradient.is_cuda:
        from acpo.head import triton

        return triton.scale_(gradient, by)
    return gradient.mul_(by)


_Outcome = tuple[Tensor, RowStats, Tensor, _Result]


def _one_pass(
    head: Head,
    call: _Call,
    policy: Policy,
    sequence_ids: Tensor | None,
    wanted: Wanted,
    all_stats: bool,
    sparse: float | None,
) -> _Outcome:
    """Methods whose coefficients depend on the token alone: statistics and gradient together."""
    total = call.tokens.shape[0]
    active = policy.active()
    rows = _unless_all(active)
    part = head if rows is None else head.at(rows)
    tokens = call.tokens if rows is None else call.tokens[rows]
    local = policy if rows is None else policy.at(rows)
    stats = RowStats.empty(tokens.shape[0], tokens.device, policy.weights.dtype)
    value = torch.zeros_like(local.weights)
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
    result = _scatter(gradients, rows, total)
    if rows is None:
        return value, stats, active, result
    everywhere = RowStats.empty(total, tokens.device, policy.weights.dtype)
    everywhere.put(rows, stats)
    if all_stats:
        rest = (~active).nonzero()[:, 0]
        everywhere.put(rest, compute_statistics(head.at(rest), call.tokens[rest], call.align_tol))
        active = torch.ones_like(active)
    return value, everywhere, active, result


def _two_passes(
    head: Head,
    call: _Call,
    policy: Policy,
    sequence_ids: Tensor | None,
    wanted: Wanted,
    all_stats: bool,
    sparse: float | None,
) -> _Outcome:
    """Coefficients that need other tokens (or are worth knowing first): statistics, then gradient.

    Only rows whose coefficients are not 0, so neither clipped nor filtered, reach the second pass.
    """
    total = call.tokens.shape[0]
    asked = torch.ones_like(policy.weights, dtype=torch.bool) if all_stats else policy.active()
    if sequence_ids is not None or policy.method.credit.signal == "entropy":
        asked = asked | (policy.weights != 0)
    rows = _unless_all(asked)
    part = head if rows is None else head.at(rows)
    tokens = call.tokens if rows is None else call.tokens[rows]
    local = policy if rows is None else policy.at(rows)
    stats = compute_statistics(part, tokens, call.align_tol)
    valid = (local.weights != 0) & stats.finite()
    mean = _segment_mean(sequence_ids if rows is None else _pick(sequence_ids, rows), valid)
    if local.method.credit.signal == "entropy" and local.entropy_max is None:
        highest = torch.where(valid, stats.entropy, 0.0).amax().clamp_min(1e-8)
        local = replace(local, entropy_max=highest)
    c = row_coefficients(stats, local, mean)
    sparsity = None if sparse is None else Sparsity(sparse, local.row_weight())
    result = _Result(None, None, None)
    if wanted.any():
        result = _gradient_pass(part, tokens, stats, c, wanted, sparsity)
    if rows is None:
        return c.value, stats, asked, result
    everywhere = RowStats.empty(total, tokens.device, policy.weights.dtype)
    everywhere.put(rows, stats)
    if result.hidden is not None:
        hidden = result.hidden
        whole = hidden.new_zeros(total, hidden.shape[1]).index_copy_(0, rows, hidden)
        result = result._replace(hidden=whole)
    return c.value, everywhere, asked, result


def _pick(x: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if x is None else x[rows]


def _segment_mean(ids: Tensor | None, valid: Tensor) -> Callable[[Tensor], Tensor]:
    """Mean over the valid tokens of each run of equal ids, broadcast back; deterministic."""

    def mean(x: Tensor) -> Tensor:
        assert ids is not None
        _, lengths = ids.unique_consecutive(return_counts=True)
        total = torch.segment_reduce(torch.where(valid, x, 0.0), "sum", lengths=lengths)
        count = torch.segment_reduce(valid.to(x.dtype), "sum", lengths=lengths)
        return (total / count.clamp_min(1)).repeat_interleave(lengths)

    return mean
