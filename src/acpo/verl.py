"""The verl plugin by its short name: `actor_rollout_ref.model.external_lib=acpo.verl`.

verl loads it in every process by the entry point `verl.plugins`, and keeps to itself what goes
wrong there. A plugin that could not be loaded therefore leaves word where verl validates a run.
"""

from typing import Any

from acpo.errors import ACPOError
from acpo.objectives import METHODS


def _stop_runs_that_need_it(reason: Exception) -> None:
    """Runs that ask for us end at validation with the reason; others do not notice."""
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
    from verl.utils import config as verl_config

    stock = verl_config.validate_config

    def validate_config(config: Any, *args: Any, **kwargs: Any) -> None:
        section, mode = (
            config.actor_rollout_ref,
            config.actor_rollout_ref.actor.policy_loss.loss_mode,
        )
        ours = str(mode) in METHODS and mode not in POLICY_LOSS_REGISTRY
        if (
            ours
            or config.algorithm.adv_estimator == "acpo"
            or section.model.external_lib == __name__
        ):
            raise ACPOError(f"acpo.verl, which this run needs, cannot be loaded: {reason}")
        stock(config, *args, **kwargs)

    verl_config.validate_config = validate_config


try:
    from acpo.engines.verl import ROWS, ACPOPolicyLossConfig, compute_score, group_relative
except Exception as error:
    _stop_runs_that_need_it(error)
    raise

__all__ = ["ROWS", "ACPOPolicyLossConfig", "compute_score", "group_relative"]
