"""Keys of servers, from the environment."""

import os

from acpo.errors import ACPOError


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
