"""`acpo <verb>`. Verbs import what they need when called, so that `acpo --help` is instant."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from acpo.annotate.command import annotate_app
from acpo.diagnose.command import diagnose_app
from acpo.errors import ACPOError
from acpo.evaluate.command import data_app, eval_app
from acpo.trace.command import trace

ORDER = [
    "methods",
    "doctor",
    "train",
    "eval",
    "trace",
    "view",
    "diagnose",
    "annotate",
    "compare",
    "verify",
    "data",
]
"""Commands as a newcomer meets them."""


NO_TRL = (
    "this command needs TRL, which is not installed here: run it where `pip install acpo` brought "
    "its requirements; an environment of verl's trains with `python -m verl.trainer.main_ppo` "
    "(docs/verl.md)"
)


class OneLineErrors(TyperGroup):
    """Our own errors, and a missing TRL, as one line on stderr and exit status 2."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ACPOError, ModuleNotFoundError) as error:
            if isinstance(error, ModuleNotFoundError) and error.name != "trl":
                raise
            message = NO_TRL if isinstance(error, ModuleNotFoundError) else error
            typer.secho(f"error: {message}", fg="red", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    name="acpo",
    cls=OneLineErrors,
    help="Token-level credit for reinforcement learning with verifiable rewards.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
verify_app = typer.Typer(help="Verify completions in a JSONL file.", no_args_is_help=True)
app.add_typer(verify_app, name="verify")
app.add_typer(eval_app, name="eval")
app.add_typer(data_app, name="data")
app.add_typer(annotate_app, name="annotate")
app.add_typer(diagnose_app, name="diagnose")
app.command()(trace)


@app.callback()
def main() -> None:
    """Token-level credit for reinforcement learning with verifiable rewards."""


@app.command()
def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """List every method: gate, credit, routing, aggregation, reference."""
    from acpo.catalogue import print_methods

    print_methods(as_json)


OVERRIDABLE = {"allow_extra_args": True, "ignore_unknown_options": True}
RECIPE = typer.Argument(help="A YAML file; see recipes/.")


@app.command(context_settings=OVERRIDABLE)
def train(context: typer.Context, recipe: Path = RECIPE) -> None:
    """Train what a recipe describes. Append `--key value` to change any option of it."""
    from acpo.train import launch

    launch.train(recipe, context.args)


@app.command(context_settings=OVERRIDABLE)
def doctor(
    context: typer.Context,
    recipe: Path = RECIPE,
    processes: int | None = typer.Option(
        None, min=1, help="Training processes to plan for (default: those of this launch)."
    ),
) -> None:
    """Check a recipe, and say what training it will do, before anything is trained."""
    from acpo.train.doctor import examine

    if not examine(recipe, context.args, processes=processes):
        raise typer.Exit(1)


@app.command(context_settings=OVERRIDABLE)
def compare(
    context: typer.Context,
    study: Path = typer.Argument(help="A YAML file; see recipes/studies/."),
    output: Path | None = typer.Option(
        None, help="Where runs and report go (default: runs/compare/<name of the study>)."
    ),
    workers: int = typer.Option(1, min=1, help="Runs at a time."),
    only: str = typer.Option(
        "*", help="Start runs with such names alone, as in '*/sweep/sapo-*,*/start/*'."
    ),
    stop_after: float | None = typer.Option(
        None, min=0.0, help="Start no run after so many seconds; the same command goes on later."
    ),
    report_only: bool = typer.Option(
        False, "--report-only", help="Run nothing; report what is there."
    ),
) -> None:
    """Compare methods: one budget, several seeds, intervals. Resumes where it was stopped."""
    if not report_only and find_spec("trl") is None:  # every run would find out for itself
        raise ModuleNotFoundError(name="trl")
    from acpo.compare.runner import compare as run_study

    run_study(
        study,
        context.args,
        output=output,
        workers=workers,
        only=only.split(","),
        stop_after=stop_after,
        report_only=report_only,
    )


FILE = typer.Argument(help="JSONL, one completion per row.")
TEXT_FIELD = typer.Option("completion", help="Field of the model's text.")
OUTPUT = typer.Option(None, help="Write rows with verdicts here, as JSONL.")
WORKERS = typer.Option(None, min=1, help="Verifications at a time (default: one per core).")


@verify_app.command("math")
def verify_math(
    file: Path = FILE,
    text_field: str = TEXT_FIELD,
    gold_field: str = typer.Option("answer", help="Field of the gold answer."),
    cpu_seconds: float = typer.Option(2.0, min=0.01, help="CPU limit of one comparison."),
    workers: int | None = WORKERS,
    output: Path | None = OUTPUT,
) -> None:
    """Compare math answers with gold answers."""
    from acpo.jsonl import read_jsonl
    from acpo.verify import batch
    from acpo.verify.math import MathPool

    rows = read_jsonl(file)
    texts = batch.column(rows, text_field, "--text-field")
    golds = batch.column(rows, gold_field, "--gold-field")
    with MathPool(workers, cpu_seconds=cpu_seconds) as pool:
        verdicts = batch.verdicts(pool.verify, list(zip(texts, golds, strict=True)))
    batch.report(rows, verdicts, output)


@verify_app.command("code")
def verify_code(
    file: Path = FILE,
    text_field: str = TEXT_FIELD,
    problems: Path | None = typer.Option(
        None, help="JSONL of problems, joined on --id-field (default: the rows hold them)."
    ),
    id_field: str = typer.Option("id", help="Field that names the problem of a row."),
    cpu_seconds: int = typer.Option(10, min=1, help="CPU limit of one solution."),
    workers: int | None = WORKERS,
    output: Path | None = OUTPUT,
    remote: str | None = typer.Option(None, help="URL of a SandboxFusion-compatible server."),
    unsafe_local: bool = typer.Option(
        False, "--unsafe-local", help="Run without a sandbox: model output gets your rights."
    ),
) -> None:
    """Run code completions against their tests, in a sandbox."""
    from acpo.jsonl import read_jsonl
    from acpo.verify import batch
    from acpo.verify.code import CodePool

    rows = read_jsonl(file)
    texts = batch.column(rows, text_field, "--text-field")
    tests = batch.join(rows, problems, id_field) if problems else rows
    backend = batch.backend(remote, unsafe_local, cpu_seconds)
    with CodePool(workers, backend) as pool:
        verdicts = batch.verdicts(pool.verify, list(zip(texts, tests, strict=True)))
    batch.report(rows, verdicts, output)


@app.command()
def view(
    trace: Path = typer.Argument(help="A trace, as `acpo trace` makes them."),
    output: Path | None = typer.Option(
        None, "--output", "-o", help="The page (default: TRACE.html)."
    ),
    methods: str | None = typer.Option(
        None, help="Methods to show, with commas (default: sapo and the trace's own, or acpo)."
    ),
    prompts: int = typer.Option(64, min=1, help="Show so many prompts, from the first on."),
) -> None:
    """Write a page that shows where the credit goes, token by token; it needs no network."""
    from acpo.records import Trace
    from acpo.replay import methods_to_show, replay
    from acpo.viewer import write_credit_page

    source = Trace.open(trace)
    chosen = methods_to_show(source, methods)
    page = output or trace.resolve().with_name(f"{trace.resolve().name}.html")
    shown = write_credit_page(
        source,
        page,
        methods={method.name: replay(source, method)._asdict() for method in chosen},
        titles={method.name: method.title for method in chosen},
        prompts=prompts,
    )
    typer.echo(f"{page}: {shown} prompt{'s' * (shown != 1)}, {page.stat().st_size / 1e6:.1f} MB")
