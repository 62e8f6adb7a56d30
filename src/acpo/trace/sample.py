"""Groups of completions of a task's problems."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from acpo.errors import ACPOError
from acpo.evaluate.backends import Sampling
from acpo.evaluate.backends.decoder import Decoder, Job
from acpo.evaluate.backends.transformers import TransformersBackend, end_tokens
from acpo.evaluate.run import sample_seed
from acpo.scoring.rollouts import SampledCompletion, prompt_id
from acpo.tasks.grading import ROW
from acpo.tasks.task import Task
from acpo.train.data import TrainingData, build_data, recipe_task
from acpo.train.recipe import TaskArguments


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model reads it, its gold answer, and its row as JSON."""

    prompt_ids: list[int]
    answer: str
    row: str


def choose_questions(
    arguments: TaskArguments, tokenizer: Any, *, count: int, seed: int
) -> tuple[Task, list[Prompt]]:
    """`count` of the task's problems, drawn with the seed, laid out as training lays them out.

    Raises:
        ACPOError: for data that does not fit the task, or has fewer problems.
    """
    if recipe_task(arguments).endless:  # made to order
        arguments.max_problems = count
    data: TrainingData = build_data(arguments, tokenizer, seed=seed)
    if count > len(data.train):
        raise ACPOError(f"--n {count}: the data has {len(data.train)} problems")
    chosen = sorted(random.Random(seed).sample(range(len(data.train)), count))
    rows = data.train.select(chosen)
    return data.task, [
        Prompt(
            _tokens(row["prompt"], tokenizer),
            row["answer"],
            row.get(ROW) or json.dumps({"answer": row["answer"]}),
        )
        for row in rows
    ]


def _tokens(prompt: str | list[dict[str, str]], tokenizer: Any) -> list[int]:
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def sample_rollouts(
    source: TransformersBackend,
    model: Any,
    questions: Sequence[Prompt],
    sampling: Sampling,
    *,
    group: int,
    seed: int,
    batch_size: int,
    watch: Callable[[], None] = lambda: None,
) -> list[SampledCompletion]:
    """`group` completions of each question, groups consecutive, without verdicts.

    Args:
        source: where the model came from.
        model: its weights.
        questions: what is asked.
        sampling: how completions are drawn.
        group: completions per question.
        seed: every completion's own seed is made of it.
        batch_size: sequences that run together.
        watch: called for each completion.
    """
    source.checkpoint.require_room([question.prompt_ids for question in questions])
    decoder = Decoder(
        model, sampling, ends=end_tokens(model, source.checkpoint.tokenizer), batch_size=batch_size
    )
    jobs = []
    for number, question in enumerate(questions):
        name = prompt_id(question.prompt_ids)
        for sample in range(group):
            own_seed = sample_seed(seed, "trace", (name, sample))
            jobs.append(Job((number, sample), question.prompt_ids, own_seed))
    found: dict[tuple[int, int], SampledCompletion] = {}
    for key, tokens, finish, _, end in decoder.run(jobs):
        question = questions[key[0]]
        found[key] = SampledCompletion(
            prompt_id=prompt_id(question.prompt_ids),
            sample=key[1],
            prompt_ids=question.prompt_ids,
            completion_ids=tokens if end is None else [*tokens, end],
            truncated=finish == "length",
            answer=question.answer,
        )
        watch()
    return [found[key] for key in sorted(found)]
