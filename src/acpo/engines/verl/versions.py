"""Which verl this plugin fits, and what becomes of runs where it does not."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.version import Version

from acpo.errors import ACPOError
from acpo.objectives import METHODS

OLDEST, TOO_NEW = Version("0.9"), Version("0.11.dev0")


def check_version() -> None:
    """Refuse a verl whose engines the plugin was not written for."""
    try:
        found = Version(version("verl"))
    except PackageNotFoundError:
        raise ACPOError(
            "acpo.verl needs verl, which is not installed here: docs/verl.md says how to make its "
            "environment (it cannot share TRL's)"
        ) from None
    if not OLDEST <= found < TOO_NEW:
        raise ACPOError(
            f"verl {found} is not supported: acpo.verl plugs into the engines of verl 0.9 and "
            "0.10; pip install 'verl>=0.9,<0.11'"
        )


def stop_runs_that_need_us(reason: Exception) -> None:
    """Runs that ask for a plugin that cannot be loaded end at validation; others do not notice.

    verl keeps to itself what goes wrong while it loads plugins.
    """
    try:
        from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
        from verl.utils import config as verl_config
    except ImportError:  # there is no verl whose runs could be stopped
        return
    stock = verl_config.validate_config

    def validate_config(config: Any, *args: Any, **kwargs: Any) -> None:
        model, loss = config.actor_rollout_ref.model, config.actor_rollout_ref.actor.policy_loss
        ours = str(loss.loss_mode) in METHODS and loss.loss_mode not in POLICY_LOSS_REGISTRY
        if (
            ours
            or config.algorithm.adv_estimator in ("acpo", "acpo_tokens")
            or model.external_lib == "acpo.verl"
        ):
            raise ACPOError(f"acpo.verl, which this run needs, cannot be loaded: {reason}")
        stock(config, *args, **kwargs)

    verl_config.validate_config = validate_config
