"""Classes and checks made from the signatures of vLLM (see ../signatures.py)."""

import copy
import functools
import json
from pathlib import Path
from typing import Any

TABLE = json.loads((Path(__file__).parents[1] / "signatures.json").read_text())
OPAQUE = "<computed>"


class Record:
    """Has the fields of the signature of its class's name, and takes no other."""

    def __init__(self, *values: Any, **named: Any) -> None:
        table = TABLE[type(self).__name__]
        given = {**dict(zip(table, values, strict=False)), **named}
        refuse_unknown(type(self).__name__, given)
        for name, default in table.items():
            setattr(self, name, given.get(name, None if default == OPAQUE else default))
        self.check()

    def check(self) -> None:
        """Refuse values, as vLLM does."""

    def clone(self) -> Any:
        return copy.copy(self)


def refuse_unknown(name: str, given: Any) -> None:
    """Raise for arguments that the signature does not name."""
    table = TABLE[name]
    unknown = [] if any(key.startswith("**") for key in table) else set(given) - set(table)
    if unknown:
        raise TypeError(f"{name}() got an unexpected keyword argument {sorted(unknown)[0]!r}")


def signed(name: str) -> Any:
    """A method whose keyword arguments are those of vLLM's method of that name."""

    def wrap(function: Any) -> Any:
        @functools.wraps(function)
        def call(*values: Any, **named: Any) -> Any:
            refuse_unknown(name, named)
            return function(*values, **named)

        return call

    return wrap
