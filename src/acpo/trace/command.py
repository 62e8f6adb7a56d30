"""`acpo trace`. Light to import: everything heavy is imported when it is called."""

from pathlib import Path
from typing import Any

import typer

from acpo.evaluate.command import given_options
from acpo.texts import folder_name

MODEL = typer.Argument(help="Hub id, folder (an adapter's, too), .gguf, or package:NAME/PATH.")
SAMPLES = typer.Option(
    None, help="Score what this folder of `acpo eval` holds instead of sampling."
)
N = typer.Option(None, "--n", min=1, help="Prompts (default: 48, or all where there are fewer).")
STEP = typer.Option(0, min=0, max=2**31 - 1, help="Training step of MODEL; adds it to a trace.")


WITH_SAMPLES = {"model", "samples", "method", "top_k", "output", "device", "batch_size"}
"""Options that count beside --samples."""


def trace(
    context: typer.Context,
    model: str = MODEL,
    samples: Path | None = SAMPLES,
    task: str = typer.Option("custom", help="A name, my_tasks.py:NAME, gym:NAME, or a data file."),
    data: str | None = typer.Option(None, help="File or hub id (default: the task's own)."),
    split: str = typer.Option("train", help="The hub data set's split."),
    problem_column: str | None = typer.Option(None, help="Column of the problem."),
    answer_column: str | None = typer.Option(None, help="Column of the gold answer."),
    template: str | None = typer.Option(None, help="A name, or a text with {column}."),
    chat: bool | None = typer.Option(None, help="Chat template (default: if there is one)."),
    system: str | None = typer.Option(None, help="System message of a chat prompt."),
    chain_steps: int = typer.Option(5, min=1, help="Operations in each chain of the task chain."),
    n: int | None = N,
    group: int = typer.Option(8, min=1, help="Completions of each prompt."),
    temperature: float = typer.Option(1.0, min=1e-3, help="Of the policy."),
    max_tokens: int = typer.Option(1024, min=1, help="Longest completion."),
    top_k: int = typer.Option(5, min=0, help="Likeliest tokens kept for each token."),
    method: str = typer.Option("acpo", help="Whose advantages and credit; see `acpo methods`."),
    seed: int = typer.Option(0, help="Which prompts, and the random numbers of completions."),
    step: int = STEP,
    output: Path | None = typer.Option(None, help="Folder (default: traces/MODEL)."),
    device: str | None = typer.Option(None, help="cuda, cpu, mps (default: cuda if there is one)."),
    batch_size: int = typer.Option(32, min=1, help="Sequences at a time."),
) -> None:
    """Sample, verify and score groups of completions, token by token, into a trace."""
    from acpo.evaluate.traces import trace_samples
    from acpo.trace.write import TraceOptions, print_trace, trace_and_print
    from acpo.train.recipe import TaskArguments

    folder = output or Path("traces") / folder_name(model)
    run: dict[str, Any] = {"device": device, "batch_size": batch_size}
    if samples is not None:
        _refuse_sampling(context)
        trace_samples(model, samples, folder, method=method, top_k=top_k, **run)
        print_trace(folder)
        return
    arguments = TaskArguments(
        task=task,
        data=data,
        data_split=split,
        problem_column=problem_column,
        answer_column=answer_column,
        template=template,
        chat=chat,
        system_prompt=system,
        chain_steps=chain_steps,
    )
    options = TraceOptions(n, group, temperature, max_tokens, top_k, method, seed, step)
    trace_and_print(model, folder, arguments, options, **run)


def _refuse_sampling(context: typer.Context) -> None:
    from acpo.errors import ACPOError

    others = sorted(context.params.keys() - WITH_SAMPLES)
    if given := given_options(context, others):
        raise ACPOError(f"--samples scores what an evaluation drew: leave out {given}")


def import_rollouts(
    source: Path = typer.Argument(help="Folder or file: verl's, prime-rl's, slime's or TRL's."),
    model: str = typer.Option(..., help="Scores them: hub id, folder, .gguf, package:NAME/PATH."),
    output: Path = typer.Option(..., help="Folder of the trace."),
    method: str = typer.Option("acpo", help="Whose advantages and credit; see `acpo methods`."),
    temperature: float = typer.Option(1.0, min=1e-3, help="Of the policy."),
    top_k: int = typer.Option(5, min=0, help="Likeliest tokens kept for each token."),
    reward: list[str] = typer.Option(
        [], help="TRL: column of the reward, NAME or NAME=WEIGHT, once or more (default: all)."
    ),
    device: str | None = typer.Option(None, help="cuda, cpu, mps (default: cuda if there is one)."),
    batch_size: int = typer.Option(32, min=1, help="Sequences at a time."),
) -> None:
    """Score what another trainer sampled, and write it as a trace."""
    from acpo.trace import imports

    imports.import_rollouts(
        source,
        output,
        model=model,
        method=method,
        rewards=reward,
        temperature=temperature,
        top_k=top_k,
        device=device,
        batch_size=batch_size,
    )
