"""A server a person names: its address, its key, and how long it asks to be left alone."""

import email.utils
import json
import os
import time
from urllib.parse import SplitResult, urlsplit

from acpo.errors import ACPOError


def web_address(url: str) -> SplitResult | None:
    """The parts of an http or https URL; None for anything else."""
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # half a bracket, or a port that is none
        return None
    return parts if named else None


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


def without_key(said: str, key: str | None) -> str:
    """What a server said, without the key in it: servers repeat what they were sent."""
    spellings = {key, json.dumps(key)[1:-1], key.replace("/", r"\/")} if key else ()
    for spelling in spellings:
        said = said.replace(spelling, "[the key]")
    return said


def retry_seconds(header: str) -> float:
    """How long a `Retry-After` asks to wait, in seconds or as a date; 600 at most."""
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, TypeError):
            return 0.0
    return min(max(seconds, 0.0), 600.0)
