"""The paper's maths: advantages, gates, credit, and the table of methods. Needs only torch."""

from acpo.objectives.advantages import group_advantages
from acpo.objectives.batch import shape_tokens
from acpo.objectives.dense import dense_loss, logit_gradient
from acpo.objectives.loss import aggregation_weights, token_coefficients, token_objective
from acpo.objectives.method import Method
from acpo.objectives.methods import METHODS, get_method
from acpo.objectives.tokens import TokenStats, stats_from_logits

__all__ = [
    "METHODS",
    "Method",
    "TokenStats",
    "aggregation_weights",
    "dense_loss",
    "get_method",
    "group_advantages",
    "logit_gradient",
    "shape_tokens",
    "stats_from_logits",
    "token_coefficients",
    "token_objective",
]
