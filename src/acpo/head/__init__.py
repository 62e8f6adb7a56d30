"""From hidden states to token statistics and the policy loss, without `[tokens, vocab]` logits."""

from acpo.head.distribution import TokenDistribution, distribution_stats
from acpo.head.fused import PolicyLoss, fused_policy_loss
from acpo.head.lookup import LanguageModelHead, language_model_head
from acpo.head.passes import default_logits_bytes
from acpo.head.statistics import token_stats

__all__ = [
    "LanguageModelHead",
    "PolicyLoss",
    "TokenDistribution",
    "default_logits_bytes",
    "distribution_stats",
    "fused_policy_loss",
    "language_model_head",
    "token_stats",
]
