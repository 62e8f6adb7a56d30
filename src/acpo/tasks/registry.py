"""The tasks by name: where their problems are, how they are put, and what rewards an answer."""

import difflib
import importlib
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acpo.errors import ACPOError
from acpo.tasks.chain import ChainProblem, chain_problems
from acpo.tasks.problems import Cleaning, Columns, Problem, read_problems
from acpo.tasks.sources import read_rows
from acpo.tasks.templates import DAPO, strip

MATH_REWARD = "acpo.verify.rewards.math_correct"
LOCAL = Columns("problem", "answer")


@dataclass(frozen=True)
class Task:
    """Problems with gold answers, and the reward for an answer.

    Attributes:
        name: what a recipe says.
        title: what people call it.
        reward: dotted path of the reward function `f(prompts, completions, **columns)`.
        template: what stands around a problem, see `acpo.tasks.templates`.
        source: the hub data set used when the recipe names no `data`; None when it has to.
        config: that data set's configuration.
        columns: layouts the data may come in, tried in order.
        held_out_split: the split that accuracy is measured on, where the data set has one.
    """

    name: str
    title: str
    reward: str
    template: str
    source: str | None = None
    config: str | None = None
    columns: tuple[Columns, ...] = (LOCAL,)
    held_out_split: str | None = None


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("chain", "Last-digit chains", "acpo.tasks.chain.chain_reward", "plain"),
        Task(
            "dapo_math",
            "DAPO-Math-17k",
            MATH_REWARD,
            "dapo",
            "BytedTsinghua-SIA/DAPO-Math-17k",
            columns=(
                LOCAL,
                Columns("prompt", "reward_model.ground_truth"),
                Columns("prompt", "solution"),
            ),
        ),
        Task(
            "gsm8k",
            "GSM8K",
            MATH_REWARD,
            "gsm8k",
            "openai/gsm8k",
            "main",
            (Columns("question", "answer", "hashes"), Columns("problem", "answer", "hashes")),
            "test",
        ),
        Task(
            "math",
            "MATH",
            MATH_REWARD,
            "boxed",
            "DigitalLearningGmbH/MATH-lighteval",
            columns=(LOCAL, Columns("problem", "solution", "boxed")),
            held_out_split="test",
        ),
        Task("custom", "Your own problems", MATH_REWARD, "boxed"),
    )
}


def get_task(name: str) -> Task:
    """A task by its name.

    Raises:
        ACPOError: for an unknown name; the nearest is suggested.
    """
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ACPOError(f"task={name!r} is unknown; {hint}choose from {', '.join(TASKS)}")
    return TASKS[name]


def load_problems(
    task: Task,
    data: str | None = None,
    *,
    config: str | None = None,
    split: str = "train",
    columns: Columns | None = None,
) -> tuple[list[Problem], Cleaning]:
    """The distinct problems of a task's data.

    Args:
        task: from `get_task`.
        data: a file or hub id; None for the task's own.
        config: the hub data set's configuration; None for the task's own.
        split: the hub data set's split.
        columns: where problem and answer are, when not where the task expects them.

    Raises:
        ACPOError: for data that is missing, empty, or without the columns.
    """
    source = data or task.source
    if source is None:
        raise ACPOError(f"task={task.name!r} has no data of its own; set data to a file or hub id")
    config = config or (task.config if source == task.source else None)
    rows = read_rows(source, config=config, split=split)
    problems, cleaning = read_problems(rows, (columns,) if columns else task.columns, source=source)
    if task.template == "dapo":  # upstream ships its prompts with the template around them
        problems = [problem._replace(text=strip(DAPO, problem.text)) for problem in problems]
    return problems, cleaning


def split_off(problems: list[Problem], count: int) -> tuple[list[Problem], list[Problem]]:
    """(training, held-out) problems; which are held out depends on nothing but the problems."""
    if not 0 <= count < len(problems):
        raise ACPOError(f"held_out={count} must be below the number of problems, {len(problems)}")
    held = set(random.Random(0).sample(range(len(problems)), count))
    training = [problem for index, problem in enumerate(problems) if index not in held]
    return training, [problems[index] for index in sorted(held)]


HELD_OUT_SEED = 1


def held_out_chains(count: int, *, steps: int) -> list[ChainProblem]:
    """Chains that neither the warm start nor any training run ever sees."""
    return chain_problems(count, steps=steps, seed=HELD_OUT_SEED)


def import_reward(path: str) -> Callable[..., Any]:
    """The reward function at a dotted path; modules in the working directory are found.

    Raises:
        ACPOError: when there is no such module or function.
    """
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise ACPOError(f"reward_funcs: {path!r} is not a dotted path like 'my_rewards.exact'")
    working_directory = str(Path.cwd())
    if working_directory not in sys.path:
        sys.path.insert(0, working_directory)
    try:
        return getattr(importlib.import_module(module_name), name)
    except ModuleNotFoundError as error:
        raise ACPOError(f"reward_funcs: {path!r} cannot be imported: {error}") from error
    except AttributeError:
        raise ACPOError(f"reward_funcs: module {module_name!r} has no {name!r}") from None
