"""From hidden states to token statistics and the policy loss, without `[tokens, vocab]` logits."""

from acpo.head.fused import PolicyLoss, fused_policy_loss
from acpo.head.lookup import LanguageModelHead, language_model_head
from acpo.head.statistics import token_stats

__all__ = [
    "LanguageModelHead",
    "PolicyLoss",
    "fused_policy_loss",
    "language_model_head",
    "token_stats",
]
