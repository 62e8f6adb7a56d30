"""reasoning-gym as a source of tasks: `gym:NAME`, endless, with its own scorers.

acpo eval MODEL --benchmarks "gym:countdown?min_numbers=3&max_numbers=4"
"""

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from itertools import count
from typing import Any

from acpo.errors import ACPOError
from acpo.tasks.task import Row, Task
from acpo.verify.verdict import Outcome, Verdict

TEMPLATE = (
    "{problem}\n\nThink step by step, then give your final answer between <answer> and </answer>."
)
STRIDE = 1_000_000
"""Problem i of a seed is made from `seed * STRIDE + i`: no two streams share one."""

TRAINING_SEEDS = 1000
"""Seeds from here on are training's."""

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def gym_task(name: str, settings: Mapping[str, Any]) -> Task:
    """A procedural task of reasoning-gym.

    Args:
        name: as reasoning-gym calls it.
        settings: of its configuration; `seed` is that of the held-out problems, below 1000.

    Raises:
        ACPOError: reasoning-gym is not installed, has no such task, or refuses the settings.
    """
    chosen = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
    seed = chosen.pop("seed", 1)
    if type(seed) is not int or not 0 <= seed < TRAINING_SEEDS:
        raise ACPOError(f"gym:{name}: seed={seed!r} must be a number from 0 to 999")
    frozen = tuple(sorted(chosen.items()))
    dataset(name, frozen, seed)  # refuses what does not fit, now
    return Task(
        name=name,
        title=name.replace("_", " "),
        problems=functools.partial(_rows, name, frozen),
        template=TEMPLATE,
        grader=functools.partial(grade, name, frozen),
        extract=extract,
        gold=lambda row: f"<answer>{row['answer']}</answer>" if row["answer"] else None,
        k=1,
        held_out_seed=seed,
        identity={"reasoning_gym": version("reasoning-gym"), "settings": repr(frozen)},
    )


@functools.lru_cache(maxsize=64)
def dataset(name: str, settings: tuple[tuple[str, Any], ...], seed: int) -> Any:
    """reasoning-gym's data set of that name, from a stream of its own for every seed."""
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        raise ACPOError(
            f"gym:{name}: reasoning-gym cannot be imported ({error}): pip install 'acpo[gym]'"
        ) from error
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(DATASETS))}"
        raise ACPOError(f"gym:{name}: reasoning-gym has no task {name!r}; {hint}")
    options = dict(settings)
    known = {field.name for field in dataclasses.fields(DATASETS[name][1])} - {"seed", "size"}
    for key in options:
        if key not in known:
            raise ACPOError(f"gym:{name} has no setting {key!r}; use {', '.join(sorted(known))}")
    try:
        return create_dataset(name, seed=seed * STRIDE, size=STRIDE, **options)
    except Exception as error:  # each task checks its settings in its own way
        raise ACPOError(f"gym:{name}: {options} is refused: {error}") from error


def _rows(name: str, settings: tuple[tuple[str, Any], ...], seed: int) -> Iterator[Row]:
    made = dataset(name, settings, seed)
    for index in count():
        try:
            entry = made[index]
        except (ValueError, RuntimeError):  # no problem of these settings at this place
            continue
        answer = entry["answer"]
        row = {"problem": entry["question"], "answer": "" if answer is None else str(answer)}
        yield {**row, "gym_seed": seed, "gym_index": index}


@functools.lru_cache(maxsize=4096)
def _entry(name: str, settings: tuple[tuple[str, Any], ...], seed: int, index: int) -> Any:
    """The problem once more, with the types its scorer expects, which JSON does not keep."""
    return dataset(name, settings, seed)[index]


def extract(completion: str) -> str | None:
    """What stands between the last pair of tags."""
    found = _ANSWER.findall(completion)
    return found[-1].strip() if found else None


def grade(name: str, settings: tuple[tuple[str, Any], ...], completion: str, row: Row) -> Verdict:
    """Right where reasoning-gym's own scorer gives the full score."""
    answer = extract(completion)
    if answer is None:
        return Verdict(Outcome.INCORRECT, "no <answer>")
    entry = _entry(name, settings, row["gym_seed"], row["gym_index"])
    try:
        score = float(dataset(name, settings, row["gym_seed"]).score_answer(answer, entry))
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # scorers parse what they are given, each in its own way
        return Verdict(Outcome.INCORRECT, f"the scorer raised {type(error).__name__}")
    return Verdict(Outcome.CORRECT if score >= 1.0 else Outcome.INCORRECT, f"score {score:g}")
