"""`fused_policy_loss`: the loss and its gradients from hidden states, in the forward pass."""

from typing import Any

import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.head.checks import check_shapes, check_values
from acpo.head.lookup import LanguageModelHead
from acpo.head.products import (
    Gradients,
    Head,
    HeadSettings,
    Wanted,
    compute_statistics,
    gradient_pass,
    run_pass,
    unless_all,
)
from acpo.head.projection import wide_dtype
from acpo.head.rows import RowStats, Sparsity, missing_sequence_mean, row_coefficients
from acpo.head.terms import TokenTerms
from acpo.objectives.gates import GATES, segment_mean
from acpo.objectives.method import entropy_maximum


def fused_policy_loss(
    hidden: Tensor,
    head: LanguageModelHead | Tensor,
    terms: TokenTerms,
    *,
    sparse: float | None = None,
    logits_bytes: int | None = None,
) -> Tensor:
    """Policy loss and its gradients from hidden states, in three vocabulary products.

    Advantages, old log-probabilities and normalisers are known before the head runs, so the
    gradients are made in the forward pass. Tokens that cannot have a gradient never reach a
    product. Statistics and counts are written to `terms`.

    Args:
        hidden: `[N, H]` states that predict the tokens.
        head: the output head, or its `[V, H]` weight if there is nothing more to it; two products
            if the weight needs no gradient.
        terms: what the loss is made of, and where its results go.
        sparse: skip gradient entries below this size, relative to the row's weight. Approximate.
        logits_bytes: memory for a chunk of logits; from the device's size unless given.

    Returns:
        The scalar loss, differentiable once.
    """
    head = LanguageModelHead.of(head)
    _refuse(terms, sparse)
    check_shapes(hidden, head, terms.tokens, **terms.columns())
    local, n_broken, rows = _usable(hidden, head, terms.wide(wide_dtype(hidden.dtype)))
    projection = head.projection(terms.temperature)
    settings = HeadSettings.make(hidden, projection, logits_bytes)
    # Inside `apply` gradients are always off, and parameters require them all the same.
    differentiated = torch.is_grad_enabled()
    loss = _FusedLoss.apply(
        hidden, head.weight, head.bias, settings, local, rows, sparse, differentiated
    )
    terms.loss, terms.stats, terms.computed = loss.detach().float(), local.stats, local.computed
    terms.nonfinite = local.nonfinite + n_broken
    return loss


def _refuse(terms: TokenTerms, sparse: float | None) -> None:
    """Raise for terms that make no loss, or none of this row."""
    if terms.advantages is None or terms.weights is None:
        raise ACPOError("advantages or weights is missing: without them there is no loss")
    if sparse is not None and not sparse >= 0:
        raise ACPOError(f"sparse={sparse} must not be negative; pass None for the exact gradient")
    if terms.method.candidates and sparse is not None:
        raise ACPOError(
            f"method {terms.method.name!r} moves the likeliest tokens too, which a sparse gradient "
            "leaves out; train without sparse_head"
        )


def _usable(
    hidden: Tensor, head: LanguageModelHead, terms: TokenTerms
) -> tuple[TokenTerms, int, Tensor | None]:
    """The terms without broken tokens, how many those are, and the tokens left; None means all."""
    active = terms.active()
    broken = ~torch.isfinite(hidden.detach().sum(1, dtype=terms.row_weight().dtype))
    counted = [active, broken & active]
    if GATES[terms.method.gate].one_advantage:
        counted.append(terms.uneven())
    n_active, n_broken, *uneven = check_values(
        terms.tokens, head.weight.shape[0], terms.numbers(), *counted
    )
    if any(uneven):
        raise ACPOError(
            f"advantages or weights differ within a sequence ({uneven[0]} tokens): method "
            f"{terms.method.name!r} has one ratio per sequence and takes one value of each"
        )
    if n_broken:
        terms = terms.without(broken)
        active = terms.active()
    everything = n_active - n_broken == terms.tokens.shape[0]
    return terms, n_broken, None if everything else active.nonzero()[:, 0]


