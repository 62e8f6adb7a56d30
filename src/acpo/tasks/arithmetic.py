"""Problems that ask for a number: only one that is written out in digits answers them.

The math judge compares values: to it `504 + 766 + 149` is as right as 1419, so that the problem is
an answer to itself, and training finds that out.
"""

from acpo.tasks.task import Row, Task
from acpo.verify.digits import in_digits
from acpo.verify.extract import extract_answer, extract_gold
from acpo.verify.verdict import Outcome, Verdict


def arithmetic_task() -> Task:
    """Problems of the user's whose gold is a number in digits."""
    return Task(
        name="arithmetic",
        title="Arithmetic",
        grader=grade,
        extract=_answered,
        gold=lambda row: f"\\boxed{{{row['answer']}}}",
        in_process=True,
    )


def grade(completion: str, row: Row) -> Verdict:
    """Whether the answer is the row's number, in digits, with a unit or commas as people write."""
    gold = in_digits(extract_gold(str(row.get("answer", ""))))
    if gold is None:
        detail = f"the gold answer {str(row.get('answer', ''))[:80]!r} is not a number in digits"
        return Verdict(Outcome.UNPARSEABLE_GOLD, detail)
    answer = extract_answer(completion)
    if answer is None:
        return Verdict(Outcome.INCORRECT, "no answer found")
    value = in_digits(answer)
    if value is None:
        return Verdict(Outcome.INCORRECT, "the answer is not a number in digits")
    outcome = Outcome.CORRECT if value == gold else Outcome.INCORRECT
    return Verdict(outcome, "equal exactly" if value == gold else "not equal exactly")


def _answered(completion: str) -> str | None:
    value = in_digits(extract_answer(completion) or "")
    return None if value is None else str(value)
