"""reasoning-gym as a source of tasks: `gym:NAME`, endless, with its own scorers.

acpo eval MODEL --benchmarks "gym:countdown?min_numbers=3&max_numbers=4"
"""

import dataclasses
import difflib
import functools
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
STRIDE, CHUNK = 1_000_000, 500
"""Problem i of a seed is made from `seed * STRIDE + i`, so that no two streams share one, by a data
set of `CHUNK` problems, as some make all of theirs at once."""

TRAINING_SEEDS = 1000
"""Seeds from here on are training's."""

Settings = tuple[tuple[str, Any], ...]


def gym_task(name: str, settings: Mapping[str, Any]) -> Task:
    """A procedural task of reasoning-gym under its own settings, and the held-out `seed`."""
    chosen = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
    seed = chosen.pop("seed", 1)
    if type(seed) is not int or not 0 <= seed < TRAINING_SEEDS:
        raise ACPOError(f"gym:{name}: seed={seed!r} must be a number from 0 to 999")
    frozen = tuple(sorted(chosen.items()))
    try:
        hash(frozen)
    except TypeError:
        raise ACPOError(f"gym:{name}: {chosen} must be numbers, texts or lists of them") from None
    dataset(name, frozen, seed * STRIDE)  # refuses what does not fit, now
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
def dataset(name: str, settings: Settings, first: int) -> Any:
    """reasoning-gym's data set of that name, which begins with problem `first` of all."""
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        raise ACPOError(
            f"gym:{name}: reasoning-gym cannot be imported ({error}): "
            "pip install 'reasoning-gym<0.2'"
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
        return create_dataset(name, seed=first, size=CHUNK, **options)
    except Exception as error:  # each task checks its settings in its own way
        raise ACPOError(f"gym:{name}: {options} is refused: {error!r}") from error


@functools.lru_cache(maxsize=4096)
def _entry(name: str, settings: Settings, number: int) -> Any:
    """A problem, with the types its scorer expects, which JSON would not keep."""
    return _home(name, settings, number)[number % CHUNK]


def _home(name: str, settings: Settings, number: int) -> Any:
    return dataset(name, settings, number - number % CHUNK)


def _rows(name: str, settings: Settings, seed: int) -> Iterator[Row]:
    # Seeds that training uses come round, so that all fit into 32 bits, as some tasks ask.
    stream = seed if seed < TRAINING_SEEDS else TRAINING_SEEDS + seed % 3000
    for number in count(stream * STRIDE):
        try:
            entry = _entry(name, settings, number)
        except (ValueError, RuntimeError):  # no problem of these settings at this place
            continue
        answer = entry["answer"]
        yield {
            "problem": entry["question"],
            "answer": "" if answer is None else str(answer),
            "gym": number,
        }


def extract(completion: str) -> str | None:
    """What stands between the last pair of tags."""
    before = completion.rpartition("</answer>")[0]
    _, opening, answer = before.rpartition("<answer>")
    return answer.partition("</answer>")[0].strip() if opening else None


def grade(name: str, settings: Settings, completion: str, row: Row) -> Verdict:
    """Right where reasoning-gym's own scorer gives the full score."""
    answer = extract(completion)
    if answer is None:
        return Verdict(Outcome.INCORRECT, "no <answer>")
    entry = _entry(name, settings, row["gym"])
    try:
        score = float(_home(name, settings, row["gym"]).score_answer(answer, entry))
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # scorers parse what they are given, each in its own way
        return Verdict(Outcome.INCORRECT, f"the scorer raised {type(error).__name__}")
    return Verdict(Outcome.CORRECT if score >= 1.0 else Outcome.INCORRECT, f"score {score:g}")
