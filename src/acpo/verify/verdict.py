"""What a verifier says about one answer, and the reward that follows from it."""

from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """How a verification ended. The last two say nothing about the answer."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    TIMEOUT = "timeout"
    LIMIT = "limit"
    UNPARSEABLE_GOLD = "unparseable_gold"
    INFRA_ERROR = "infra_error"


UNDECIDED = frozenset({Outcome.UNPARSEABLE_GOLD, Outcome.INFRA_ERROR})


class Verdict(NamedTuple):
    """One verified answer: how it ended, why in a few words for people, and the time it ran,
    without the time it waited in a queue."""

    outcome: Outcome
    detail: str = ""
    seconds: float = 0.0

    @property
    def correct(self) -> bool:
        return self.outcome is Outcome.CORRECT

    def reward(self, *, wrong: float = 0.0) -> float | None:
        """The reward of this verdict, or None when it does not judge the answer.

        A timeout or a limit is the answer's own doing and earns `wrong`; a reference that cannot be
        read and a machine that failed are not, and the sample has to leave its group.
        """
        if self.outcome in UNDECIDED:
            return None
        return 1.0 if self.correct else wrong
