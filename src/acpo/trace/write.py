"""Traces of a model: of what it is made to sample, and of what an evaluation sampled."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from acpo.errors import ACPOError
from acpo.evaluate.backends import Sampling
from acpo.evaluate.backends.transformers import TransformersBackend
from acpo.objectives import get_method
from acpo.records import Trace, TraceError, TraceWriter, has_begun
from acpo.scoring.pieces import Pieces
from acpo.scoring.rollouts import Rollout, score, trace_rows
from acpo.tasks.grading import grade_all
from acpo.tasks.task import Task
from acpo.trace.sample import Prompt, choose_questions, sample_rollouts
from acpo.train.recipe import TaskArguments


@dataclass(frozen=True)
class Options:
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
    options: Options,
    *,
    device: str | None = None,
    batch_size: int = 32,
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Sample, verify, score, and add the result to the trace in `output`.

    Args:
        model: hub id, folder, `.gguf` file, or `package:NAME/PATH`.
        output: folder of the trace.
        task: where the prompts come from.
        options: everything else the trace depends on.
        device: where the model runs; None takes CUDA when there is one.
        batch_size: sequences that run together.
        watch: called for each completion.

    Raises:
        ACPOError: for a model, data or options that do not fit, and for an `output` that holds
            this step already or another trace.
    """
    method = get_method(options.method)
    sampling = Sampling(options.temperature, max_tokens=options.max_tokens, chat=False)
    source = TransformersBackend(model, sampling, batch_size=batch_size, device=device)
    kind, questions = choose_questions(
        task, source.checkpoint.tokenizer, count=options.n, seed=options.seed
    )
    loaded = source.load()
    header = _header(model, loaded, task, options)
    require_new_step(output, header, options.step)
    rollouts = sample_rollouts(
        source,
        loaded,
        questions,
        sampling,
        group=options.group,
        seed=options.seed,
        batch_size=batch_size,
        watch=watch,
    )
    rollouts = _judged(rollouts, kind, questions, source.checkpoint.tokenizer)
    scored = score(
        loaded,
        rollouts,
        temperature=options.temperature,
        top_k=options.top_k,
        align_tol=float(method.options["align_tol"]),
        batch_size=batch_size,
    )
    rows, columns = trace_rows(
        rollouts,
        scored,
        Pieces(source.checkpoint.tokenizer),
        method=method,
        group_size=options.group,
    )
    if has_begun(output):
        header = first_header(output)
    with TraceWriter(output, header) as writer:
        writer.append(rows, columns, step=options.step)


def _judged(
    rollouts: Sequence[Rollout], task: Task, questions: Sequence[Prompt], tokenizer: Any
) -> list[Rollout]:
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


def _header(model: str, loaded: Any, task: TaskArguments, options: Options) -> dict[str, Any]:
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


def require_new_step(output: Path, header: dict[str, Any], step: int) -> None:
    """Refuse to mix: the same prompts and settings, another step, or a folder of its own.

    Models may differ: that is what steps are for. The header keeps the first one's name.
    """
    if not has_begun(output):
        return
    for name, value in first_header(output).items():
        if name != "model" and value != header.get(name):
            raise TraceError(
                f"{output} was made with {name}={value!r}, not {header.get(name)!r}: restore it, "
                "or use another --output"
            )
    steps = sorted({part["step"] for part in Trace.open(output).parts})
    if step in steps:
        raise ACPOError(
            f"{output} holds step {step} already (steps {', '.join(map(str, steps))}): pass --step "
            "for another, or another --output"
        )
