"""`acpo diagnose`. Light to import: everything heavy is imported by the verbs."""

import shlex
import sys
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from acpo.diagnose.report import Finding
    from acpo.records import Trace

diagnose_app = typer.Typer(
    help="The paper's analyses of a trace or of training runs, as numbers and figures.",
    no_args_is_help=True,
)

TRACE = typer.Argument(help="Folder that `acpo trace` wrote.")
MAYBE_TRACE = typer.Argument(None, help="Folder that `acpo trace` wrote.", show_default=False)
STEP = typer.Option(None, min=0, help="Only completions of this training step.")
OUTPUT = typer.Option(None, help="Folder for the files (default: diagnose/TRACE).")
H_MAX = typer.Option(None, min=0.0, help="Nats that make ē = 1 (default: the trace's maximum).")
EVERY = typer.Option(
    False, "--every-token", help="Evaluate branches on all tokens, whatever their advantage."
)
TAU_POS = typer.Option(1.0, help="Gate temperature of the positive branch.")
TAU_NEG = typer.Option(1.05, help="Gate temperature of the non-positive branch.")
SUPPORT = typer.Option(
    None, min=1, help="Vocabulary size (default: the trace's, else Qwen3's 151,936)."
)
ANNOTATIONS = typer.Option(..., help="File that `acpo annotate propose` wrote.")
VERIFIED = typer.Option(
    False, "--verified-only", help="Only places that a person accepted or moved."
)
PROPOSALS = typer.Option(
    False, "--all-proposals", help="Also places that models proposed and nobody verified."
)
ROLLOUT = typer.Option(None, min=0, help="Completion to draw (default: the longest).")
MOST_READ = 32 * 2**20
"""Bytes of a page, of which a list of all its prompts is the first block."""


class GroupBy(StrEnum):
    METHOD = "method"
    RUN = "run"


@diagnose_app.command("gradients")
def gradients(
    trace: Path = TRACE,
    output: Path | None = OUTPUT,
    step: int | None = STEP,
    h_max: float | None = H_MAX,
    every_token: bool = EVERY,
) -> None:
    """How the gradients of δ and of entropy pull beside the sampled token's, and who reverses."""
    _of_trace("gradients", trace, output, step, h_max=h_max, every_token=every_token)


@diagnose_app.command("mismatch")
def mismatch(
    trace: Path = TRACE,
    output: Path | None = OUTPUT,
    step: int | None = STEP,
    tau_pos: float = TAU_POS,
    tau_neg: float = TAU_NEG,
    every_token: bool = EVERY,
) -> None:
    """Which updates of mismatched tokens reverse, at which gap, with and without routing."""
    options = {"tau_pos": tau_pos, "tau_neg": tau_neg, "every_token": every_token}
    _of_trace("mismatch", trace, output, step, **options)


@diagnose_app.command("alignment")
def alignment(trace: Path = TRACE, output: Path | None = OUTPUT, step: int | None = STEP) -> None:
    """How near the sampled tokens are to the mode."""
    _of_trace("alignment", trace, output, step)


@diagnose_app.command("trends")
def trends(trace: Path = TRACE, output: Path | None = OUTPUT) -> None:
    """Alignment, δ and entropy of every step, by the sign of the advantage."""
    _of_trace("trends", trace, output)


@diagnose_app.command("envelope")
def envelope(
    trace: Path | None = MAYBE_TRACE,
    output: Path | None = OUTPUT,
    step: int | None = STEP,
    support: int | None = SUPPORT,
    rollout: int | None = ROLLOUT,
) -> None:
    """Bounds on entropy from δ, and where the tokens lie between them."""
    _of_trace("envelope", trace, output, step, support=support, rollout=rollout)


@diagnose_app.command("coupling")
def coupling(
    trace: Path | None = MAYBE_TRACE,
    output: Path | None = OUTPUT,
    step: int | None = STEP,
    tau_pos: float = TAU_POS,
    tau_neg: float = TAU_NEG,
    offset: float = typer.Option(2.0, help="Of c+ = offset + δ."),
) -> None:
    """The update away from w = 1, and where an aligned positive one reverses."""
    from acpo.diagnose.coupling import Gate

    _of_trace("coupling", trace, output, step, gate=Gate(tau_pos, tau_neg, offset))


@diagnose_app.command("dynamics")
def dynamics(
    runs: list[Path] = typer.Argument(help="Folders that `acpo train` wrote."),
    output: Path | None = typer.Option(None, help="Folder for the files (default: diagnose)."),
    group_by: GroupBy = typer.Option(GroupBy.METHOD, help="Runs that make one curve."),
) -> None:
    """Accuracy, entropy, length and reward over training, seeds as bands."""
    found = _analysis("dynamics", runs, by_run=group_by is GroupBy.RUN)
    _write(found, output or _folder(None))


@diagnose_app.command("blame")
def blame(
    trace: Path = TRACE,
    annotations: Path = ANNOTATIONS,
    verified_only: bool = VERIFIED,
    all_proposals: bool = PROPOSALS,
    output: Path | None = OUTPUT,
) -> None:
    """How much of every method's negative update and credit falls on the first error."""
    _of_trace("blame", trace, output, **_errors(annotations, verified_only, all_proposals))


@diagnose_app.command("first-error")
def first_error(
    trace: Path = TRACE,
    annotations: Path = ANNOTATIONS,
    verified_only: bool = VERIFIED,
    all_proposals: bool = PROPOSALS,
    window: int = typer.Option(32, min=1, help="Tokens on either side of the error."),
    smooth: int = typer.Option(16, min=1, help="Tokens a full profile is averaged over."),
    profiles: int = typer.Option(8, min=1, help="Prompts whose full profiles are drawn."),
    output: Path | None = OUTPUT,
) -> None:
    """Whether entropy and δ rise after the first error, with a test clustered by prompt."""
    from acpo.diagnose.first_error import ProfileSettings

    options = _errors(annotations, verified_only, all_proposals)
    settings = ProfileSettings(window, smooth, profiles)
    _of_trace("first-error", trace, output, **options, settings=settings)


