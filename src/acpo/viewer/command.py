"""The commands that write pages. Light to import: everything heavy is imported by the verbs."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from acpo.annotate.evidence import Place
    from acpo.records import Trace


def view(
    trace: Path = typer.Argument(help="A trace, as `acpo trace` makes them."),
    output: Path | None = typer.Option(
        None, "--output", "-o", help="The page (default: TRACE.html)."
    ),
    methods: str | None = typer.Option(
        None, help="Methods to show, with commas (default: sapo and the trace's own, or acpo)."
    ),
    prompts: int = typer.Option(64, min=1, help="Show so many prompts, spread over the steps."),
    step: int | None = typer.Option(None, min=0, help="Only completions of this training step."),
    annotations: Path | None = typer.Option(
        None, help="Mark first errors; file that `acpo annotate propose` wrote."
    ),
) -> None:
    """Write a page that shows where the credit goes, token by token; it needs no network."""
    from acpo.method_columns import method_columns, methods_to_show
    from acpo.records import Trace
    from acpo.viewer.credit import write_credit_page

    source = Trace.open(trace).of_step(step)
    chosen = methods_to_show(source, methods)
    page = output or trace.resolve().with_name(f"{trace.resolve().name}.html")
    shown = write_credit_page(
        source,
        page,
        methods={method.name: method_columns(source, method)._asdict() for method in chosen},
        titles={method.name: method.title for method in chosen},
        prompts=prompts,
        errors=_errors(source, annotations) if annotations else None,
    )
    typer.echo(f"{page}: {shown} prompt{'s' * (shown != 1)}, {page.stat().st_size / 1e6:.1f} MB")


def _errors(trace: "Trace", path: Path) -> "dict[int, Place]":
    """First errors by row of the trace, whoever vouches for them: the page says who does."""
    from acpo.annotate.annotations import Annotations
    from acpo.annotate.evidence import Accept, error_places
    from acpo.annotate.pairs import select

    opened = Annotations.read(path)
    selection = select(trace, step=opened.step)
    found, _ = error_places(selection, opened, Accept.ALL_PROPOSALS)
    return {trajectory.row: place for trajectory, place in found}


def review(
    trace: Path = typer.Argument(help="Folder of a trace."),
    annotations: Path = typer.Option(..., help="File that `acpo annotate propose` wrote."),
    output: Path = typer.Option(Path("review.html"), "--output", "-o", help="Page to write."),
    limit: int | None = typer.Option(None, min=1, help="Only the first so many prompts."),
) -> None:
    """Write one offline page in which a person accepts, moves or rejects each proposal."""
    from acpo.annotate.annotations import Annotations
    from acpo.records import Trace
    from acpo.viewer.review import write_review_page

    opened = Annotations.read(annotations)
    count = write_review_page(Trace.open(trace), opened, output, limit=limit)
    typer.echo(f"{output}: {count} items; open it in a browser, decide, export, then")
    typer.echo(f"acpo annotate apply {annotations} review.json")
