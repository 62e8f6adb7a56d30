"""The commands that write pages. Light to import: everything heavy is imported by the verbs."""

from pathlib import Path
from typing import Any

import typer


def view(
    trace: Path = typer.Argument(help="A trace, or the output folder of a training run."),
    output: Path | None = typer.Option(
        None, "--output", "-o", help="The page (default: TRACE.html)."
    ),
    methods: str | None = typer.Option(
        None, help="Methods to show, with commas (default: sapo and the trace's own, or acpo)."
    ),
    prompts: int = typer.Option(64, min=1, help="Show at most so many, spread over the steps."),
    step: int | None = typer.Option(None, min=0, help="Only completions of this training step."),
    annotations: Path | None = typer.Option(
        None, help="Mark first errors; file that `acpo annotate propose` wrote."
    ),
    live: bool = typer.Option(False, "--live", help="Serve the page of a run while it trains."),
    port: int | None = typer.Option(None, min=0, max=65535, help="Of --live (default: any free)."),
) -> None:
    """Write a page that shows where the credit goes, token by token; it needs no network."""
    from acpo.errors import ACPOError
    from acpo.records import HEADER, Trace
    from acpo.viewer.credit import credit_blocks, credit_page
    from acpo.viewer.live import LiveServer, run_answers, run_blocks
    from acpo.viewer.run import is_run
    from acpo.viewer.shell import write_page

    if live:
        is_trace = (trace / HEADER).exists()
        if not trace.is_dir() or is_trace or output or annotations or step is not None:
            raise ACPOError(
                f"--live {trace}: give the output_dir of `acpo train`, without --output, --step "
                "and --annotations"
            )
        with LiveServer(run_answers(trace, methods=methods, prompts=prompts), port or 0) as server:
            typer.echo(f"{server.address}\nCtrl+C ends it; training goes on.")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                return
    if port is not None:
        raise ACPOError(f"--port {port} is of --live, which was not given")
    page = output or Path(f"{trace.resolve()}.html")
    options: dict[str, Any] = {"methods": methods, "prompts": prompts, "annotations": annotations}
    if is_run(trace):
        blocks = run_blocks(trace, step=step, **options)
    else:
        source = Trace.open(trace).of_step(step)
        blocks = credit_blocks(source, name=source.path.name, **options)
    write_page(page, credit_page(blocks))
    shown, there = len(blocks["page"]["groups"]), blocks["page"]["prompts"]
    typer.echo(f"{page}: {shown} of {there} prompts, {page.stat().st_size / 1e6:.1f} MB")


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
