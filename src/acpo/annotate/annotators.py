"""Those who say where the first error is, and what can become of a question to one.

Models are asked in `models`. Those who compute are here: where a step can be checked, the first
wrong one is found and not judged.
"""

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import NamedTuple

from acpo.annotate.arithmetic import equations
from acpo.annotate.pairs import Chars, Trajectory
from acpo.errors import ACPOError
from acpo.tasks.chain import STEP_LENGTH, ChainProblem
from acpo.texts import shared_beginning


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


SETTLED = frozenset(
    {
        *(Status.LOCATED, Status.NOTHING, Status.REFUSED, Status.OUT_OF_RANGE, Status.NOT_FOUND),
        *(Status.AMBIGUOUS, Status.FLAWED, Status.NOT_COMPUTABLE),
    }
)
"""Outcomes that stand; after any other the same command asks again."""


class Usage(NamedTuple):
    """What an answer cost: tokens read and written, zero where they came from the cache."""

    read: int = 0
    written: int = 0
    requests: int = 0
    cached: int = 0
    failed: int = 0  # questions without an answer after all attempts

    def plus(self, other: "Usage") -> "Usage":
        return Usage(*(a + b for a, b in zip(self, other, strict=True)))


class Answer(NamedTuple):
    """What an annotator said."""

    status: Status
    chars: Chars | None = None  # the place, where one was located
    rationale: str = ""  # why, in the annotator's words: untrusted text
    detail: str = ""  # what went wrong, where something did: untrusted text
    usage: Usage = Usage()


class Annotator(ABC):
    """Someone who says where the first error is."""

    name: str

    @abstractmethod
    def settings(self) -> dict[str, object]:
        """What its answers depend on; kept with them."""

    @abstractmethod
    def first_error(self, wrong: Trajectory) -> Answer:
        """The first substantive error of a wrong completion."""

    @abstractmethod
    def corresponding(self, wrong: Trajectory, error: Chars, right: Trajectory) -> Answer:
        """The interval of a right completion that corresponds to an error."""

    def end(self) -> None:  # noqa: B027 (most have nothing to end)
        """Ask no more: who waits for an answer goes without one."""


EXACT = "exact"


class ExactAnnotator(Annotator):
    """Computes first errors of the task `chain`.

    The place is from the first wrong character to the end of its step. In a right completion it is
    the same characters: both write the same operations in the same places.
    """

    name = EXACT

    def settings(self) -> dict[str, object]:
        return {"kind": EXACT, "task": "chain"}

    def first_error(self, wrong: Trajectory) -> Answer:
        try:
            problem = ChainProblem.parse(wrong.prompt)
        except ACPOError as error:
            return Answer(Status.NOT_COMPUTABLE, detail=str(error))
        index = problem.first_error(wrong.completion)
        if index is None:
            return Answer(Status.NOTHING, rationale="every step is right")
        start = len(shared_beginning([problem.solution, wrong.completion]))
        if start == len(wrong.completion):
            return Answer(
                Status.NOT_COMPUTABLE, detail=f"ends in step {index + 1} without a wrong token"
            )
        end = min(max(1 + STEP_LENGTH * (index + 1), start + 1), len(wrong.completion))
        begin = 1 + STEP_LENGTH * index if start else 0
        written = wrong.completion[begin:end]
        rationale = f"step {index + 1} is written {written}, and {problem.steps[index]}"
        return Answer(Status.LOCATED, Chars(start, end), rationale)

    def corresponding(self, wrong: Trajectory, error: Chars, right: Trajectory) -> Answer:
        problem = ChainProblem.parse(wrong.prompt)
        flaw = problem.first_error(right.completion)
        if flaw is not None:
            return Answer(Status.FLAWED, detail=f"its own step {flaw + 1} is wrong")
        if error.start >= len(right.completion):
            return Answer(Status.NOTHING, rationale="the right completion has ended there")
        place = Chars(error.start, min(error.end, len(right.completion)))
        return Answer(Status.LOCATED, place, "the same step")


ARITHMETIC = "arithmetic"


class ArithmeticAnnotator(Annotator):
    """Finds the first `a op b = c` that does not hold: an error of calculation, exactly.

    Completions that go wrong without one (a wrong set-up, a misread number) have no such place.
    """

    name = ARITHMETIC

    def settings(self) -> dict[str, object]:
        return {"kind": EXACT, "task": ARITHMETIC}

    def first_error(self, wrong: Trajectory) -> Answer:
        found = list(equations(wrong.completion))
        for equation in found:
            if not equation.holds:
                return Answer(Status.LOCATED, equation.place, equation.correction)
        return Answer(Status.NOTHING, rationale=f"{len(found)} equations, all of them hold")

    def corresponding(self, wrong: Trajectory, error: Chars, right: Trajectory) -> Answer:
        # `error` has whole tokens, and a token may begin before the number it ends in.
        asked = [
            equation.calculation
            for equation in equations(wrong.completion)
            if equation.place.start < error.end and error.start < equation.place.end
        ]
        for equation in equations(right.completion):
            if equation.calculation in asked:
                return Answer(Status.LOCATED, equation.place, "the same calculation")
        return Answer(Status.NOTHING, rationale="the right completion does not calculate that")


COMPUTED: dict[str, Annotator] = {EXACT: ExactAnnotator(), ARITHMETIC: ArithmeticAnnotator()}
"""Annotators that compute, by the name a command line gives them."""
