"""The annotator of procedural tasks: there the first wrong step is computed, not judged."""

from itertools import takewhile

from acpo.annotate.outcomes import Answer, Status
from acpo.annotate.pairs import Chars, Trajectory
from acpo.errors import ACPOError
from acpo.tasks.chain import STEP_LENGTH, ChainProblem

KIND = "exact"


class ExactAnnotator:
    """Computes first errors of the task `chain`.

    The place is from the first wrong character to the end of its step. In a right completion it is
    the same characters: both write the same operations in the same places.
    """

    name = KIND

    def settings(self) -> dict[str, object]:
        return {"kind": KIND, "task": "chain"}

    def first_error(self, wrong: Trajectory) -> Answer:
        try:
            problem = ChainProblem.parse(wrong.prompt)
        except ACPOError as error:
            return Answer(Status.NOT_COMPUTABLE, detail=str(error))
        index = problem.first_error(wrong.completion)
        if index is None:
            return Answer(Status.NOTHING, rationale="every step is right")
        pairs = zip(problem.solution, wrong.completion, strict=False)
        start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if start == len(wrong.completion):
            return Answer(
                Status.NOT_COMPUTABLE, detail=f"ends in step {index + 1} without a wrong token"
            )
        step = problem.steps[index]
        end = min(max(1 + STEP_LENGTH * (index + 1), start + 1), len(wrong.completion))
        begin = 1 + STEP_LENGTH * index if start else 0
        written = wrong.completion[begin:end]
        right = f"{step.left}{step.operator}{step.right}={step.result}"
        rationale = f"step {index + 1} is written {written}, and {right}"
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
