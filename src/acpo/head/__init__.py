"""From hidden states to token statistics and the policy loss, without `[tokens, vocab]` logits."""

from acpo.head.distribution import TokenDistribution, distribution_stats
from acpo.head.fused import fused_policy_loss
from acpo.head.lookup import LanguageModelHead, language_model_head
from acpo.head.products import default_logits_bytes
from acpo.head.statistics import token_stats
from acpo.head.terms import TokenTerms

__all__ = [
    "LanguageModelHead",
    "TokenDistribution",
    "TokenTerms",
    "default_logits_bytes",
    "distribution_stats",
    "fused_policy_loss",
    "language_model_head",
    "token_stats",
]
