"""The model's forward pass, extended: hidden states stay inside it and a loss comes out.

The request travels through the wrapped model (`model(**inputs, policy=request)`), so that DDP and
FSDP hooks fire, and the output head is looked up inside the root module's forward, where FSDP2 has
gathered its weights. The request is an opaque object: wrappers that cast or scatter tensors they
find among the arguments leave its float32 columns alone.
"""

import functools
import types
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acpo.head import fused_policy_loss, language_model_head, token_stats
from acpo.objectives import Method, TokenStats
from acpo.objectives.gates import segment_mean
from acpo.objectives.loss import evaluate_tokens, kl_penalty
from acpo.objectives.methods import SEQUENCE_GATES


@dataclass
class LossTerms:
    """What turns the statistics of `[n]` tokens into a loss.

    Attributes:
        method: the row of the table.
        advantages, weights: `[n]`; final, per token; weights fold every normaliser.
        old_logp: `[n]`; None if the rollout policy is the current one.
        sequence_ids: `[n]`, equal and consecutive within a sequence.
        entropy_max: H_max of the Shannon rows.
        ref_logp, beta: the KL penalty.
        corrects_kl: whether the KL estimate is multiplied by the importance ratio.
        entropy_weights: `[n]` weights of an entropy bonus.
    """

    method: Method
    advantages: Tensor
    weights: Tensor
    old_logp: Tensor | None
    sequence_ids: Tensor
    entropy_max: Tensor | None = None
    ref_logp: Tensor | None = None
    beta: float = 0.0
    corrects_kl: bool = False
    entropy_weights: Tensor | None = None


@dataclass
class PolicyRequest:
    """What to compute from the hidden states of one pack.

    Attributes:
        states: `[n]` flat indices of the states that predict the tokens.
        tokens: `[n]`.
        temperature: rollout temperature.
        align_tol: the tie tolerance of the statistics.
        float32_head: compute the head in float32, outside autocast.
        logits_bytes: memory for a chunk of logits; the head's default if None.
        loss: absent, only statistics are computed.
    """

    states: Tensor
    tokens: Tensor
    temperature: float
    align_tol: float = 1e-6
    float32_head: bool = False
    logits_bytes: int | None = None
    loss: LossTerms | None = None


def add_policy_forward(model: Any) -> None:
    """Teach a causal LM to answer `model(..., policy=PolicyRequest)`; other calls are unchanged."""
    original = model.forward

    @functools.wraps(type(model).forward)
    def forward(self: Any, *args: Any, policy: PolicyRequest | None = None, **kwargs: Any) -> Any:
        if policy is None:
            return original(*args, **kwargs)
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        kwargs["use_cache"] = False
        hidden = self.base_model(*args, **kwargs).last_hidden_state
        states = hidden.reshape(-1, hidden.shape[-1]).index_select(0, policy.states)
        return answer(self, states, policy)

    model.forward = types.MethodType(forward, model)


def answer(model: Any, hidden: Tensor, request: PolicyRequest) -> dict[str, Tensor]:
    """Statistics, and the loss if asked for, from the `[n, H]` states of the targets."""
    head = language_model_head(model)
    hidden = hidden.to(head.weight.device)
    shape: dict[str, Any] = {
        "bias": head.bias,
        "temperature": request.temperature,
        "softcap": head.softcap,
        "logit_scale": head.logit_scale,
        "logits_bytes": request.logits_bytes,
    }
    device = hidden.device.type
    amp = torch.is_autocast_enabled(device) and not request.float32_head
    if request.float32_head:
        hidden = hidden.float()
    with torch.autocast(device, enabled=amp):
        if request.loss is None:
            stats = token_stats(
                hidden, head.weight, request.tokens, align_tol=request.align_tol, **shape
            )
            return {k: v.detach() for k, v in stats._asdict().items()}
        needs_autograd = request.loss.beta and request.loss.corrects_kl
        compute = _autograd_loss if needs_autograd else _fused_loss
        return compute(hidden, head.weight, request, request.loss, shape)


def _fused_loss(
    hidden: Tensor, weight: Tensor, request: PolicyRequest, terms: LossTerms, shape: dict[str, Any]
) -> dict[str, Tensor]:
    result = fused_policy_loss(
        hidden,
        weight,
        request.tokens,
        old_logp=terms.old_logp,
        advantages=terms.advantages,
        weights=terms.weights,
        method=terms.method,
        sequence_ids=terms.sequence_ids if terms.method.gate in SEQUENCE_GATES else None,
        entropy_max=terms.entropy_max,
        ref_logp=terms.ref_logp,
        beta=terms.beta,
        entropy_weights=terms.entropy_weights,
        **shape,
    )
    return {
        "loss": result.loss,
        "computed": result.computed,
        "nonfinite": result.nonfinite,
        **result.stats._asdict(),
    }


def _autograd_loss(
    hidden: Tensor, weight: Tensor, request: PolicyRequest, terms: LossTerms, shape: dict[str, Any]
) -> dict[str, Tensor]:
    """The same loss through differentiable statistics: a ratio-corrected KL has no closed form."""
    method = terms.method
    wanted = ["logp"]
    if method.credit.differentiates_mode:
        wanted.append("log_pmax")
    if method.credit.differentiates_entropy or terms.entropy_weights is not None:
        wanted.append("entropy")
    raw = token_stats(
        hidden,
        weight,
        request.tokens,
        align_tol=request.align_tol,
        differentiable=tuple(wanted),
        **shape,
    )
    finite = torch.isfinite(raw.logp) & torch.isfinite(raw.entropy)
    stats = TokenStats(*(torch.where(finite, x, torch.zeros_like(x)) for x in raw))
    old_logp = stats.logp.detach() if terms.old_logp is None else terms.old_logp
    mean = segment_mean(terms.sequence_ids)
    gated, credit = evaluate_tokens(
        method,
        stats=stats,
        old_logp=old_logp,
        advantages=terms.advantages,
        sequence_mean=mean,
        entropy_max=terms.entropy_max,
    )
    value = terms.advantages * gated.value * credit.value
    if terms.beta:
        assert terms.ref_logp is not None
        kl = kl_penalty(stats.logp, terms.ref_logp)
        if terms.corrects_kl:
            log_ratio = stats.logp - old_logp
            kl = kl * (mean(log_ratio) if method.gate in SEQUENCE_GATES else log_ratio).exp()
        value = value - terms.beta * kl
    loss = -(torch.where(finite, terms.weights, 0.0) * value).sum()
    if terms.entropy_weights is not None:
        loss = loss - (torch.where(finite, terms.entropy_weights, 0.0) * stats.entropy).sum()
    return {
        "loss": loss,
        "computed": torch.ones_like(finite),
        "nonfinite": (~finite).sum(),
        **{k: v.detach() for k, v in raw._asdict().items()},
    }
