"""From reward functions to advantages: every output checked, no verdict invented."""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.objectives import group_advantages

STD_EPS = 1e-4
"""Added to the rewards' standard deviation; TRL's value, so that advantages agree with its own."""

PROVIDED = {
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
    "environments",
    "kwargs",
}


def checked_reward(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same reward function, with what it raises and returns put into words."""
    name = getattr(function, "__name__", type(function).__name__)
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    ):

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> list[float | None]:
            try:
                values = await function(*args, **kwargs)
            except Exception as error:
                raise _raised(name, error) from error
            return _checked(name, values, len(kwargs["completions"]))

        return run_async

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> list[float | None]:
        try:
            values = function(*args, **kwargs)
        except Exception as error:
            raise _raised(name, error) from error
        return _checked(name, values, len(kwargs["completions"]))

    run.__name__ = name
    return run


def _raised(name: str, error: Exception) -> ACPOError:
    return ACPOError(
        f"the reward function {name!r} raised {type(error).__name__}: {error}; return None for a "
        "completion that cannot be judged"
    )


def _checked(name: str, values: Any, expected: int) -> list[float | None]:
    try:
        values = list(values)
    except TypeError as error:
        raise ACPOError(
            f"the reward function {name!r} returned {type(values).__name__}, not a list with one "
            "number per completion"
        ) from error
    if len(values) != expected:
        raise ACPOError(
            f"the reward function {name!r} returned {len(values)} rewards for {expected} "
            "completions; return one per completion, None where there is no verdict"
        )
    return [_number(name, index, value) for index, value in enumerate(values)]


def _number(name: str, index: int, value: Any) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ACPOError(
            f"the reward function {name!r} returned {value!r} for completion {index}; return a "
            "number, or None for no verdict"
        ) from error
    if not math.isfinite(number):
        raise ACPOError(
            f"the reward function {name!r} returned {number} for completion {index}; return None "
            "for a completion that cannot be judged"
        )
    return number


def check_signature(function: Callable[..., Any], columns: Sequence[str]) -> None:
    """Raise if a reward function asks for a column the data does not have."""
    needed = getattr(function, "required_columns", ())
    if needed and not any(set(columns) >= choice for choice in needed):
        name = getattr(function, "__name__", type(function).__name__)
        choices = ", or ".join(" and ".join(sorted(choice)) for choice in needed)
        raise ACPOError(
            f"the reward function {name!r} needs the columns {choices}; the training data has "
            f"{', '.join(columns)}"
        )
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    name = getattr(function, "__name__", type(function).__name__)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for parameter in parameters:
        if parameter.kind not in named or parameter.default is not inspect.Parameter.empty:
            continue
        if parameter.name not in {*PROVIDED, *columns}:
            raise ACPOError(
                f"the reward function {name!r} needs {parameter.name!r}, which is not a column of "
                f"the training data; it has {', '.join(columns)}"
            )


def soft_overlong(lengths: Tensor, *, limit: int, cache: int, penalty: float) -> Tensor:
    """DAPO's length penalty: 0 up to `limit - cache`, then linear down to `-penalty`."""
    return -penalty * ((lengths - (limit - cache)) / cache).clamp(0.0, 1.0)


def combined_rewards(per_function: Tensor, weights: Tensor, penalties: Tensor | None) -> Tensor:
    """`[N]` weighted sums; NaN where no function gave a verdict."""
    unjudged = per_function.isnan().all(1)
    rewards = (per_function * weights).nansum(1)
    if penalties is not None:
        rewards = rewards + penalties
    return rewards.masked_fill(unjudged, torch.nan)


def scaled_advantages(rewards: Tensor, group_size: int, scale: str) -> Tensor:
    """`[N]` advantages; exactly 0 in groups without variance and for completions unjudged."""
    if scale == "group":
        return group_advantages(rewards, group_size, eps=STD_EPS)
    centred = group_advantages(rewards, group_size, scale="none")
    if scale == "none":
        return centred
    judged = rewards[~rewards.isnan()].double()
    spread = judged.std() if judged.numel() > 1 else judged.new_zeros(())
    return (centred / (spread + STD_EPS)).to(centred.dtype)


def without_constant_groups(advantages: Tensor, per_function: Tensor, group_size: int) -> Tensor:
    """Advantages computed elsewhere, with exact zeros where every reward of a group is equal."""
    groups = per_function.view(-1, group_size, per_function.shape[1])
    lowest = groups.nan_to_num(torch.inf).amin(1)
    highest = groups.nan_to_num(-torch.inf).amax(1)
    constant = (highest <= lowest).all(1).repeat_interleave(group_size)
    unjudged = per_function.isnan().all(1)
    return advantages.masked_fill(constant | unjudged, 0.0)
