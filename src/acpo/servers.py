"""A server a person names: its address, its key, and how long it asks to be left alone."""

import email.utils
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

from acpo.errors import ACPOError


def web_address(url: str) -> SplitResult | None:
    """The parts of an http or https URL; None for anything else."""
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # half a bracket, or a port that is none
        return None
    plain = url.isascii() and url.isprintable() and " " not in url
    return parts if named and plain else None


def api_key(variable: str) -> str | None:
    """The key in an environment variable, without white space around it; None where there is none.

    What no header can hold is refused here: a client would name the key in its error.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ACPOError(
            f"${variable} holds characters that no key has (line ends, controls or accents): copy "
            "the key anew"
        )
    return key or None


def without_key(said: str | bytes, key: str | None) -> str:
    """What a server said, without the key in it: servers repeat what they were sent."""
    if isinstance(said, bytes):
        said = said.decode(errors="replace")
    spellings = {key, json.dumps(key)[1:-1], key.replace("/", r"\/")} if key else ()
    for spelling in spellings:
        said = said.replace(spelling, "[the key]")
    return said


def may_pass(status: int) -> bool:
    """Whether another attempt may end better than with this status."""
    return status in (408, 409, 425, 429) or status >= 500


class Patience:
    """When requests to a server may go, for all threads that send some.

    Args:
        first_pause: Seconds before the second attempt at a request; it doubles from there.
    """

    longest = 60.0

    def __init__(self, first_pause: float) -> None:
        self._first_pause = first_pause
        self._resume_at = 0.0

    def hold(self, retry_after: str | None) -> None:
        """Hold every request back for as long as a reply asks."""
        if retry_after is not None:
            until = time.monotonic() + _retry_seconds(retry_after)
            self._resume_at = max(self._resume_at, until)

    def attempts(self, most: int, stop: threading.Event) -> Iterator[None]:
        """Go round at most so often, each time when a request may go; no more when stopped."""
        for attempt in range(most):
            while (left := self._resume_at - time.monotonic()) > 0 and not stop.wait(left):
                pass
            yield
            pause = min(self.longest, self._first_pause * 2**attempt) * random.uniform(0.5, 1.0)
            if attempt + 1 < most and stop.wait(pause):
                return


def _retry_seconds(header: str) -> float:
    """How long a `Retry-After` asks to wait, in seconds or as a date; 600 at most."""
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, TypeError):
            return 0.0
    return min(max(seconds, 0.0), 600.0)
