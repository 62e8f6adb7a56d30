"""The one root of every error and warning this package raises on purpose."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager


class ACPOError(ValueError):
    """Bad input. The message names the field, the value and the remedy."""


class NonFiniteError(ACPOError):
    """A policy whose numbers are no longer finite: a run diverged."""


class ACPOWarning(UserWarning):
    """A legal setting that does something the user probably did not mean."""


@contextmanager
def writing(place: object, other: str = "file") -> Iterator[None]:
    """Where the system refuses to write, say so of `place`, and to name an `other`."""
    try:
        yield
    except OSError as reason:
        room = "make room, or " if reason.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        why = f"{place} cannot be written ({reason.strerror}): {room}name another {other}"
        raise ACPOError(why) from reason
