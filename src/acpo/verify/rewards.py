"""Reward functions `f(prompts, completions, **columns) -> list[float | None]`, as TRL calls them.

`None` marks a sample that was not judged; it has to leave its group, not earn 0. Where the
trainer passes `log_metric`, the share of every outcome is logged as `verify/<outcome>`, and that of
answers which are right but no number, where one is asked for, as `verify/left_undone`; a reference
that cannot be read is named once in the log. `required_columns` of a function are the sets of
columns of which the data must have one, so that a trainer can say what is missing at the start.
"""

import asyncio
import functools
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from acpo.errors import ACPOError
from acpo.verify import code, digits, math
from acpo.verify.extract import THINK_CLOSERS, THINK_OPENERS, extract_answer
from acpo.verify.pool import Pool
from acpo.verify.problem import PROBLEM_COLUMNS, code_in_prompt
from acpo.verify.verdict import Outcome, Verdict

Reward = Callable[..., Any]
Pairs = list[tuple[str, Any]]
GetPool = Callable[[], Pool[Any]]
MakePairs = Callable[[Any, Any, dict[str, Any]], Pairs]

CODE_PROMPT = "code_prompt"
"""The column in which prepared data keep a row's own `prompt`, which trainers take for theirs."""

logger = logging.getLogger(__name__)


def completion_text(completion: str | Sequence[Mapping[str, Any]] | None) -> str:
    """The text of a completion: itself, or its last assistant message; of none, nothing."""
    if completion is None or isinstance(completion, str):
        return completion or ""
    for message in reversed(completion):
        if message.get("role") == "assistant":
            return _content(message)
    return ""


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content)


def math_reward(
    *,
    gold_field: str = "answer",
    wrong: float = 0.0,
    asynchronous: bool = False,
    in_digits: bool = False,
) -> Reward:
    """Correctness of math answers against the column `gold_field`: 1, `wrong`, or None.

    With `in_digits` only a number in digits is right: `10 + 2` is not 12.
    """
    pairs = functools.partial(_math_pairs, gold_field)
    judge = digits if in_digits else math
    reward = _reward(judge.shared_pool, pairs, wrong, asynchronous)
    name = "digits_correct" if in_digits else "math_correct"
    return _named(reward, name, (frozenset({gold_field}),))


def code_reward(*, wrong: float = 0.0, asynchronous: bool = False) -> Reward:
    """Correctness of code. The columns of a row are its problem, see `read_problem`.

    A row's `prompt` is its column `code_prompt` or `problem`, else the code in the trainer's own.
    """
    reward = _reward(code.shared_pool, _code_pairs, wrong, asynchronous)
    return _named(reward, "code_correct", PROBLEM_COLUMNS)


