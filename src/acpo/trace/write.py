"""Traces of a model: of what it is made to sample, and of what an evaluation sampled."""

import json
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from acpo.checkpoints import warn_unread
from acpo.errors import ACPOError, ACPOWarning
from acpo.evaluate.backends import Sampling
from acpo.evaluate.backends.decoder import Decoder, Job
from acpo.evaluate.backends.static import StaticDecoder, make_decoder
from acpo.evaluate.backends.transformers import TransformersBackend, end_tokens
from acpo.evaluate.run import sample_seed
from acpo.objectives import get_method
from acpo.records import Trace, TraceWriter, has_begun
from acpo.scoring.rollouts import SampledCompletion, Scorer, prompt_id
from acpo.tasks.grading import ROW, grade_all
from acpo.tasks.task import Task
from acpo.texts import whole_characters
from acpo.train.data import as_text, build_data, recipe_task
from acpo.train.recipe import TaskArguments

USUAL_PROMPTS = 48
PROMPTS_PER_PART = 16
"""Prompts whose completions are written together, and lost together when a call is killed."""


@dataclass(frozen=True)
class TraceOptions:
    """What a trace is made of, apart from the task; see the options of `acpo trace`."""

    n: int | None  # None: USUAL_PROMPTS, or all where there are fewer
    group: int
    temperature: float
    max_tokens: int
    top_k: int
    method: str
    seed: int
    step: int


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model reads it, its gold answer, and its row as JSON."""

    prompt_ids: list[int]
    answer: str
    row: str

    @property
    def name(self) -> str:
        return prompt_id(self.prompt_ids)


def write_sampled_trace(
    model: str,
    output: Path,
    task: TaskArguments,
    options: TraceOptions,
    *,
    device: str | None = None,
    batch_size: int = 32,
    watch: Callable[[int, int], None] = lambda completions, total: None,
) -> None:
    """Sample, verify, score, and add the result to the trace in `output`, part by part.

    A part is on disk when it is done: killed, the same call goes on with the prompts that lack.
    `watch` is called with how many completions came, those that were there, then one by one, and
    with how many there will be.
    """
    method = get_method(options.method)
    sampling = Sampling(options.temperature, max_tokens=options.max_tokens, chat=False)
    source = TransformersBackend(model, sampling, batch_size=batch_size, device=device)
    tokenizer = source.checkpoint.tokenizer
    kind, questions = choose_questions(task, tokenizer, count=options.n, seed=options.seed)
    options = replace(options, n=len(questions))
    total = options.group * len(questions)
    source.checkpoint.require_room([question.prompt_ids for question in questions])
    loaded = source.load()
    scored_at: dict[str, Any] = {"temperature": options.temperature, "top_k": options.top_k}
    scorer = Scorer(loaded, tokenizer, method, batch_size=batch_size, **scored_at)
    decoder = make_decoder(
        loaded,
        sampling,
        ends=end_tokens(loaded, tokenizer),
        batch_size=batch_size,
        longest=max(len(question.prompt_ids) for question in questions),
    )
    with TraceWriter(output, _header(model, output, loaded, task, options)) as writer:
        policy = source.checkpoint.revision or model
        _refuse_another_model(writer, options.step, policy)
        missing = _missing(questions, output, options.step)
        watch(total - options.group * len(missing), total)
        for first in range(0, len(missing), PROMPTS_PER_PART):
            asked = missing[first : first + PROMPTS_PER_PART]
            sampled = _sampled(decoder, asked, options, lambda: watch(1, total))
            rollouts = _judged(sampled, kind, asked, tokenizer)
            part = scorer.part(rollouts, group_size=options.group)
            writer.append(*part, step=options.step, model=policy)


def choose_questions(
    arguments: TaskArguments, tokenizer: Any, *, count: int | None, seed: int
) -> tuple[Task, list[Prompt]]:
    """`count` of the task's problems, drawn with the seed, laid out as training lays them out."""
    wanted = count or USUAL_PROMPTS
    if recipe_task(arguments).endless:  # made to order
        arguments.max_problems = wanted
    data = build_data(arguments, tokenizer, seed=seed)
    there = len(data.train)
    if wanted > there and count:
        raise ACPOError(f"--n {count}: the data has {there} problems; --n {there} takes them all")
    if wanted > there:
        told = f"the data has {there} problems: all are taken, and not {wanted}"
        warnings.warn(told, ACPOWarning, stacklevel=3)
    chosen = sorted(random.Random(seed).sample(range(there), min(wanted, there)))
    rows = data.train.select(chosen)
    texts = [as_text(prompt, tokenizer) for prompt in rows["prompt"]]
    warn_unread(texts, tokenizer, tokenizer.name_or_path)
    return data.task, [
        Prompt(
            prompt_tokens(row["prompt"], tokenizer),
            row["answer"],
            row.get(ROW) or json.dumps({"answer": row["answer"]}),
        )
        for row in rows
    ]


