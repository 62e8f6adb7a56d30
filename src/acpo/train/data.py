"""A recipe's problems as the prompts the trainer reads."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from acpo.errors import ACPOError
from acpo.tasks.grading import ROW, reward_function
from acpo.tasks.gym import TRAINING_SEEDS
from acpo.tasks.problems import Problem, endless_problems, load_problems, split_off
from acpo.tasks.registry import get_task, import_reward
from acpo.tasks.sources import is_file
from acpo.tasks.task import Columns, Row, Task
from acpo.tasks.templates import fill, get_template
from acpo.train.recipe import TaskArguments
from acpo.verify.rewards import CODE_PROMPT

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

Prompt = str | list[dict[str, str]]

RESERVED = frozenset({"prompt", "prompts", "completion", "completions", "completion_ids"})
"""Columns the trainer fills itself; the user's of these names reach the grader alone."""

MOST_DRAWN, FIRST_LOOK = 20, 1000
"""Endless problems of which not one in so many is short enough are given up; after so many, where
not an eighth of that share is."""


@dataclass(frozen=True)
class TrainingData:
    """What a run reads."""

    task: Task
    train: "Dataset"  # rows with `prompt`, `answer` and every column of the data
    held_out: "Dataset | None"  # likewise, never trained on; None when the recipe holds nothing out
    rewards: list[Callable[..., Any]]  # the reward functions, correctness first
    notes: list[str]  # what happened to the data, one sentence each
    template_options: Mapping[str, Any] = field(default_factory=dict)  # `chat_template_kwargs`
    stream: str | None = None  # of problems made to order, the stream they are the beginning of


def build_data(
    arguments: TaskArguments,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    seed: int = 0,
    prompts: int | None = None,
    template_options: Mapping[str, Any] | None = None,
) -> TrainingData:
    """Load the recipe's problems and lay them out as prompts.

    `seed` is of problems made on the fly; `prompts`, how many the run uses, where that is known;
    `template_options` are its `chat_template_kwargs`.
    """
    task = recipe_task(arguments)
    _check_arguments(task, arguments)
    notes: list[str] = []
    prompt = _prompt_maker(task, arguments, tokenizer)

    def lengths(problems: Sequence[Problem]) -> list[int]:
        return prompt_lengths([prompt(one.row) for one in problems], tokenizer, template_options)

    if task.endless:
        training, held_out = _endless(task, arguments, seed, prompts, lengths, notes)
    else:
        training, held_out = _problems(task, arguments, notes)
    graded = arguments.reward_funcs is None and not task.needs_gold

    def dataset(problems: Sequence[Problem], what: str) -> "Dataset":
        rows = [_row(problem, prompt(problem.row), graded) for problem in problems]
        if arguments.max_prompt_tokens is not None and not task.endless:
            rows = _drop_long(rows, lengths(problems), arguments.max_prompt_tokens, what, notes)
        return _as_dataset(rows)

    own = arguments.reward_funcs or []
    functions = [import_reward(path) for path in own]
    if own and held_out:
        notes.append(f"held-out accuracy is the share of completions that {own[0]} gives 1 or more")
    return TrainingData(
        task=task,
        train=dataset(training, "training"),
        held_out=dataset(held_out, "held-out") if held_out else None,
        rewards=functions or [reward_function(task)],
        notes=notes,
        template_options=dict(template_options or {}),
        stream=_stream(task, arguments, seed),
    )


def _stream(task: Task, arguments: TaskArguments, seed: int) -> str | None:
    if not task.endless or arguments.max_problems or task.pool:
        return None
    limit = arguments.max_prompt_tokens
    shorter = f", max_prompt_tokens {limit}" if limit is not None else ""
    return f"{task.reference}, seed {seed}{shorter}"


def recipe_task(arguments: TaskArguments) -> Task:
    """The task of a recipe."""
    steps = arguments.chain_steps
    return get_task(f"chain?steps={steps}" if arguments.task == "chain" else arguments.task)


def _prompt_maker(
    task: Task, arguments: TaskArguments, tokenizer: "PreTrainedTokenizerBase"
) -> Callable[[Row], Prompt]:
    """From a problem's row to the prompt of the recipe."""
    template = get_template(arguments.template or task.template)
    chat, said = _uses_chat(task, arguments, tokenizer), arguments.system_prompt
    system = [{"role": "system", "content": said}] if said else []

    def prompt(row: Row) -> Prompt:
        text = fill(template, row)
        return [*system, {"role": "user", "content": text}] if chat else text

    return prompt


