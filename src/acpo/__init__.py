"""Token-level credit for reinforcement learning with verifiable rewards."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acpo.engines.trl import ACPOConfig, ACPOTrainer

__version__ = "0.1.0"

__all__ = ["ACPOConfig", "ACPOTrainer", "__version__"]


def __getattr__(name: str) -> Any:
    """The trainer loads torch, transformers and TRL, so it is imported when first asked for."""
    if name in ("ACPOConfig", "ACPOTrainer"):
        from acpo.engines import trl

        return getattr(trl, name)
    raise AttributeError(f"module 'acpo' has no attribute {name!r}")
