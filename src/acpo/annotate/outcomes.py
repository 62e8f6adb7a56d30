"""What can become of a question to an annotator. Every one is kept and counted."""

from enum import StrEnum
from typing import NamedTuple, Protocol

from acpo.annotate.pairs import Chars, Trajectory


class Status(StrEnum):
    """The outcome of one question."""

    LOCATED = "located"
    NOTHING = "nothing"  # the annotator says that there is no such place
    REFUSED = "refused"
    MALFORMED = "malformed"  # not the JSON that was asked for
    OUT_OF_RANGE = "out_of_range"  # a line the completion does not have
    NOT_FOUND = "not_found"  # a quote that does not stand in that line
    AMBIGUOUS = "ambiguous"  # a quote that stands there more than once
    FLAWED = "flawed"  # the right completion has a wrong step itself
    NOT_COMPUTABLE = "not_computable"  # no procedural task, or the error has no token
    NOT_ASKED = "not_asked"  # no error was located that something could correspond to
    CUT_OFF = "cut_off"  # the answer ended at the server's length limit
    OVERSIZE = "oversize"
    RATE_LIMITED = "rate_limited"
    TIMEOUT = "timeout"
    CONNECTION = "connection"  # none, or cut
    SERVER_ERROR = "server_error"
    REJECTED = "rejected"  # the server refuses the request: too long, for example
    UNAVAILABLE = "unavailable"  # not sent: the endpoint failed too often in a row


PASSING = frozenset(
    {
        Status.MALFORMED,
        Status.NOT_ASKED,
        Status.CUT_OFF,
        Status.OVERSIZE,
        Status.RATE_LIMITED,
        Status.TIMEOUT,
        Status.CONNECTION,
        Status.SERVER_ERROR,
        Status.REJECTED,
        Status.UNAVAILABLE,
    }
)
"""Outcomes after which the same command asks again."""


class Usage(NamedTuple):
    """What an answer cost: tokens read and written, zero where they came from the cache."""

    read: int = 0
    written: int = 0
    requests: int = 0
    cached: int = 0

    def plus(self, other: "Usage") -> "Usage":
        return Usage(*(a + b for a, b in zip(self, other, strict=True)))


class Answer(NamedTuple):
    """What an annotator said.

    Attributes:
        status: What became of the question.
        chars: The place, where one was located.
        rationale: Why, in the annotator's words: untrusted text.
        detail: What went wrong, where something did: untrusted text.
        usage: What it cost.
    """

    status: Status
    chars: Chars | None = None
    rationale: str = ""
    detail: str = ""
    usage: Usage = Usage()


class Annotator(Protocol):
    """Someone who says where the first error is."""

    name: str

    def settings(self) -> dict[str, object]:
        """What its answers depend on; kept with them."""
        ...

    def first_error(self, wrong: Trajectory) -> Answer:
        """The first substantive error of a wrong completion."""
        ...

    def corresponding(self, wrong: Trajectory, error: Chars, right: Trajectory) -> Answer:
        """The interval of a right completion that corresponds to an error."""
        ...
