"""The verl plugin: loading this package makes our rows known to verl, and checks who asks for them.

Light on purpose, because verl loads it in every process through the `verl.plugins` entry point:
policy losses and the advantage estimator go into verl's registries, and verl's validation learns
to check runs that use them. The engines are extended only where an actor asks for one of our rows.
"""

from acpo.engines.verl.versions import check_version, stop_runs_that_need_us

try:
    check_version()  # first: another verl may lack what is imported below

    from acpo.engines.verl.advantages import group_relative
    from acpo.engines.verl.checks import watch_configurations
    from acpo.engines.verl.config import ACPOPolicyLossConfig
    from acpo.engines.verl.loss import register_rows
    from acpo.engines.verl.rewards import compute_score

    ROWS = register_rows()
    """Our rows that verl has no policy loss of that name for."""

    watch_configurations(ROWS)
except Exception as error:
    stop_runs_that_need_us(error)
    raise

__all__ = ["ROWS", "ACPOPolicyLossConfig", "compute_score", "group_relative"]
