"""From reward functions to advantages: every output checked, no verdict invented."""

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from acpo.engines.trl.safety import columns_of
from acpo.errors import ACPOError, line_of
from acpo.objectives import group_advantages
from acpo.verify.rewards import around, name_of

STD_EPS = 1e-4
"""Added to the rewards' standard deviation; TRL's value, so that advantages agree with its own."""

ALWAYS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""What TRL hands to every reward function beside the columns of the data."""

PROVIDED = {*ALWAYS, "environments", "kwargs"}
"""Arguments of a reward function that are no columns of the data."""

WITHHELD = {"prompt", "completion"}
"""Columns of the data that TRL hands to no reward function under these names."""


def checked_rewards(
    reward_funcs: Any, data: Mapping[str, Any], *, removes: bool | None = False, adds: bool = False
) -> Any:
    """What TRL takes as `reward_funcs`, plain functions checked; reward models stay as they are.

    Args:
        reward_funcs: one, or several.
        data: what to call it, and the data set, whose columns functions may ask for.
        removes: whether TRL takes all columns but the prompt away (`remove_unused_columns`).
        adds: whether there will be other columns as well.
    """
    if reward_funcs is None:
        return None
    checked = []
    for function in reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]:
        plain = callable(function) and not isinstance(function, torch.nn.Module)
        if plain:
            check_kind(function)
        for what, dataset in data.items() if plain else ():
            columns = columns_of(dataset)
            if columns is not None and not adds:
                check_columns(function, columns, what, removes=removes)
            check_signature(function, [] if removes else columns or [])
        checked.append(checked_reward(function) if plain else function)
    return checked


def checked_reward(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same reward function, with what it raises and returns put into words.

    Its attribute `heard`, while it is set, is told the numbers and the columns of every call.
    """
    name = name_of(function)

    @contextmanager
    def telling() -> Iterator[None]:
        try:
            yield
        except ACPOError:  # it names what to do, which is not always to return None
            raise
        except Exception as error:
            raise ACPOError(
                f"the reward function {name!r} raised {type(error).__name__}: {error}, at "
                f"{line_of(error, function)}; return None for a completion that cannot be judged"
            ) from error

    def checked(values: Any, columns: dict[str, Any]) -> list[float | None]:
        values = _listed(name, values, len(columns["completions"]))
        run.per_token = None  # type: ignore[attr-defined]
        if any(_is_list(value) for value in values):
            rows = _token_values(name, values, columns["completion_ids"])
            run.per_token = rows  # type: ignore[attr-defined]
            values = [None if row is None else sum(row) / max(len(row), 1) for row in rows]
        numbers = [_number(name, index, value) for index, value in enumerate(values)]
        if run.heard is not None:  # type: ignore[attr-defined]
            run.heard(numbers, columns)  # type: ignore[attr-defined]
        return numbers

    run = around(function, inside=telling, after=checked)
    run.heard = None  # type: ignore[attr-defined]
    return run


def distinct(names: Sequence[str]) -> list[str]:
    """The same names, numbered where one came before: metrics and columns are kept by name."""
    found: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        found.append(next(new for new in itertools.chain([name], numbered) if new not in found))
    return found


def check_added(trainer: Any) -> None:
    """Check what TRL has added to a trainer's reward functions, an environment's, as the others."""
    own = [callable(x) and not isinstance(x, torch.nn.Module) for x in trainer.reward_funcs]
    trainer.reward_funcs = [
        checked_reward(function) if plain and not hasattr(function, "heard") else function
        for function, plain in zip(trainer.reward_funcs, own, strict=True)
    ]
    trainer.reward_func_names = distinct(trainer.reward_func_names)


def _listed(name: str, values: Any, expected: int) -> list[Any]:
    try:
        if isinstance(values, Mapping | set | str):  # of keys, in no order, of letters
            raise TypeError
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


NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """What a function takes itself, whatever it hands on to one that it wraps."""
    try:
        return list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):
        return []


def check_kind(function: Callable[..., Any]) -> None:
    """Raise for what makes a reward function and is none: a class, or a function of settings."""
    parameters, why = _parameters(function), "is a class"
    if not isinstance(function, type):
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        if takes_any or {p.name for p in parameters} & {*ALWAYS} or not inspect.isroutine(function):
            return
        why = "takes neither prompts nor completions"
    made = f"{name_of(function)}(...)"
    raise ACPOError(
        f"the reward function {name_of(function)!r} {why}: give what {made} returns; in a recipe, "
        f"my_rewards.py:NAME with NAME = {made} in that file"
    )


def check_columns(
    function: Callable[..., Any], columns: Sequence[str], what: str, *, removes: bool | None
) -> None:
    """Raise if a reward function asks for a column that it will not be given.

    The columns are those of the data called `what`; `removes` says that TRL takes them away.
    """
    name, there = name_of(function), set(columns)
    given = set() if removes else there
    taken = "remove_unused_columns=True takes away; leave that out"
    needed = getattr(function, "required_columns", ())
    if needed and not any(given >= choice for choice in needed):
        choices = ", or ".join(" and ".join(sorted(choice)) for choice in needed)
        why = f"; {what} has {', '.join(columns)}"
        if any(there >= choice for choice in needed):
            why = f", which {taken}"
        raise ACPOError(f"the reward function {name!r} needs the columns {choices}{why}")
    for parameter in _parameters(function):
        if parameter.kind not in NAMED or parameter.default is not inspect.Parameter.empty:
            continue
        if parameter.name not in {*PROVIDED, *given} - WITHHELD:
            why = f"which is not a column of {what}; it has {', '.join(columns)}"
            if parameter.name in WITHHELD:
                why = f"which is given for all completions at once, as {parameter.name + 's'!r}"
            elif parameter.name in there:
                why = f"a column that {taken}"
            raise ACPOError(f"the reward function {name!r} needs {parameter.name!r}, {why}")


def check_signature(function: Callable[..., Any], columns: Sequence[str]) -> None:
    """Raise if a reward function cannot take all that it is given."""
    parameters = _parameters(function)
    if not parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return
    taken = {*WITHHELD, *(p.name for p in parameters if p.kind in NAMED)}
    left = [name for name in (*ALWAYS, *columns) if name not in taken]
    if left:
        raise ACPOError(
            f"the reward function {name_of(function)!r} does not take {', '.join(left)}, which TRL "
            "hands to every reward function; add **kwargs to its arguments"
        )


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
