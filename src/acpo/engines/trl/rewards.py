"""From reward functions to advantages: every output checked, no verdict invented."""

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from acpo.engines.trl.safety import columns_of
from acpo.errors import ACPOError
from acpo.objectives import group_advantages
from acpo.verify.rewards import around, name_of

STD_EPS = 1e-4
"""Added to the rewards' standard deviation; TRL's value, so that advantages agree with its own."""

PROVIDED = {
    *("prompts", "completions", "completion_ids", "trainer_state"),
    *("log_extra", "log_metric", "environments", "kwargs"),
}
"""Arguments of a reward function that are no columns of the data."""

WITHHELD = {"prompt", "completion"}
"""Columns of the data that TRL hands to no reward function under these names."""


def checked_rewards(reward_funcs: Any, dataset: Any) -> Any:
    """What TRL takes as `reward_funcs`, plain functions checked; reward models stay as they are.

    They may ask for the columns of the data; None if others will be there as well.
    """
    if reward_funcs is None:
        return None
    columns = columns_of(dataset)
    checked = []
    for function in reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]:
        plain = callable(function) and not isinstance(function, torch.nn.Module)
        if plain and columns is not None:
            check_signature(function, columns)
        checked.append(checked_reward(function) if plain else function)
    return checked


def checked_reward(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same reward function, with what it raises and returns put into words.

    Its attribute `heard`, where it has one, is told the numbers and the columns of every call.
    """
    name = name_of(function)
    heard = getattr(function, "heard", None)

    @contextmanager
    def telling() -> Iterator[None]:
        try:
            yield
        except ACPOError:  # it names what to do, which is not always to return None
            raise
        except Exception as error:
            raise ACPOError(
                f"the reward function {name!r} raised {type(error).__name__}: {error}; return None "
                "for a completion that cannot be judged"
            ) from error

    def checked(values: Any, columns: dict[str, Any]) -> list[float | None]:
        values = _listed(name, values, len(columns["completions"]))
        run.per_token = None  # type: ignore[attr-defined]
        if any(_is_list(value) for value in values):
            rows = _token_values(name, values, columns["completion_ids"])
            run.per_token = rows  # type: ignore[attr-defined]
            values = [None if row is None else sum(row) / max(len(row), 1) for row in rows]
        numbers = [_number(name, index, value) for index, value in enumerate(values)]
        if heard is not None:
            heard(numbers, columns)
        return numbers

    run = around(function, inside=telling, after=checked)
    return run


def distinct(names: Sequence[str]) -> list[str]:
    """The same names, numbered where one came before: metrics and columns are kept by name."""
    found: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        found.append(next(new for new in itertools.chain([name], numbered) if new not in found))
    return found


def _listed(name: str, values: Any, expected: int) -> list[Any]:
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
    return values


def _is_list(value: Any) -> bool:
    """Whether a reward function answered for a completion's tokens instead of the completion."""
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1


def _token_values(name: str, values: list[Any], completion_ids: Any) -> list[list[float] | None]:
    """One number per token of every completion, or None for one without a verdict."""
    rows: list[list[float] | None] = []
    for index, (value, ids) in enumerate(zip(values, completion_ids, strict=True)):
        if value is None:
            rows.append(None)
            continue
        if not _is_list(value):
            raise ACPOError(
                f"the reward function {name!r} returned {value!r} for completion {index} and a "
                "list for another; return a number for every completion, or a list for every one"
            )
        row = [_number(name, f"{index}, token {t}", x) for t, x in enumerate(value)]
        if len(row) != len(ids) or None in row:
            raise ACPOError(
                f"the reward function {name!r} returned {len(row)} values, {row.count(None)} of "
                f"them None, for completion {index} of {len(ids)} tokens; return one number per "
                "token of completion_ids, or None for the whole completion"
            )
        rows.append([float(x) for x in row if x is not None])
    return rows


class TokenRewards(NamedTuple):
    """What reward functions gave per token: advantages, to be added to those of the groups."""

    rows: list[list[float]]  # of each completion of this process, weighted sums over functions
    columns: Tensor  # `[K]`, which functions answered per token, on any process

    @classmethod
    def read(cls, trainer: Any, completion_ids: Any) -> "TokenRewards | None":
        """From a trainer's reward functions, just called; None if none answered per token."""
        given = [getattr(function, "per_token", None) for function in trainer.reward_funcs]
        flags = torch.tensor([float(x is not None) for x in given], device=trainer.ranks.device)
        columns = trainer.ranks.maximum(flags) > 0
        if not columns.any():
            return None
        rows = [[0.0] * len(ids) for ids in completion_ids]
        for table, weight in zip(given, trainer.reward_weights.tolist(), strict=True):
            for row, values in zip(rows, table or [], strict=False):
                for t, value in enumerate(values or []):
                    row[t] += weight * value
        return cls(rows, columns)

    def padded(self, width: int) -> Tensor:
        """`[B, width]`, zeros after the end of a completion."""
        return torch.tensor([row[:width] + [0.0] * (width - len(row)) for row in self.rows])


def _number(name: str, index: int | str, value: Any) -> float | None:
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
    """Raise if a reward function asks for a column that it will not be given."""
    name = name_of(function)
    needed = getattr(function, "required_columns", ())
    if needed and not any(set(columns) >= choice for choice in needed):
        choices = ", or ".join(" and ".join(sorted(choice)) for choice in needed)
        raise ACPOError(
            f"the reward function {name!r} needs the columns {choices}; the training data has "
            f"{', '.join(columns)}"
        )
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    given = {*PROVIDED, *columns} - WITHHELD
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for parameter in parameters:
        if parameter.kind not in named or parameter.default is not inspect.Parameter.empty:
            continue
        if parameter.name not in given:
            why = f"which is not a column of the training data; it has {', '.join(columns)}"
            if parameter.name in WITHHELD:
                why = f"which is given for all completions at once, as {parameter.name + 's'!r}"
            raise ACPOError(f"the reward function {name!r} needs {parameter.name!r}, {why}")


def soft_overlong(lengths: Tensor, *, limit: int, cache: int, penalty: float) -> Tensor:
    """DAPO's length penalty: 0 up to `limit - cache`, then linear down to `-penalty`."""
    return -penalty * ((lengths - (limit - cache)) / cache).clamp(0.0, 1.0)


def without_verdict(per_function: Tensor, group_size: int) -> Tensor:
    """`[N]`, true where a completion could not be judged.

    A function that says nothing of a whole group does not apply to its prompt. One that judges
    some completions of a group and not others left those others without a verdict, whatever the
    remaining functions said of them.
    """
    silent = per_function.isnan().view(-1, group_size, per_function.shape[1])  # [P, G, K]
    missing = silent & (~silent).any(1, keepdim=True)
    return (missing.any(2) | silent.all(2)).flatten()


def combined_rewards(
    per_function: Tensor, weights: Tensor, penalties: Tensor | None, group_size: int
) -> Tensor:
    """`[N]` weighted sums; NaN where there is no verdict."""
    rewards = (per_function * weights).nansum(1)
    if penalties is not None:
        rewards = rewards + penalties
    return rewards.masked_fill(without_verdict(per_function, group_size), torch.nan)


def scaled_advantages(rewards: Tensor, group_size: int, scale: str) -> Tensor:
    """`[N]` advantages; exactly 0 in groups without variance and for completions unjudged."""
    if scale == "group":
        return group_advantages(rewards, group_size, eps=STD_EPS)
    centred = group_advantages(rewards, group_size, scale="none")
    if scale == "none":
        return centred
    return (centred / (_spread(rewards) + STD_EPS)).to(centred.dtype)


def separately_scaled_advantages(per_function: Tensor, weights: Tensor, group_size: int) -> Tensor:
    """TRL's `normalize_then_sum`: each function standardised in its group, the sum over all.

    Completions without a verdict leave every group's statistics; a group in which no function
    tells completions apart gets exactly 0.
    """
    unjudged = without_verdict(per_function, group_size)
    judged = per_function.masked_fill(unjudged[:, None], torch.nan)
    each = [group_advantages(r, group_size, eps=STD_EPS).double() for r in judged.unbind(1)]
    scores = torch.stack(each, 1)
    total = (scores * weights.double()).sum(1).masked_fill(unjudged, torch.nan)
    advantages = (total - total.nanmean()) / (_spread(total) + STD_EPS)
    informative = (scores.view(-1, group_size, scores.shape[1]) != 0).any(2).any(1)
    silent = unjudged | ~informative.repeat_interleave(group_size)
    return advantages.masked_fill(silent, 0.0).float()


def _spread(rewards: Tensor) -> Tensor:
    """Standard deviation of all judged rewards."""
    judged = rewards[~rewards.isnan()].double()
    return judged.std() if judged.numel() > 1 else judged.new_zeros(())