def _reward(pool: GetPool, make_pairs: MakePairs, wrong: float, asynchronous: bool) -> Reward:
    def reward(prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
        pairs = make_pairs(prompts, completions, columns)
        return _rewards(pool().verify_all(pairs), pairs, wrong, columns)

    async def reward_async(prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
        pairs = make_pairs(prompts, completions, columns)
        shared = pool()
        verdicts = await asyncio.gather(*(shared.verify_async(*pair) for pair in pairs))
        return _rewards(verdicts, pairs, wrong, columns)

    return reward_async if asynchronous else reward


def _named(reward: Reward, name: str, needed: tuple[frozenset[str], ...]) -> Reward:
    reward.__name__ = name
    reward.required_columns = needed  # type: ignore[attr-defined]
    return reward


def around(
    reward: Reward,
    *,
    inside: Callable[[], AbstractContextManager[Any]] = nullcontext,
    after: Callable[[Any, dict[str, Any]], Any] = lambda values, columns: values,
) -> Reward:
    """The same reward function, plain or async, run in a context, what it returns passed on."""

    @functools.wraps(reward)
    async def run_async(*args: Any, **columns: Any) -> Any:
        with inside():
            values = await reward(*args, **columns)
        return after(values, columns)

    @functools.wraps(reward)
    def run(*args: Any, **columns: Any) -> Any:
        with inside():
            values = reward(*args, **columns)
        return after(values, columns)

    called = _called(reward)
    calls = (called, getattr(called, "__call__", None))  # noqa: B004
    found: Any = run_async if any(map(inspect.iscoroutinefunction, calls)) else run
    found.__name__ = name_of(reward)  # instances and partials have none to copy
    with suppress(TypeError, ValueError):  # of functions in C
        # What is handed to the wrapper is handed on: it takes no more than they do.
        found.__signature__ = inspect.signature(reward, follow_wrapped=False)
    return found


def name_of(reward: Reward) -> str:
    """What a reward function is called: itself, the one in a partial, or an instance's class."""
    called = _called(reward)
    return getattr(called, "__name__", type(called).__name__)


def _called(reward: Reward) -> Reward:
    while isinstance(reward, functools.partial):
        reward = reward.func
    return reward


def answer_format(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    """1 for a completion that states an answer where `extract_answer` looks for it, else 0."""
    return [float(extract_answer(completion_text(text)) is not None) for text in completions]


def think_format(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    """1 for one closed block of thoughts followed by an answer, else 0."""

    def well_formed(text: str) -> bool:
        opened = sum(text.count(tag) for tag in THINK_OPENERS)
        closed = sum(text.count(tag) for tag in THINK_CLOSERS)
        # Chat templates may open the block in the prompt.
        return opened <= closed == 1 and extract_answer(text) is not None

    return [float(well_formed(completion_text(text))) for text in completions]


def _math_pairs(gold_field: str, prompts: Any, completions: Any, columns: dict[str, Any]) -> Pairs:
    if gold_field not in columns:
        known = sorted(name for name, value in columns.items() if isinstance(value, list))
        raise ACPOError(f"gold_field={gold_field!r}: the dataset has no such column, only {known}")
    golds = columns[gold_field]
    return [
        (completion_text(text), "" if gold is None else str(gold))
        for text, gold in zip(completions, golds, strict=True)
    ]


def _code_pairs(prompts: Any, completions: Any, columns: dict[str, Any]) -> Pairs:
    count = len(completions)
    lists = {
        name: column
        for name, column in columns.items()
        if isinstance(column, list) and len(column) == count and name != "completion_ids"
    }
    rows = [{name: column[index] for name, column in lists.items()} for index in range(count)]
    for row, prompt in zip(rows, prompts, strict=True):
        if row.get("prompt") is None and row.get("entry_point") is not None:
            own = row.get(CODE_PROMPT) or row.get("problem")
            asked = prompt if isinstance(prompt, str) else _content(prompt[-1]) if prompt else ""
            row["prompt"] = code_in_prompt(str(own or asked), str(row["entry_point"]))
    for number in range(1, count):
        if _same_texts(rows[number], rows[number - 1]):
            rows[number] = rows[number - 1]  # one object for a group, so that it is read once
    return [(completion_text(text), row) for text, row in zip(completions, rows, strict=True)]


def _same_texts(row: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two rows of equal columns hold the same texts and numbers, and nothing else."""
    return all(isinstance(row[name], str | int | None) and row[name] == other[name] for name in row)


def _rewards(
    verdicts: Sequence[Verdict], pairs: Pairs, wrong: float, columns: dict[str, Any]
) -> list[float | None]:
    log_outcomes(verdicts, columns.get("log_metric"))
    _log_undone(verdicts, pairs, columns.get("log_metric"))
    for verdict, (_, reference) in zip(verdicts, pairs, strict=True):
        if verdict.outcome is Outcome.UNPARSEABLE_GOLD:
            _name_once(_row_name(reference), verdict.detail)
    return [verdict.reward(wrong=wrong) for verdict in verdicts]


def log_outcomes(verdicts: Sequence[Verdict], log_metric: Callable[..., Any] | None) -> None:
    """Log the share of every outcome, where there is somewhere to log it."""
    if log_metric is not None and verdicts:
        counts = Counter(verdict.outcome for verdict in verdicts)
        for outcome in Outcome:
            log_metric(f"verify/{outcome}", counts[outcome] / len(verdicts))


def _log_undone(
    verdicts: Sequence[Verdict], pairs: Pairs, log_metric: Callable[..., Any] | None
) -> None:
    """Log the share of completions that are right and left the arithmetic to the judge."""
    if log_metric is not None and pairs and isinstance(pairs[0][1], str):
        judged = zip(verdicts, pairs, strict=True)
        undone = sum(verdict.correct and digits.left_undone(*pair) for verdict, pair in judged)
        log_metric("verify/left_undone", undone / len(pairs))


def _row_name(reference: Any) -> str:
    if isinstance(reference, str):
        return f"the gold {reference[:120]!r}"
    names = ("id", "task_id", "name", "entry_point")
    known = [f"{name}={reference[name]!r}" for name in names if reference.get(name) is not None]
    return f"the code problem with {known[0] if known else sorted(reference)}"


@functools.lru_cache(maxsize=1024)
def _name_once(name: str, detail: str) -> None:
    logger.warning(
        "%s cannot be read, so its completions get no reward: %s. `acpo data check` finds all such "
        "rows before training",
        name,
        detail,
    )


math_correct = math_reward()
math_correct_signed = math_reward(wrong=-1.0)
math_correct_async = math_reward(asynchronous=True)
digits_correct = math_reward(in_digits=True)
code_correct = code_reward()
code_correct_signed = code_reward(wrong=-1.0)
code_correct_async = code_reward(asynchronous=True)
