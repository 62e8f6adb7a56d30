"""What runs inside the sandbox. One file, standard library only: the sandbox holds no acpo.

The parent sends one JSON object per line and gets one back. Values cross as plain data (`encode`),
so the only thing untrusted code can forge here is the value it would have returned anyway. Of
this file the parent uses `encode` alone, on its own expected values.
"""

from __future__ import annotations

import json
import os
import sys

# `typing` costs more to import than the rest of this file.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_DEPTH = 100
_SMALL_INT = 2**53
_CONTAINERS: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
_DICT_TYPES = ("dict", "defaultdict", "OrderedDict", "Counter")


def encode(value: Any, depth: int = 0) -> Any:
    """`value` as JSON data that keeps its exact type; anything not plain as an opaque name."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if abs(value) < _SMALL_INT else {"int": hex(value)}
    if kind is float:
        return {"float": value.hex()}
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if depth < _DEPTH:
        if kind in _CONTAINERS:
            return {_CONTAINERS[kind]: [encode(item, depth + 1) for item in value]}
        if kind.__name__ in _DICT_TYPES and kind.__module__ in ("builtins", "collections"):
            pairs = [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in value.items()]
            return {"dict": pairs}
    return {"opaque": f"{kind.__module__}.{kind.__qualname__}"[:100]}


class Opaque:
    """A value that is not plain data. A test that asks for its truth or compares it fails."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __bool__(self) -> bool:
        raise TypeError(f"{self.name} is not plain data")

    def __eq__(self, other: object) -> bool:
        raise TypeError(f"{self.name} is not plain data")

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<{self.name}>"


def decode(data: Any) -> Any:
    """The value `encode` made `data` from. Raises ValueError on anything else."""
    if data is None or type(data) in (bool, str, int):
        return data
    if type(data) is not dict or len(data) != 1:
        raise ValueError("not an encoded value")
    [(tag, body)] = data.items()
    try:
        return _DECODERS[tag](body)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not an encoded value: {tag!r}") from error


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda body: int(body, 16),
    "float": float.fromhex,
    "complex": lambda body: complex(float.fromhex(body[0]), float.fromhex(body[1])),
    "bytes": bytes.fromhex,
    "list": lambda body: [decode(item) for item in body],
    "tuple": lambda body: tuple(decode(item) for item in body),
    "set": lambda body: {decode(item) for item in body},
    "frozenset": lambda body: frozenset(decode(item) for item in body),
    "dict": lambda body: {decode(key): decode(value) for key, value in body},
    "opaque": Opaque,
}


