"""`acpo <verb>`. Verbs import what they need when called, so that `acpo --help` is instant."""

import io
import sys
import warnings
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from acpo.annotate import command as annotate
from acpo.diagnose.command import diagnose_app
from acpo.errors import ACPOError, ACPOWarning
from acpo.evaluate.command import data_app, eval_app
from acpo.texts import printable
from acpo.trace.command import import_rollouts, trace
from acpo.viewer import command as pages

ORDER = (
    *("init", "methods", "doctor", "train", "eval", "trace", "import"),
    *("view", "diagnose", "annotate", "compare", "verify", "data"),
)
"""Commands as a newcomer meets them."""


NO_TRL = (
    "this command needs TRL, which is not installed here: run it where acpo was installed with its "
    "requirements; in an environment of verl's, train with `python -m verl.trainer.main_ppo` "
    "(docs/verl.md)"
)


def require_trl() -> None:
    """Before anything is imported that takes seconds."""
    if find_spec("trl") is None:
        raise ModuleNotFoundError(name="trl")


PLACES = ("init", "--output", "-o", "--trace", "--data-dir")


def _refuse_empty_places(typed: list[str]) -> None:
    """An unset variable in --output "$FOLDER" would be the folder one is in."""
    for text, following in pairwise([*typed, "."]):
        option, equals, value = text.partition("=")
        if option in PLACES and not (value if equals else following):
            raise ACPOError(f"{option} is empty: give a name, or leave it out")


class OneLineErrors(TyperGroup):
    """Our own errors, the system's, and a missing TRL, as one line on stderr and exit status 2."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["typed"] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            _refuse_empty_places(ctx.meta["typed"])
            return super().invoke(ctx)
        except (ACPOError, ModuleNotFoundError, OSError) as error:
            foreign = isinstance(error, ModuleNotFoundError) and error.name != "trl"
            if foreign or isinstance(error, BrokenPipeError):
                raise
            message = NO_TRL if isinstance(error, ModuleNotFoundError) else str(error)
            if isinstance(error, OSError) and error.filename is not None:
                message = f"{error.filename}: {error.strerror}"
            # It quotes files, which hold what they like.
            shown = printable(message, keep="\n")
            typer.secho(f"error: {shown}", fg="red", err=True)
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
annotate_app = typer.Typer(
    help="First errors: annotators propose, a person verifies.", no_args_is_help=True
)
app.add_typer(annotate_app, name="annotate")
annotate_app.command()(annotate.propose)
annotate_app.command()(pages.review)
annotate_app.command()(annotate.apply)
app.add_typer(diagnose_app, name="diagnose")
app.command()(trace)
app.command("import")(import_rollouts)
app.command()(pages.view)


def _print_version(asked: bool) -> None:
    if asked:
        from acpo import __version__

        typer.echo(f"acpo {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", is_eager=True, callback=_print_version
    ),
) -> None:
    """Token-level credit for reinforcement learning with verifiable rewards."""
    warnings.formatwarning = _shown  # type: ignore[assignment]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may lack a letter
            stream.reconfigure(errors="replace")


_pythons = warnings.formatwarning


def _shown(message: Any, category: type[Warning], *place: Any) -> str:
    """Ours as one line; of others', too, nothing that a terminal would obey."""
    if issubclass(category, ACPOWarning):
        return f"warning: {printable(str(message))}\n"
    return printable(_pythons(message, category, *place), keep="\n")


