"""Whether a value that came out of the sandbox is the expected one.

The value arrives as the JSON data of `runner.encode` and is never made into the object it
describes: two values are equal when their canonical texts are. That is type-strict by nature
(True, 1 and 1.0 have three texts), and hostile data can choose neither hashes nor methods here.
"""

import json
import math
from typing import Any, Literal

from acpo.verify.runner import encode

Rule = Literal["equal", "numeric", "close", "truthy", "falsy"]

_UNORDERED = ("set", "frozenset", "dict")
# `int` holds large numbers alone.
_TRUE_UNLESS_EMPTY = ("int", "bytes", "list", "tuple", *_UNORDERED)


def matches(
    data: Any, expected: Any, rule: Rule, *, rel_tol: float = 1e-9, abs_tol: float = 0.0
) -> bool:
    """Whether `data`, as the sandbox sent it, satisfies the plain value `expected`.

    `equal` is type-strict; `numeric` lets an int and a float of the same value match; `close` is
    `math.isclose`; `truthy` and `falsy` ignore `expected`. What is no encoded value never matches.
    """
    try:
        if rule == "close":
            number = _number(data)
            return number is not None and math.isclose(
                number, expected, rel_tol=rel_tol, abs_tol=abs_tol
            )
        if rule in ("truthy", "falsy"):
            truth = _truth(data)
            return truth is not None and truth == (rule == "truthy")
        numeric = rule == "numeric"
        wanted = canonical(encode(expected), "expected", numeric)
        return canonical(data, "actual", numeric) == wanted
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return False


def canonical(data: Any, side: str, numeric: bool) -> str:
    """One text per value. NaN and opaque objects carry `side`, so they never match the other's."""
    if data is None or isinstance(data, bool | int | str):
        return json.dumps(data)
    [(tag, body)] = data.items()
    if tag in ("list", "tuple"):
        return f"{tag}[{','.join(canonical(item, side, numeric) for item in body)}]"
    if tag in _UNORDERED:
        if tag == "dict":
            items = [":".join(canonical(part, side, numeric) for part in pair) for pair in body]
        else:
            items = [canonical(item, side, numeric) for item in body]
        return f"{tag}[{','.join(sorted(items))}]"
    if tag == "float":
        value = float.fromhex(body)
        if math.isnan(value):
            return f"nan-{side}"
        if numeric and value.is_integer():
            return canonical(encode(int(value)), side, numeric)
        return f"float({(value or 0.0).hex()})"
    if tag in ("int", "bytes") and isinstance(body, str):
        return f"{tag}({json.dumps(body)})"
    if tag == "complex":
        parts = [canonical({"float": part}, side, False) for part in body]
        return f"complex[{','.join(parts)}]"
    return f"opaque-{side}"


def _number(data: Any) -> float | None:
    if isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if isinstance(data, dict) and "float" in data:
        return float.fromhex(data["float"])
    if isinstance(data, dict) and "int" in data:
        return float(int(data["int"], 16))
    return None


def _truth(data: Any) -> bool | None:
    """Truth of a plain value; None for an object whose own `__bool__` would have to be asked."""
    if data is None or isinstance(data, bool | int | str):
        return bool(data)
    [(tag, body)] = data.items()
    if tag in ("float", "complex"):
        return any(float.fromhex(part) for part in ([body] if tag == "float" else body))
    return bool(body) if tag in _TRUE_UNLESS_EMPTY else None