def prompt_tokens(prompt: str | list[dict[str, str]], tokenizer: Any) -> list[int]:
    """What a trainer feeds for a prompt: a plain text has no template to write special tokens."""
    text = whole_characters(as_text(prompt, tokenizer))
    return list(tokenizer(text, add_special_tokens=isinstance(prompt, str))["input_ids"])


def _sampled(
    decoder: Decoder | StaticDecoder,
    questions: Sequence[Prompt],
    options: TraceOptions,
    watch: Callable[[], None],
) -> list[SampledCompletion]:
    """A group of completions of each question, groups consecutive, without verdicts."""
    jobs = [
        Job(
            (number, sample),
            question.prompt_ids,
            sample_seed(options.seed, "trace", (question.name, sample)),
        )
        for number, question in enumerate(questions)
        for sample in range(options.group)
    ]
    found: dict[tuple[int, int], SampledCompletion] = {}
    for key, tokens, finish, _ in decoder.run(jobs):
        question = questions[key[0]]
        found[key] = SampledCompletion(
            prompt_id=question.name,
            sample=key[1],
            prompt_ids=question.prompt_ids,
            completion_ids=tokens,
            truncated=finish == "length",
            answer=question.answer,
        )
        watch()
    return [found[key] for key in sorted(found)]


def _judged(
    rollouts: Sequence[SampledCompletion], task: Task, questions: Sequence[Prompt], tokenizer: Any
) -> list[SampledCompletion]:
    """The same with reward and verdict, as training gives them."""
    texts = [
        str(tokenizer.decode(list(r.completion_ids), skip_special_tokens=True)) for r in rollouts
    ]
    group = len(rollouts) // len(questions)
    judged = grade_all(task, texts, [q.row for q in questions for _ in range(group)])
    return [
        replace(rollout, reward=verdict.reward(), verdict=str(verdict.outcome))
        for rollout, verdict in zip(rollouts, judged, strict=True)
    ]


def _header(
    model: str, output: Path, loaded: Any, task: TaskArguments, options: TraceOptions
) -> dict[str, Any]:
    """What the trace is. Models may differ between steps: it keeps the name of the first."""
    defaults = asdict(TaskArguments())
    given = {k: v for k, v in asdict(task).items() if v != defaults[k]}
    return {
        "source": "trace",
        "model": Trace.open(output).header.get("model") if has_begun(output) else model,
        "vocab_size": loaded.get_output_embeddings().weight.shape[0],
        "task": task.task,
        "task_options": {k: v for k, v in given.items() if k not in ("task", "max_problems")},
        **{k: v for k, v in asdict(options).items() if k != "step"},
    }


def _refuse_another_model(writer: TraceWriter, step: int, policy: str) -> None:
    """One step is one policy."""
    others = {str(part.get("model")) for part in writer.parts if part["step"] == step} - {policy}
    if others:
        raise ACPOError(
            f"{writer.path} holds completions of another model ({', '.join(others)}, not {policy}) "
            f"at step {step}: pass --step for another, or another --output"
        )


def _missing(questions: list[Prompt], output: Path, step: int) -> list[Prompt]:
    """The prompts that a trace lacks at a step; a whole step is refused."""
    rollouts = Trace.open(output).rollouts.select(["step", "prompt_id"]).to_pylist()
    there = {row["prompt_id"] for row in rollouts if row["step"] == step}
    missing = [question for question in questions if question.name not in there]
    if not missing:
        raise ACPOError(
            f"{output} holds step {step} already, all {len(questions)} prompts of it: pass --step "
            "for another, or another --output"
        )
    return missing


def trace_and_print(
    model: str, output: Path, task: TaskArguments, options: TraceOptions, **run: Any
) -> None:
    """Make a trace under a progress bar, or lines of it for a log, and say what it holds."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        sampling = bar.add_task("sampling", total=None)
        done = 0

        def watch(completions: int, total: int) -> None:
            nonlocal done
            before, done = done, done + completions
            bar.update(sampling, advance=completions, total=total)
            if not console.is_terminal and 10 * done // total > 10 * before // total:
                console.print(f"{done} of {total} completions", highlight=False)

        write_sampled_trace(model, output, task, options, **run, watch=watch)
    print_trace(output)


def print_trace(path: Path) -> None:
    """What a trace holds, in a few numbers."""
    trace = Trace.open(path)
    rollouts = trace.rollouts
    tokens = trace.tokens("is_mode", "entropy", "delta")
    rewards = rollouts["reward"].drop_null().to_numpy()
    prompts = len(set(rollouts["prompt_id"].to_pylist()))
    console = Console(highlight=False)
    console.print(f"{rollouts.num_rows} completions of {prompts} prompts, {len(trace)} tokens")
    if len(rewards):
        console.print(f"mean reward {rewards.mean():.3f} over {len(rewards)} verdicts")
    console.print(
        f"sampled token is the mode {tokens['is_mode'].mean():.1%}, "
        f"entropy {tokens['entropy'].mean():.3f} nats, delta {tokens['delta'].mean():.3f}"
    )
    console.print(f"in {path}", markup=False)
