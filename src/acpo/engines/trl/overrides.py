"""What callbacks change of a trainer while it trains: followed at the next step, or refused."""

from typing import Any

from acpo.engines.trl.update import UpdateSettings
from acpo.errors import ACPOError

OPTIONS = {
    "epsilon_low": "epsilon",
    "epsilon_high": "epsilon_high",
    "top_entropy_quantile": "top_entropy_quantile",
}
"""The trainer's attributes that are options of the method, and their names there."""


class Followed:
    """The update's settings, as the attributes say that stock TRL reads at every step."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._has_reference = trainer.beta != 0
        self._options = self._read()
        self.settings = UpdateSettings(
            method=trainer.args.objective,
            temperature=trainer.temperature,
            budget=trainer.args.max_tokens_per_pack,
            corrects_kl=trainer.args.use_bias_correction_kl,
        )
        self.follow()

    def _read(self) -> dict[str, Any]:
        return {name: getattr(self._trainer, attribute) for attribute, name in OPTIONS.items()}

    def follow(self) -> None:
        """Take over what a callback has changed."""
        trainer, settings, options = self._trainer, self.settings, self._read()
        if trainer.beta and not self._has_reference:
            raise ACPOError(
                f"trainer.beta={trainer.beta} was 0 when the trainer was built, so that there is "
                "no reference model; begin with beta=1e-9 in ACPOConfig and raise that"
            )
        settings.beta = trainer.beta
        settings.entropy_coef = trainer.entropy_coef
        settings.off_policy_threshold = trainer.off_policy_mask_threshold
        changed = {name: x for name, x in options.items() if x != self._options[name]}
        if changed:
            settings.method = settings.method(**changed)
            self._options = options