def describe(error: BaseException) -> str:
    """An exception in one short line, whatever its own `__str__` does."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"[:300]
    except BaseException:
        return name


def confine(limits: dict[str, Any]) -> None:
    """Apply the rlimits, then give up root for a user id no other process has."""
    import resource

    for name, value in limits["rlimits"].items():
        limit = getattr(resource, name, None)
        if limit is not None:
            hard = value + 1 if name == "RLIMIT_CPU" else value
            resource.setrlimit(limit, (value, hard))
    uid = limits.get("uid")
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def add_exit_and_quit() -> None:
    """The two builtins that the module `site`, which is not loaded here, would have added."""
    import _sitebuiltins
    import builtins

    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))


class Channel:
    """Lines of JSON to and from the parent."""

    def __init__(self, descriptor: int) -> None:
        self._reader = os.fdopen(os.dup(descriptor), "rb")
        self._writer = os.fdopen(descriptor, "wb")

    def receive(self) -> Any:
        line = self._reader.readline()
        return json.loads(line) if line else None

    def send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")
        self._writer.flush()


def load(sources: list[str], name: str) -> dict[str, Any]:
    """Run `sources` one after the other as one module called `name`; its namespace."""
    import types

    module = types.ModuleType(name)
    sys.modules[name] = module
    for source in sources:
        exec(compile(source, f"<{name}>", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def evaluate(namespace: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """The encoded value of one call, or what it raised."""
    try:
        if "call" in request:
            arguments = [decode(item) for item in request["args"]]
            keywords = {key: decode(item) for key, item in request["kwargs"].items()}
            value = namespace[request["call"]](*arguments, **keywords)
            return {"value": encode(value), "args": [encode(item) for item in arguments]}
        return {"value": encode(eval(request["expression"], namespace))}
    except BaseException as error:
        return {"error": describe(error)}


def serve_calls(channel: Channel, job: dict[str, Any]) -> None:
    """Load the solution, then answer calls until the parent has no more."""
    try:
        namespace = load(job["sources"], "solution")
    except BaseException as error:
        channel.send({"error": describe(error)})
        return
    channel.send({"loaded": True})
    while (request := channel.receive()) is not None:
        channel.send(evaluate(namespace, request))


def run_program(channel: Channel, job: dict[str, Any]) -> None:
    """Run the solution as a script, and leave as `python script.py` does.

    The interpreter ends by itself: it joins threads, calls what `atexit` was given, flushes what
    is open, and makes the exit status.
    """
    sys.argv = ["solution.py"]
    try:
        load(job["sources"], "__main__")
    except SystemExit:
        raise
    except BaseException as error:
        channel.send({"error": describe(error)})
        raise SystemExit(1) from None
    raise SystemExit


def as_raised(error: str) -> Exception:
    """What `describe` described, where it is a builtin exception; a RuntimeError elsewhere.

    Raised in a `map` or an iterator of the test, a StopIteration would end it before the next
    check, as if all had been made.
    """
    import builtins

    kind = getattr(builtins, error.partition(":")[0], None)
    ends_loops = (StopIteration, StopAsyncIteration)
    if isinstance(kind, type) and issubclass(kind, Exception) and kind not in ends_loops:
        try:
            return kind("raised by the solution")
        except TypeError:  # it wants other arguments
            pass
    return RuntimeError("the solution raised or died")


def run_asserts(channel: Channel, job: dict[str, Any]) -> None:
    """Run a test whose solution lives in another sandbox; every call to it goes by the parent."""

    def remote(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            encoded = {key: encode(item) for key, item in kwargs.items()}
            request = {"call": name, "args": [encode(item) for item in args], "kwargs": encoded}
            channel.send(request)
            reply = channel.receive()
            if reply is None or "error" in reply:
                raise as_raised(str((reply or {}).get("error")))
            for argument, after in zip(args, reply["args"], strict=False):
                if type(argument) is list:
                    argument[:] = decode(after)
            return decode(reply["value"])

        return call

    try:
        namespace = load([job["prelude"]], "test")
        namespace.update({name: remote(name) for name in job["names"]})
        exec(compile(job["test"], "<test>", "exec", dont_inherit=True), namespace)
    except BaseException as error:
        channel.send({"failed": describe(error)})
        return
    channel.send({"passed": job["nonce"]})


def run_batch(job: dict[str, Any]) -> None:
    """Without a channel: load the solution, evaluate every call, print one reply per line."""
    replies = os.fdopen(os.dup(1), "w")
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    try:
        namespace = load(job["sources"], "solution")
    except BaseException as error:
        print(json.dumps({"error": describe(error)}), file=replies, flush=True)
        os._exit(0)
    for expression in job["expressions"]:
        reply = evaluate(namespace, {"expression": expression})
        print(json.dumps(reply), file=replies, flush=True)
    os._exit(0)


MODES = {"calls": serve_calls, "program": run_program, "asserts": run_asserts}


def main(descriptor: int) -> None:
    channel = Channel(descriptor)
    job = channel.receive()
    confine(job["limits"])
    add_exit_and_quit()
    channel.send({"ready": True})
    channel.receive()  # the parent has looked after this process and lets it go
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    MODES[job["mode"]](channel, job)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