def _row(problem: Problem, prompt: Prompt, graded: bool) -> dict[str, Any]:
    columns = {name: value for name, value in problem.row.items() if name not in RESERVED}
    if isinstance(own := problem.row.get("prompt"), str):
        columns[CODE_PROMPT] = own
    whole = {ROW: json.dumps(problem.row, default=str)} if graded else {}
    return {**columns, "prompt": prompt, "answer": problem.answer, **whole}


def _as_dataset(rows: list[dict[str, Any]]) -> "Dataset":
    """The rows as a data set; a column without a common type, or of huge numbers, becomes JSON."""
    import pyarrow as pa
    from datasets import Dataset

    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, list[Any]] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            values = [json.dumps(value, default=str) for value in values]
        columns[name] = values
    return Dataset.from_dict(columns)


def _check_arguments(task: Task, arguments: TaskArguments) -> None:
    for name in ("max_problems", "max_prompt_tokens"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ACPOError(f"{name}={value} must be positive, or left out")
    if arguments.held_out is not None and arguments.held_out < 0:
        raise ACPOError(f"held_out={arguments.held_out} must not be negative")
    steps = arguments.chain_steps
    if steps != TaskArguments.chain_steps and arguments.task != "chain":
        raise ACPOError(f"chain_steps={steps} is for task='chain'; leave it out")
    source: Any = arguments.data or task.problems
    own = arguments.held_out is not None and arguments.data is None and task.held_out_split
    held: Any = arguments.held_out_data or (source if own else None)
    for name, read in (("data_config", source), ("data_split", source), ("held_out_split", held)):
        value, hub = getattr(arguments, name), isinstance(read, str) and not is_file(read)
        if value != getattr(TaskArguments, name) and not hub:
            raise ACPOError(f"{name}={value!r} is for a data set on the hub; leave it out")
    if not task.endless:
        return
    for name in ("data", "held_out_data", "problem_column", "answer_column"):
        value = getattr(arguments, name)
        if value is not None:
            raise ACPOError(
                f"{name}={value!r}: task={task.name!r} makes its own problems; leave it out"
            )


def _problems(
    task: Task, arguments: TaskArguments, notes: list[str]
) -> tuple[list[Problem], list[Problem]]:
    """(training, held-out) problems."""
    problems, cleaning = load_problems(
        task,
        arguments.data,
        config=arguments.data_config,
        split=arguments.data_split,
        columns=_columns(task, arguments),
        template=arguments.template,
    )
    notes.append(f"{task.title}: {cleaning}")
    own_split = task.held_out_split if arguments.data is None else None
    held: list[Problem] = []
    if arguments.held_out_data or (arguments.held_out is not None and own_split):
        problems, held = _held_out_elsewhere(task, arguments, problems, own_split, notes)
    elif arguments.held_out:
        problems, held = split_off(problems, arguments.held_out)
        notes.append(f"held out: {len(held)} of the problems")
    return problems[: arguments.max_problems], held


def _held_out_elsewhere(
    task: Task,
    arguments: TaskArguments,
    problems: list[Problem],
    own_split: str | None,
    notes: list[str],
) -> tuple[list[Problem], list[Problem]]:
    """(training, held-out) problems, where those have a file or a split of their own."""
    split = arguments.held_out_split or own_split or "test"
    same = arguments.held_out_data in (None, arguments.data)
    held, cleaning = load_problems(
        task,
        arguments.held_out_data,
        config=arguments.data_config if same else None,
        split=split,
        columns=_columns(task, arguments),
        template=arguments.template,
    )
    texts = {problem.text for problem in held}
    kept = [problem for problem in problems if problem.text not in texts]
    source = "held_out_data" if arguments.held_out_data else f"the {split} split"
    if not kept:
        raise ACPOError(
            f"all {len(problems)} training problems are also in {source}, so that none is left; "
            "set data or held_out_data to another file"
        )
    if arguments.held_out is not None and arguments.held_out < len(held):
        held = split_off(held, arguments.held_out)[1] if arguments.held_out else []
    notes.append(f"held out: {cleaning}; {len(held)} of them used")
    if len(kept) < len(problems):
        notes.append(f"{len(problems) - len(kept)} training problems also in {source} left out")
    return kept, held


def _endless(
    task: Task,
    arguments: TaskArguments,
    seed: int,
    prompts: int | None,
    lengths: Callable[[Sequence[Problem]], list[int]],
    notes: list[str],
) -> tuple[list[Problem], list[Problem]]:
    """(training, held-out) problems, in the order in which the task makes them."""
    count = arguments.max_problems or task.pool or prompts
    if count is None:
        raise ACPOError(
            f"task={task.reference!r} never runs out of problems: set max_steps, or max_problems "
            "for passes over so many"
        )
    limit = arguments.max_prompt_tokens

    def make(count: int, what: str, **options: Any) -> list[Problem]:
        drawn = count
        while True:
            made = endless_problems(task, drawn, template=arguments.template, **options)
            if limit is None:
                return made
            short = [
                one for one, length in zip(made, lengths(made), strict=True) if length <= limit
            ]
            if len(short) >= count:
                break
            hopeless = drawn >= FIRST_LOOK and 8 * MOST_DRAWN * len(short) < drawn
            if hopeless or drawn >= MOST_DRAWN * count + FIRST_LOOK:
                raise ACPOError(
                    f"max_prompt_tokens={limit}: of {drawn} {what} problems of "
                    f"task={task.reference!r} only {len(short)} are as short, and {count} are "
                    "needed; raise it, or make the settings narrower"
                )
            drawn *= 2
        if drawn > count:
            notes.append(f"{what} prompts of more than {limit} tokens left out, and others made")
        return short[:count]

    held: list[Problem] = []
    if arguments.held_out:
        held = make(arguments.held_out, "held-out", seed=task.held_out_seed)
    banned = {problem.text for problem in held}
    training = make(count, "training", seed=TRAINING_SEEDS + seed, exclude=banned)
    notes.append(
        f"{task.title}, made on the fly: {len(training)} to train on, {len(held)} held out"
    )
    return training, held


def _columns(task: Task, arguments: TaskArguments) -> tuple[Columns, ...]:
    """The task's, one or both of them as the recipe has it."""
    problem, answer = arguments.problem_column, arguments.answer_column
    return tuple(
        Columns(problem or one.problem, answer or one.answer, "text" if answer else one.gold)
        for one in task.columns
    )


def _uses_chat(task: Task, arguments: TaskArguments, tokenizer: "PreTrainedTokenizerBase") -> bool:
    has_template = tokenizer.chat_template is not None
    if arguments.chat and not has_template:
        raise ACPOError("chat=True, but the tokenizer has no chat template; set chat: false")
    chat = arguments.chat if arguments.chat is not None else has_template and task.name != "chain"
    if arguments.system_prompt and not chat:
        raise ACPOError("system_prompt is set, but prompts are plain text; set chat: true")
    return chat


def prompt_lengths(
    prompts: Iterable[Prompt],
    tokenizer: "PreTrainedTokenizerBase",
    template_options: Mapping[str, Any] | None = None,
) -> list[int]:
    """Tokens of each prompt, as the trainer will feed it: under the chat template, if it is one."""
    return [len(ids) for ids in prompt_ids(prompts, tokenizer, template_options)]


def prompt_ids(
    prompts: Iterable[Prompt],
    tokenizer: "PreTrainedTokenizerBase",
    template_options: Mapping[str, Any] | None = None,
) -> list[list[int]]:
    """The tokens themselves."""
    prompts = list(prompts)
    plain = not prompts or isinstance(prompts[0], str)  # a chat template writes special tokens
    texts = [as_text(prompt, tokenizer, template_options) for prompt in prompts]
    ids: Any = tokenizer(texts, add_special_tokens=plain)["input_ids"]
    return ids


def as_text(
    prompt: Prompt,
    tokenizer: "PreTrainedTokenizerBase",
    template_options: Mapping[str, Any] | None = None,
) -> str:
    """A prompt as the model reads it."""
    if isinstance(prompt, str):
        return prompt
    from acpo.engines.trl.safety import rendered

    return rendered(prompt, tokenizer, template_options)


def _drop_long(
    rows: list[dict[str, Any]], lengths: list[int], limit: int, what: str, notes: list[str]
) -> list[dict[str, Any]]:
    kept = [row for row, length in zip(rows, lengths, strict=True) if length <= limit]
    if not kept:
        raise ACPOError(
            f"max_prompt_tokens={limit}: all {len(rows)} {what} prompts are longer; the shortest "
            f"has {min(lengths)} tokens"
        )
    if len(kept) < len(rows):
        notes.append(
            f"{len(rows) - len(kept)} {what} prompts of more than {limit} tokens left out; "
            f"{len(kept)} remain"
        )
    return kept