def _needs_statistics_first(terms: TokenTerms) -> bool:
    """Whether a row's coefficients depend on other rows of the call."""
    method = terms.method
    return method.sequence_level or (
        method.credit.signal == "entropy" and terms.entropy_max is None
    )


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        settings: HeadSettings,
        terms: TokenTerms,
        rows: Tensor | None,
        sparse: float | None,
        differentiated: bool,
    ) -> Tensor:
        wanted = Wanted(*(differentiated and needed for needed in ctx.needs_input_grad[:3]))
        head, count = settings.head(hidden, weight, bias), terms.tokens.shape[0]
        compute = _one_pass
        if _needs_statistics_first(terms):
            compute = _two_passes
            # A sequence's mean and the largest entropy include tokens whose own gradient is 0.
            rows = unless_all((terms.row_weight() != 0) | terms.active())
        part, local = (head, terms) if rows is None else (head.at(rows), terms.at(rows))
        sparsity = None if sparse is None else Sparsity(sparse, local.row_weight())
        value, stats, gradients = compute(part, local, wanted, sparsity)
        gradients.spread(rows, count)
        ctx.gradients = gradients.like(hidden, weight, bias) if any(wanted) else None
        terms.computed = torch.full_like(terms.tokens, rows is None, dtype=torch.bool)
        if rows is not None:
            terms.computed.index_fill_(0, rows, True)
            stats = stats.spread(rows, count)
        terms.stats = stats.tokens()
        terms.nonfinite = (terms.computed & terms.active() & ~stats.finite()).sum()
        return value.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(
                "the gradients of fused_policy_loss were made in its forward pass and have been "
                "used; call it again instead of backpropagating twice"
            )
        gradients, ctx.gradients = ctx.gradients, None
        return *(_scaled_(g, grad) for g in gradients), *(None,) * 5


def _scaled_(gradient: Tensor | None, by: Tensor) -> Tensor | None:
    """Multiply in place, without asking the device what the factor is."""
    if gradient is None:
        return None
    if gradient.is_cuda and gradient.dtype != torch.float64:
        from acpo.head import triton

        return triton.scale_(gradient, by)
    return gradient.mul_(by)


_Outcome = tuple[Tensor, RowStats, Gradients]
"""Each token's share of the loss, its statistics, and the gradients."""


def _one_pass(head: Head, terms: TokenTerms, wanted: Wanted, sparsity: Sparsity | None) -> _Outcome:
    """Methods whose coefficients depend on the token alone: statistics and gradient together."""
    weight = terms.row_weight()
    stats = RowStats.empty(weight.shape[0], weight.device, weight.dtype)
    value = torch.empty_like(weight)
    needs_gradient = any(wanted)

    def step(raw: Tensor, span: slice) -> Any:
        here, out = terms.at(span), stats.at(span)
        if not needs_gradient:
            head.backend.statistics(raw, here.tokens, head.projection, here.align_tol, out)
            value[span] = row_coefficients(out, here).value
            return None
        dtype, where = head.hidden.dtype, sparsity and sparsity.at(span)
        c, gradient = head.backend.policy_gradient(raw, head.projection, here, out, dtype, where)
        value[span] = c.value
        return gradient

    return value, stats, run_pass(head, step, wanted, sparse=sparsity is not None)


def _two_passes(
    head: Head, terms: TokenTerms, wanted: Wanted, sparsity: Sparsity | None
) -> _Outcome:
    """Coefficients that need other tokens' statistics: those first, then the gradient.

    Only rows whose coefficients are not 0, so not clipped ones, reach the second pass.
    """
    stats = compute_statistics(head, terms.tokens, terms.align_tol)
    assert terms.weights is not None
    valid = (terms.weights != 0) & stats.finite()
    if terms.entropy_max is None:
        terms = terms.with_columns(entropy_max=entropy_maximum(terms.method, stats.entropy, valid))
    ids = terms.sequence_ids
    mean = missing_sequence_mean if ids is None else segment_mean(ids, valid)
    c = row_coefficients(stats, terms, mean)
    if not any(wanted):
        return c.value, stats, Gradients(head, wanted)
    return c.value, stats, gradient_pass(head, terms.tokens, stats, c, wanted, sparsity)
