"""Training on TRL: `ACPOConfig` and `ACPOTrainer`."""

from acpo.engines.trl.config import ACPOConfig
from acpo.engines.trl.trainer import ACPOTrainer

__all__ = ["ACPOConfig", "ACPOTrainer"]
