"""`acpo annotate`. Light to import: everything heavy is imported by the verbs."""

import os
from pathlib import Path

import typer


def propose(
    trace: Path = typer.Argument(help="Folder of a trace."),
    annotator: list[str] = typer.Option(
        ...,
        help="`exact` for the task chain, `arithmetic` for wrong `a op b = c`, or NAME=URL,"
        "model=MODEL[,key_env=VARIABLE][,prices=READ/WRITTEN] for an OpenAI-compatible endpoint; "
        "repeatable.",
    ),
    output: Path = typer.Option(Path("annotations.jsonl"), "--output", "-o", help="File to write."),
    step: int | None = typer.Option(None, help="Training step, where the trace holds several."),
    limit: int | None = typer.Option(None, min=1, help="Only the first so many prompts."),
    within: int = typer.Option(10, min=0, help="Tokens apart that still count as near."),
    concurrency: int = typer.Option(8, min=1, help="Questions in flight at one endpoint."),
    timeout: float = typer.Option(300.0, min=0.1, help="Seconds one attempt may take."),
    retries: int = typer.Option(5, min=0, help="Further attempts at a question."),
    cache: Path | None = typer.Option(
        None, help="Folder of kept answers (default: ~/.cache/acpo/annotate)."
    ),
) -> None:
    """Ask for the first error of wrong completions. Killed, the same command continues."""
    from acpo.annotate.models import parse_annotators
    from acpo.annotate.pairs import select
    from acpo.annotate.propose import propose_with_progress
    from acpo.records import Trace

    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache or home / "acpo" / "annotate"
    annotators = parse_annotators(annotator, cache=folder, timeout=timeout, retries=retries)
    selection = select(Trace.open(trace), step=step, limit=limit)
    propose_with_progress(selection, annotators, output, concurrency=concurrency, within=within)


def apply(
    annotations: Path = typer.Argument(help="File that `acpo annotate propose` wrote."),
    review: Path = typer.Argument(help="JSON exported from the review page."),
) -> None:
    """Merge a person's decisions into the annotations: all of them, or none."""
    from acpo.annotate.apply import apply

    typer.echo(apply(annotations, review).sentence(annotations))
