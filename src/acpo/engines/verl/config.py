"""A row's own options in verl's configuration, and the row an actor's configuration asks for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verl.workers.config import PolicyLossConfig

from acpo.errors import ACPOError
from acpo.objectives import METHODS, Method, get_method
from acpo.objectives.method import ALIASES

ACTOR_OPTIONS = ("tau_pos", "tau_neg")
"""Options that verl keeps in the actor's own section."""


@dataclass
class ACPOPolicyLossConfig(PolicyLossConfig):
    """verl's policy loss section with options of our rows.

    Use it as `actor.policy_loss._target_=acpo.verl.ACPOPolicyLossConfig` and set
    `+actor.policy_loss.options.NAME=VALUE`.

    Attributes:
        loss_mode: a row of `acpo.objectives.METHODS`.
        options: the row's options, e.g. `offset`; `tau_pos` and `tau_neg` belong to the actor.
    """

    loss_mode: str = "acpo"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        get_method(self.loss_mode, **read_options(self))


def read_options(policy_loss: Any) -> dict[str, Any]:
    """The row's options as the policy loss section states them."""
    options = policy_loss.get("options", None) or {}
    if not isinstance(options, Mapping):
        raise ACPOError(f"policy_loss.options={options!r} must be a mapping from names to values")
    for name, value in options.items():
        if (ours := ALIASES.get(name, name)) in ACTOR_OPTIONS:
            raise ACPOError(
                f"policy_loss.options.{name}={value!r}: verl has this option; set "
                f"actor_rollout_ref.actor.{ours} instead"
            )
    return dict(options)


def configured_row(actor: Any) -> Method:
    """The row that an actor's configuration asks for, its options set."""
    name = actor.policy_loss.loss_mode
    options = read_options(actor.policy_loss)
    known = METHODS[name].options if name in METHODS else {}
    options |= {key: float(actor.get(key)) for key in ACTOR_OPTIONS if key in known}
    return get_method(name, **options)
