"""Values of a recipe that no option can have, told before anything is built of them."""

import typing
from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Any

from acpo.errors import ACPOError

NO_TEXTS = {("method", int), ("fsdp", bool), ("resume_from_checkpoint", bool)}
"""Texts that may be something else: the row 8020, and what transformers takes as true."""

SWITCHED = {
    ("lora_", "use_rslora", "use_dora"): "use_peft",
    ("bnb_4bit_", "use_bnb_"): "load_in_4bit",
}
"""How options of the model begin that do nothing unless another is set."""


def kinds(classes: Iterable[type]) -> dict[str, set[Any]]:
    """What each option of these dataclasses may be, besides unset."""
    found = {}
    for one in classes:
        for name, hint in typing.get_type_hints(one).items():
            is_union = typing.get_origin(hint) in (typing.Union, UnionType)
            members = typing.get_args(hint) if is_union else (hint,)
            found[name] = {typing.get_origin(member) or member for member in members} - {NoneType}
    return found


def check_types(
    values: dict[str, Any], actions: dict[str, Any], options: dict[str, set[Any]], where: str
) -> None:
    """Raise for values of a YAML file that an option cannot have, which the parser lets pass."""
    for key, value in values.items():
        action, kind = actions.get(key), options.get(key, set())
        if action is None:
            continue
        empty = value == [] if key == "reward_funcs" else key == "output_dir" and not value
        if empty or (value is None and action.default is not None):
            raise ACPOError(f"{where}{key} is empty; give a value, or leave it out")
        if value is None:
            continue
        if isinstance(value, str) and action.choices and value not in action.choices:
            known = ", ".join(map(str, action.choices))
            raise ACPOError(f"{where}{key}={value!r} is unknown; use one of {known}")
        if kind == {int} and isinstance(value, (bool, float)):
            raise ACPOError(f"{where}{key}={value} must be a whole number")
        if kind and kind <= {int, float} and isinstance(value, (list, dict, bool)):
            raise ACPOError(f"{where}{key}={value!r} must be a number")
        if kind == {str} and not isinstance(value, str) and (key, type(value)) not in NO_TEXTS:
            raise ACPOError(f"{where}{key}={value!r} must be a text; put it in quotes")
        if dict in kind and kind <= {dict, str} and not isinstance(value, (dict, str)):
            raise ACPOError(f"{where}{key}={value!r} must be a mapping, as in {{name: value}}")
        if list not in kind or not kind <= {list, str}:
            continue
        if not isinstance(value, list if action.type in (int, float) else (list, str)):
            raise ACPOError(f"{where}{key}={value!r} must be a list, as in [{value}]")
        if action.type is str and not all(isinstance(one, str) for one in value):
            raise ACPOError(f"{where}{key}={value!r} must be texts; put each in quotes")


def check_loading(model: Any) -> None:
    """Raise for a type of weights, or an attention, that does not exist; and for other adapters."""
    import torch
    from transformers import AttentionInterface

    if model.use_peft and model.lora_task_type != "CAUSAL_LM":
        raise ACPOError(
            f"lora_task_type={model.lora_task_type!r} is not of a language model; leave it out"
        )
    kind, attention = model.dtype, model.attn_implementation
    if kind not in (None, "auto") and not isinstance(getattr(torch, str(kind), None), torch.dtype):
        raise ACPOError(f"dtype={kind!r} is no type of torch; use float32, bfloat16 or auto")
    known = ("eager", *AttentionInterface().valid_keys())
    own = not isinstance(attention, str) or "/" in attention  # for each part, or on the hub
    if not own and attention.removeprefix("paged|") not in known:
        raise ACPOError(f"attn_implementation={attention!r} is unknown; use {' or '.join(known)}")


def check_switches(given: Iterable[str]) -> None:
    """Raise for an option whose switch is not mentioned; one that is off is off on purpose."""
    for prefixes, switch in SWITCHED.items():
        idle = sorted(name for name in given if name.startswith(prefixes))
        if idle and switch not in given:
            raise ACPOError(
                f"{idle[0]} does nothing without {switch}; set that, or leave {idle[0]} out"
            )
