"""`acpo trace` for a person at a shell."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from acpo.records import Trace
from acpo.trace.write import Options, write_sampled_trace
from acpo.train.recipe import TaskArguments


def trace_and_print(
    model: str, output: Path, task: TaskArguments, options: Options, **run: Any
) -> None:
    """Make a trace under a progress bar, and say what it holds."""
    with Progress(console=Console(stderr=True), transient=True) as bar:
        total = options.n * options.group
        sampling = bar.add_task("sampling", total=total)
        write_sampled_trace(
            model, output, task, options, **run, watch=lambda: bar.advance(sampling)
        )
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
