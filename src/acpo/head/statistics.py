"""`token_stats`: statistics of the policy at each token, differentiable on request."""

from typing import Any

import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.head.checks import check_shapes, check_values
from acpo.head.lookup import LanguageModelHead
from acpo.head.products import HeadSettings, Wanted, compute_statistics, gradient_pass
from acpo.head.rows import RowCoefficients, RowStats
from acpo.objectives import TokenStats


def token_stats(
    hidden: Tensor,
    head: LanguageModelHead | Tensor,
    tokens: Tensor,
    *,
    temperature: float = 1.0,
    align_tol: float = 1e-6,
    differentiable: tuple[str, ...] = ("logp",),
    logits_bytes: int | None = None,
) -> TokenStats:
    """Statistics of the policy at each token, without `[N, V]` logits.

    Args:
        hidden: `[N, H]` states that predict `tokens`.
        head: the output head, or its `[V, H]` weight if there is nothing more to it.
        tokens: `[N]` sampled ids.
        temperature: rollout temperature.
        align_tol: largest p_max - p_y at which the sampled token counts as the mode.
        differentiable: which of "logp", "log_pmax" and "entropy" carry gradient. The backward
            pass recomputes the logits.
        logits_bytes: memory for a chunk of logits; from the device's size unless given.
    """
    unknown = set(differentiable) - {"logp", "log_pmax", "entropy"}
    if unknown:
        raise ACPOError(
            f"differentiable={differentiable} names {', '.join(sorted(unknown))}; "
            "choose from logp, log_pmax, entropy"
        )
    head = LanguageModelHead.of(head)
    check_shapes(hidden, head, tokens)
    check_values(tokens, head.weight.shape[0], {})
    settings = HeadSettings.make(hidden, head.projection(temperature), logits_bytes)
    tokens = tokens.contiguous()  # kernels read it with stride 1
    columns = _Statistics.apply(
        hidden, head.weight, head.bias, tokens, settings, align_tol, differentiable
    )
    return TokenStats(*columns)


class _Statistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        settings: HeadSettings,
        align_tol: float,
        differentiable: tuple[str, ...],
    ) -> tuple[Tensor, ...]:
        head = settings.head(hidden, weight, bias)
        stats = compute_statistics(head, tokens, align_tol)
        ctx.save_for_backward(hidden, weight, bias)
        ctx.tokens, ctx.settings, ctx.stats = tokens, settings, stats
        # Copies: the caller may write into what it gets, the backward pass needs what it was.
        outputs = TokenStats(*(x.clone() for x in stats.tokens()))
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
        head = ctx.settings.head(hidden, weight, bias)
        result = gradient_pass(head, ctx.tokens, stats, coefficients, wanted, None)
        return *result.like(hidden, weight, bias), *(None,) * 4
