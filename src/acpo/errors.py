"""The one root of every error and warning this package raises on purpose."""

import errno
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class ACPOError(ValueError):
    """Bad input. The message names the field, the value and the remedy."""


class NonFiniteError(ACPOError):
    """A policy whose numbers are no longer finite: a run diverged."""


class ACPOWarning(UserWarning):
    """A legal setting that does something the user probably did not mean."""


def reason(error: BaseException) -> str:
    """The first line of what an error says, without its file; of a missing key, which it is."""
    if isinstance(error, KeyError) and error.args:
        return f"{error.args[0]!r:.100} is missing"
    said = (isinstance(error, OSError) and error.strerror) or str(error)
    lines = said.strip().splitlines() or [repr(error)]
    first = lines[:2] if lines[0].rstrip().endswith(":") else lines[:1]
    return " ".join(" ".join(first).split())[:200].rstrip(".,")


@contextmanager
def writing(place: object, other: str = "file") -> Iterator[None]:
    """Where the system refuses to write, say so of `place`, and to name an `other`."""
    try:
        yield
    except OSError as reason:
        room = "make room, or " if reason.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        why = f"{place} cannot be written ({reason.strerror}): {room}name another {other}"
        raise ACPOError(why) from reason


def line_of(error: BaseException, source: Path | Callable[..., Any]) -> str:
    """The last line that an error went through of a file, or of a function's, as `file:line`.

    A function that could not even be called is named by its first line.
    """
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(source, "__code__", None)
    if isinstance(source, Path):
        path = source
    else:  # a class or a partial has no code: then whoever raised
        path = Path(code.co_filename if code else frames[-1].filename)
    whole = path.resolve()
    lines = [code.co_firstlineno] if code else []
    lines += [frame.lineno for frame in frames if Path(frame.filename) == whole]
    if isinstance(error, SyntaxError) and Path(error.filename or "").resolve() == whole:
        lines.append(error.lineno)
    return f"{path}:{lines[-1] if lines else '?'}"
