"""What subclasses and callbacks change of a trainer: followed, or refused.

The packed update takes the place of TRL's loss, so that methods of the loss are called by nothing,
and settings TRL reads off the trainer are read here.
"""

from operator import attrgetter
from typing import Any

from accelerate.utils import is_peft_model

from acpo.engines.trl.config import METHOD_OPTIONS, REFUSALS, refuse_unhonoured
from acpo.engines.trl.update import UpdateSettings
from acpo.errors import ACPOError

UNCALLED = (
    *("compute_loss", "_compute_loss", "compute_loss_context_manager"),
    *("_get_per_token_logps_and_entropies", "get_high_entropy_mask"),
    *("get_off_policy_mask", "get_gamma_weights"),
)
"""Methods of TRL's loss, which the update does not call."""

OPTIONS = {
    "epsilon_low": "epsilon",
    "epsilon_high": "epsilon_high",
    "top_entropy_quantile": "top_entropy_quantile",
}
"""The trainer's attributes that are options of the method, and their names there."""

FIXED = {
    "temperature": "the sampler keeps it, so that every ratio would be biased; set it in "
    "ACPOConfig",
    "max_completion_length": "limits are taken once; set it in ACPOConfig",
    **{
        name: REFUSALS[name]
        for name in ("loss_type", "importance_sampling_level", "use_adaptive_entropy")
    },
    "args.method": "what rollouts are scored for depends on it; set it in ACPOConfig",
}
"""Attributes of the trainer that stay what they were when it was built, and why."""


def refuse_overrides(kind: type, known: type) -> None:
    """Raise if a subclass `kind` of the trainer `known` overrides what training never calls."""
    for name in UNCALLED:
        if getattr(kind, name, None) is not getattr(known, name, None):
            raise ACPOError(
                f"{kind.__name__} overrides {name}, which the update does not call: the loss is "
                "that of the method's row. Make it a row of METHODS and choose it with method= "
                "(docs/howto.md#add-a-method)"
            )


class Followed:
    """The update's settings, as the attributes say that stock TRL reads at every step."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        # Below an adapter there always is one.
        self._has_reference = trainer.beta != 0 or is_peft_model(trainer.model)
        method = trainer.args.objective
        for attribute, name in OPTIONS.items():  # where TRL put what was asked for, or nothing
            setattr(trainer, attribute, method.options.get(name))
        self._given, self._built = dict(vars(trainer.given_args)), dict(vars(trainer.args))
        static = trainer.args.sampler == "static"
        self._generation = trainer.generation_config.to_dict() if static else {}
        self._fixed = {name: attrgetter(name)(trainer) for name in FIXED}
        self._first = self._last = self._read()
        self.settings = UpdateSettings(
            method=method,
            temperature=trainer.temperature,
            budget=trainer.args.max_tokens_per_pack,
        )
        self.follow()

    def _read(self) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
        """The method's options as the trainer's attributes and its arguments say them."""
        trainer = self._trainer
        options = {name: getattr(trainer, attribute) for attribute, name in OPTIONS.items()}
        fields = [getattr(trainer.args, name) for name in METHOD_OPTIONS]
        return options, fields, dict(trainer.args.method_options or {})

    def follow(self) -> None:
        """Take over what a callback has changed."""
        trainer, settings, now = self._trainer, self.settings, self._read()
        self._refuse()
        settings.beta = trainer.beta
        settings.corrects_kl = trainer.args.use_bias_correction_kl
        settings.entropy_coef = trainer.entropy_coef
        settings.off_policy_threshold = trainer.off_policy_mask_threshold
        if now != self._last:
            changed = {name: x for name, x in now[0].items() if x != self._first[0][name]}
            settings.method = trainer.args.objective(**changed)
            trainer.rollouts.set_measured(trainer.rollouts.measured)
            self._last = now

    def _refuse(self) -> None:
        """Raise for what cannot be followed."""
        trainer = self._trainer
        # A trainer that only evaluates may have given its configuration to the next.
        for name, value in vars(trainer.given_args).items() if trainer.model.training else ():
            if value is not (then := self._given.get(name)) and value != then:
                raise ACPOError(
                    f"{name}={value!r} was set on the ACPOConfig after the trainer was built, "
                    "which has a copy of its own; set it on trainer.args, or give each trainer a "
                    "configuration of its own"
                )
        for name in (name for name in UNCALLED if name in vars(trainer)):
            raise ACPOError(f"trainer.{name} was replaced, which the update does not call")
        for name, then in self._fixed.items():
            if (value := attrgetter(name)(trainer)) != then:
                raise ACPOError(
                    f"trainer.{name}={value!r} was {then!r} when the trainer was built: "
                    f"{FIXED[name]}"
                )
        now = vars(trainer.args)
        refuse_unhonoured(trainer.args, [n for n in REFUSALS if now.get(n) != self._built.get(n)])
        draws = trainer.generation_config.to_dict() if self._generation else {}
        for name, value in draws.items():
            if value != self._generation.get(name):
                raise ACPOError(
                    f"generation_config.{name}={value!r} was set after the trainer was built, "
                    "which sampler='static' does not read; use sampler='generate'"
                )
        if trainer.beta and not self._has_reference:
            raise ACPOError(
                f"trainer.beta={trainer.beta} was 0 when the trainer was built, so that there is "
                "no reference model; begin with beta=1e-9 in ACPOConfig and raise that"
            )
