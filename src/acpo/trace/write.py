"""Traces of a model: of what it is made to sample, and of what an evaluation sampled."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from acpo.errors import ACPOError
from acpo.evaluate.backends import Sampling
from acpo.evaluate.backends.transformers import TransformersBackend
from acpo.objectives import get_method
from acpo.records import Trace, TraceError, TraceWriter, has_begun
from acpo.scoring.pieces import Pieces
from acpo.scoring.rollouts import SampledCompletion, prompt_id, score, trace_rows
from acpo.tasks.grading import grade_all
from acpo.tasks.task import Task
from acpo.trace.sample import Prompt, choose_questions, sample_rollouts
from acpo.train.recipe import TaskArguments

PROMPTS_PER_PART = 16
"""Prompts whose completions are written together, and lost together when a call is killed."""


@dataclass(frozen=True)
class TraceOptions:
    """What a trace is made of, apart from the task.

    Attributes:
        n: prompts.
        group: completions of each.
        temperature: of the policy, for sampling and scoring alike.
        max_tokens: longest completion.
        top_k: how many of the likeliest tokens are kept for each token.
        method: whose advantages and credit are written.
        seed: which prompts, and every completion's random numbers.
        step: optimizer step the model has reached.
    """

    n: int
    group: int
    temperature: float
    max_tokens: int
    top_k: int
    method: str
    seed: int
    step: int


def write_sampled_trace(
    model: str,
    output: Path,
    task: TaskArguments,
    options: TraceOptions,
    *,
    device: str | None = None,
    batch_size: int = 32,
    watch: Callable[[int], None] = lambda completions: None,
) -> None:
    """Sample, verify, score, and add the result to the trace in `output`, part by part.

    A part is on disk when it is done: killed, the same call goes on with the prompts that lack.

    Args:
        model: hub id, folder, `.gguf` file, or `package:NAME/PATH`.
        output: folder of the trace.
        task: where the prompts come from.
        options: everything else the trace depends on.
        device: where the model runs; None takes CUDA when there is one.
        batch_size: sequences that run together.
        watch: called with how many completions came: those that were there, then one by one.

    Raises:
        ACPOError: for a model, data or options that do not fit, and for an `output` that holds all
            of this step already or another trace.
    """
    method = get_method(options.method)
    sampling = Sampling(options.temperature, max_tokens=options.max_tokens, chat=False)
    source = TransformersBackend(model, sampling, batch_size=batch_size, device=device)
    kind, questions = choose_questions(
        task, source.checkpoint.tokenizer, count=options.n, seed=options.seed
    )
    loaded = source.load()
    header = _header(model, loaded, task, options)
    there = prompts_there(output, header, options.step)
    missing = [q for q in questions if prompt_id(q.prompt_ids) not in there]
    if not missing:
        raise ACPOError(
            f"{output} holds step {options.step} already, all {len(questions)} prompts of it: pass "
            "--step for another, or another --output"
        )
    watch(options.group * (len(questions) - len(missing)))
    pieces = Pieces(source.checkpoint.tokenizer)
    for first in range(0, len(missing), PROMPTS_PER_PART):
        asked = missing[first : first + PROMPTS_PER_PART]
        rollouts = sample_rollouts(
            source,
            loaded,
            asked,
            sampling,
            group=options.group,
            seed=options.seed,
            batch_size=batch_size,
            watch=lambda: watch(1),
        )
        rollouts = _judged(rollouts, kind, asked, source.checkpoint.tokenizer)
        scored = score(
            loaded,
            rollouts,
            temperature=options.temperature,
            top_k=options.top_k,
            align_tol=float(method.options["align_tol"]),
            batch_size=batch_size,
        )
        rows, columns = trace_rows(
            rollouts, scored, pieces, method=method, group_size=options.group
        )
        own = first_header(output) if has_begun(output) else header
        with TraceWriter(output, own) as writer:
            writer.append(rows, columns, step=options.step)


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


def _header(model: str, loaded: Any, task: TaskArguments, options: TraceOptions) -> dict[str, Any]:
    defaults = asdict(TaskArguments())
    given = {k: v for k, v in asdict(task).items() if v != defaults[k]}
    return {
        "source": "trace",
        "model": model,
        "vocab_size": loaded.get_output_embeddings().weight.shape[0],
        "task": task.task,
        "task_options": {k: v for k, v in given.items() if k not in ("task", "max_problems")},
        "n": options.n,
        "group": options.group,
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
        "top_k": options.top_k,
        "method": options.method,
        "seed": options.seed,
    }


def first_header(output: Path) -> dict[str, Any]:
    """What a trace says of itself, without what every trace says."""
    return {k: v for k, v in Trace.open(output).header.items() if k not in ("format", "version")}


def prompts_there(output: Path, header: dict[str, Any], step: int) -> set[str]:
    """The prompts of a step that a trace holds; another trace is refused.

    Models may differ between steps: that is what steps are for. The header keeps the first's name.
    """
    if not has_begun(output):
        return set()
    for name, value in first_header(output).items():
        if name != "model" and value != header.get(name):
            raise TraceError(
                f"{output} was made with {name}={value!r}, not {header.get(name)!r}: restore it, "
                "or use another --output"
            )
    trace = Trace.open(output)
    if step not in {part["step"] for part in trace.parts}:
        return set()
    return set(trace.of_step(step).rollouts["prompt_id"].to_pylist())


def trace_and_print(
    model: str, output: Path, task: TaskArguments, options: TraceOptions, **run: Any
) -> None:
    """Make a trace under a progress bar, or lines of it for a log, and say what it holds."""
    total = options.n * options.group
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        sampling = bar.add_task("sampling", total=total)
        done = 0

        def watch(completions: int) -> None:
            nonlocal done
            before, done = done, done + completions
            bar.advance(sampling, completions)
            if not console.is_terminal and 10 * done // total > 10 * before // total:
                console.print(f"{done} of {total} completions", highlight=False)

        write_sampled_trace(model, output, task, options, **run, watch=watch)
    print_trace(output)


def trace_samples_and_print(model: str, samples: Path, output: Path, **options: Any) -> None:
    """Score the samples of an evaluation, and say what the trace holds."""
    from acpo.evaluate.traces import trace_samples

    trace_samples(model, samples, output, **options)
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
