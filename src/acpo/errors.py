"""The one root of every error and warning this package raises on purpose."""

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
        why = reason.strerror
        raise ACPOError(f"{place} cannot be written ({why}): name another {other}") from reason