@diagnose_app.command("all")
def all_analyses(
    trace: Path = TRACE,
    runs: list[Path] = typer.Option([], help="Folder that `acpo train` wrote; repeatable."),
    annotations: Path | None = typer.Option(
        None, help="File that `acpo annotate propose` wrote: adds blame and first errors."
    ),
    output: Path | None = OUTPUT,
    step: int | None = STEP,
    every_token: bool = EVERY,
    page: Path | None = typer.Option(
        None, help="Page of this trace that `acpo view` wrote: outlier tokens link into it."
    ),
) -> None:
    """Every analysis of a trace, and of runs, in one HTML report."""
    from acpo.diagnose.outliers import outliers
    from acpo.diagnose.report import html
    from acpo.diagnose.tokens import describe
    from acpo.errors import ACPOError
    from acpo.linefile import write_whole
    from acpo.records import Trace
    from acpo.texts import one_line

    opened, folder = Trace.open(trace).of_step(step), output or _folder(trace)
    opened.require()
    shown = _shown(page, trace) if page else set()
    findings, missing = [], []
    for name, source, options in _analyses(opened, runs, annotations, every_token):
        try:
            found = _analysis(name, source, **options)
        except ACPOError as error:
            missing.append((name, str(error)))
            typer.secho(f"{name}: {one_line(str(error))}", fg="yellow", err=True)
            continue
        for finding in found:
            finding.write(folder, command=_command())
        findings.extend(found)
    links = [
        (one, one.address(page, folder) if page and (one.prompt, one.step) in shown else None)
        for one in outliers(opened)
    ]
    report = html(findings, missing, links, source=describe(opened), command=_command())
    write_whole(folder / "report.html", report)
    typer.echo(f"{folder / 'report.html'}: {len(findings)} analyses")


def _shown(page: Path, trace: Path) -> set[tuple[Any, Any]]:
    """Prompts, and steps of each, that a page of `acpo view` shows."""
    from acpo.errors import ACPOError
    from acpo.jsonl import json_value

    if not page.is_file():
        raise ACPOError(f"--page {page} is not a file: `acpo view {trace} -o {page}` makes it")
    try:
        with page.open("rb") as file:
            _, _, rest = file.read(MOST_READ).partition(
                b'<script type="application/json" id="page">'
            )
        groups = json_value(rest.partition(b"</script>")[0])["groups"]
        return {(group["id"], step) for group in groups for step in group["steps"]}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ACPOError(
            f"--page {page} is no page of a trace that can be read: `acpo view {trace}` makes one"
        ) from error


def _analyses(
    trace: "Trace", runs: list[Path], annotations: Path | None, every_token: bool
) -> list[tuple[str, Any, dict[str, Any]]]:
    """Name, what it looks at, and options of every analysis, in the order of the report."""
    made: list[tuple[str, Any, dict[str, Any]]] = [
        ("gradients", trace, {"every_token": every_token}),
        ("mismatch", trace, {"every_token": every_token}),
        ("alignment", trace, {}),
        ("envelope", trace, {}),
        ("coupling", trace if "old_logp" in trace.columns else None, {}),
    ]
    if len({part["step"] for part in trace.parts}) > 1:
        made.append(("trends", trace, {}))
    if runs:
        made.append(("dynamics", runs, {}))
    if annotations is not None:
        options = _errors(annotations)
        made += [(name, trace, options) for name in ("blame", "first-error")]
    return made


def _analysis(name: str, source: Any, **options: Any) -> "list[Finding]":
    """What the function finds that a command is named after, in the module of the same name."""
    name = name.replace("-", "_")
    found = getattr(import_module(f"acpo.diagnose.{name}"), name)(source, **options)
    return found if isinstance(found, list) else [found]


def _of_trace(
    name: str, trace: Path | None, output: Path | None, step: int | None = None, **options: Any
) -> None:
    """Make an analysis of a trace and write its files."""
    from acpo.errors import ACPOError
    from acpo.records import Trace

    if trace is None and step is not None:
        raise ACPOError(f"--step {step}: name the trace it is of")
    opened = Trace.open(trace).of_step(step) if trace else None
    _write(_analysis(name, opened, **options), output or _folder(trace))


def _errors(
    annotations: Path, verified_only: bool = False, all_proposals: bool = False
) -> dict[str, Any]:
    """What an analysis of first errors takes: the annotations, and which of them count."""
    from acpo.annotate.annotations import Annotations
    from acpo.annotate.evidence import Accept
    from acpo.errors import ACPOError

    if verified_only and all_proposals:
        raise ACPOError("--verified-only and --all-proposals exclude each other: choose one")
    accept = Accept.VERIFIED_ONLY if verified_only else Accept.SOUND
    accept = Accept.ALL_PROPOSALS if all_proposals else accept
    return {"annotations": Annotations.read(annotations), "accept": accept}


def _folder(trace: Path | None) -> Path:
    return Path("diagnose") / trace.resolve().name if trace else Path("diagnose")


def _command() -> str:
    return shlex.join(["acpo", *sys.argv[1:]])


def _write(findings: "list[Finding]", folder: Path) -> None:
    from acpo.texts import one_line

    for finding in findings:
        paths = finding.write(folder, command=_command())
        # Names from data may hold what a terminal would obey.
        facts = (f"- {one_line(fact)}" for fact in finding.facts)
        typer.echo("\n".join([finding.title, "", *facts, ""]))
        typer.echo(", ".join(str(path) for path in paths))