class RecipeCommand(TyperCommand):
    """Its help lists every option of a recipe, by group."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        from acpo.train.recipe import option_groups

        super().format_help(ctx, formatter)
        for title, options in option_groups().items():
            table = Table(title=title, box=None, title_justify="left", show_header=False)
            table.add_column(overflow="fold")
            table.add_column(overflow="fold")
            for name, text in options:
                table.add_row(f"--{name}", escape(text))
            Console().print(table, "")


def packaged_recipes() -> Path:
    """The recipes of this installation: inside the wheel, or beside `src` in a clone."""
    inside = Path(__file__).parent / "recipes"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "recipes"


@app.command()
def init(
    folder: Path = typer.Argument(Path("recipes"), help="Where they go; files there are kept."),
) -> None:
    """Copy the recipes that come with acpo into a folder, to train from and to change."""
    import shutil

    from acpo.linefile import whole_file

    source = packaged_recipes()
    found = sorted(path for path in source.rglob("*") if path.is_file())
    new = [path for path in found if not (folder / path.relative_to(source)).exists()]
    for path in new:
        with whole_file(folder / path.relative_to(source)) as name:
            shutil.copy(path, name)
    kept = len(found) - len(new)
    typer.echo(
        f"{folder}/: {len(new)} files written" + (f", {kept} kept as they were" * (kept > 0))
    )
    typer.echo(f"try:  acpo train {folder}/quickstart.yaml")


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Explain this method alone.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """List every method, or explain one: rule, constants, what it multiplies, differences."""
    from acpo.methods_table import print_method, print_methods

    if name is None:
        print_methods(as_json)
    else:
        print_method(name, as_json)


OVERRIDABLE = {"allow_extra_args": True, "ignore_unknown_options": True}
RECIPE_HELP = "A YAML file; `acpo init` writes some to recipes/."
RECIPE = typer.Argument(help=RECIPE_HELP)


@app.command(context_settings=OVERRIDABLE, cls=RecipeCommand)
def train(
    context: typer.Context,
    recipe: Path = RECIPE,
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Print the recipe as it would be trained, and end."
    ),
) -> None:
    """Train what a recipe describes. Append `--key value` to change any option of it."""
    require_trl()
    from acpo.train import launch
    from acpo.train.recipe import read_recipe, resolved

    if dry_run:
        typer.echo(resolved(read_recipe(recipe, context.args)), nl=False)
    else:
        launch.train(recipe, context.args)


@app.command(context_settings=OVERRIDABLE)
def doctor(
    context: typer.Context,
    recipe: Path | None = typer.Argument(None, help=RECIPE_HELP),
    processes: int | None = typer.Option(
        None, min=1, help="Training processes to plan for (default: those of this launch)."
    ),
    plan: int | None = typer.Option(
        None, min=1, metavar="TOKENS", help="Instead: which GPUs for which model, at this length."
    ),
) -> None:
    """Check a recipe, and say what training it will do, before anything is trained."""
    if plan is not None:
        from acpo.train.plan import print_plan

        print_plan(plan)
        return
    if recipe is None:
        raise ACPOError("doctor needs a recipe, or --plan TOKENS")
    require_trl()
    from acpo.train.doctor import examine

    if not examine(recipe, context.args, processes=processes):
        raise typer.Exit(1)


@app.command(context_settings=OVERRIDABLE)
def compare(
    context: typer.Context,
    study: Path = typer.Argument(help="A YAML file; `acpo init` writes some to recipes/studies/."),
    output: Path | None = typer.Option(
        None,
        file_okay=False,
        help="Where runs and report go (default: runs/compare/<name of the study>).",
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
    if not report_only:
        require_trl()
    from acpo.compare.runner import compare as run_study

    run_study(
        study,
        context.args,
        output=output,
        workers=workers,
        only=[pattern.strip() for pattern in only.split(",")],
        stop_after=stop_after,
        report_only=report_only,
    )


FILE = typer.Argument(help="JSONL, one completion per row.")
TEXT_FIELD = typer.Option("completion", help="Field of the model's text.")
OUTPUT = typer.Option(
    None, help="Write rows with verdicts here, as JSONL, as they come; goes on where it stopped."
)
WORKERS = typer.Option(None, min=1, help="Verifications at a time (default: one per core).")


@verify_app.command("math")
def verify_math(
    file: Path = FILE,
    text_field: str = TEXT_FIELD,
    gold_field: str = typer.Option("answer", help="Field of the gold answer."),
    in_digits: bool = typer.Option(
        False, "--in-digits", help="Right is the number in digits alone: 12, and not 5 + 7."
    ),
    cpu_seconds: float = typer.Option(2.0, min=0.01, help="CPU limit of one comparison."),
    workers: int | None = WORKERS,
    output: Path | None = OUTPUT,
) -> None:
    """Compare math answers with gold answers."""
    from acpo.jsonl import read_jsonl
    from acpo.verify import batch
    from acpo.verify.digits import DigitsPool
    from acpo.verify.math import MathPool

    rows = read_jsonl(file)
    texts = batch.column(rows, text_field, "--text-field")
    golds = batch.column(rows, gold_field, "--gold-field")
    judge = {"kind": "digits" if in_digits else "math", "cpu_seconds": cpu_seconds}
    with (
        batch.Verdicts(rows, list(zip(texts, golds, strict=True)), judge, output) as verdicts,
        DigitsPool() if in_digits else MathPool(workers, cpu_seconds=cpu_seconds) as pool,
    ):
        verdicts.judge(pool.verify)
    verdicts.report()


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
    judge = {"kind": "code", "cpu_seconds": cpu_seconds}
    with (
        batch.Verdicts(rows, list(zip(texts, tests, strict=True)), judge, output) as verdicts,
        CodePool(workers, batch.backend(remote, unsafe_local, cpu_seconds)) as pool,
    ):
        verdicts.judge(pool.verify)
    verdicts.report()
