"""The verl plugin by its short name: `actor_rollout_ref.model.external_lib=acpo.verl`."""

from acpo.engines.verl import ROWS, ACPOPolicyLossConfig, compute_score, group_relative

__all__ = ["ROWS", "ACPOPolicyLossConfig", "compute_score", "group_relative"]
