"""`acpo eval` and `acpo data`. Light to import: everything heavy is imported by the verbs."""

import json
import math
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from typer.core import TyperGroup

from acpo.errors import ACPOError, ACPOWarning
from acpo.texts import folder_name

if TYPE_CHECKING:
    from acpo.evaluate.backends import Sampling
    from acpo.evaluate.run import Plan
    from acpo.tasks.task import Row

PAPER_BENCHMARKS = "aime24,aime25,math500,hmmt25,beyondaime,humaneval_pro"

BackendName = Literal["transformers", "vllm", "openai"]
PromptFormat = Literal["chat", "plain"]
Failed = Literal["exclude", "wrong"]


class ModelOrVerb(TyperGroup):
    """`acpo eval MODEL` is `acpo eval run MODEL`: what is no verb is a model."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


eval_app = typer.Typer(
    cls=ModelOrVerb,
    help="Evaluate a model: `acpo eval MODEL`, whose options `acpo eval run --help` lists. Then: "
    "`acpo eval compare A B`, `acpo eval table`.",
    no_args_is_help=True,
)
data_app = typer.Typer(help="Look at benchmark and training data.", no_args_is_help=True)

MODEL = typer.Argument(
    help="Hub id, folder (an adapter's, too), .gguf, package:NAME/PATH, or a server's name."
)
BENCHMARKS = typer.Option(
    PAPER_BENCHMARKS,
    help="Tasks, with commas: names, my_tasks.py:NAME, gym:NAME, data files.",
)
K = typer.Option(
    None, min=1, help="Samples per question (default: 8; code, gsm8k and gym 1; or the task's k)."
)
FAILED = typer.Option(
    "exclude", help="Samples that could not be drawn are left out, or count as wrong."
)
FORMAT = typer.Option("markdown", "--format", help="What to print.")
DATA_DIR = typer.Option(None, help="Folder with NAME.jsonl (default: download once).")
BACKEND = typer.Option(
    None, help="Who samples (default: openai with --base-url, else transformers)."
)
BATCH_SIZE = typer.Option(
    None, min=1, help="Sequences at a time (default: transformers 32, vllm 256)."
)
UNSAFE_LOCAL = typer.Option(
    False, "--unsafe-local", help="Run code without a sandbox, with your rights."
)
NAMED_ROWS = 20


OPTIONS: dict[BackendName, tuple[str, ...]] = {
    "transformers": ("batch_size", "device"),
    "vllm": ("batch_size",),
    "openai": ("base_url", "api_key_env", "concurrency", "timeout", "retries"),
}
"""Options that a backend takes."""


@eval_app.command("run")
def run_eval(
    context: typer.Context,
    model: str = MODEL,
    benchmarks: str = BENCHMARKS,
    k: int | None = K,
    limit: int | None = typer.Option(None, min=1, help="Only the first so many questions of each."),
    temperature: float = typer.Option(1.0, min=0.0, help="0 takes the most probable token."),
    top_p: float = typer.Option(1.0, min=0.0, max=1.0, help="Mass of the nucleus."),
    max_tokens: int = typer.Option(8192, min=1, help="Longest completion."),
    stop: list[str] = typer.Option([], help="Text that ends a completion; repeatable."),
    prompt_format: PromptFormat = typer.Option("chat", help="Under the chat template, or plain."),
    system: str | None = typer.Option(None, help="System message."),
    seed: int = typer.Option(0, help="Every sample's own seed is made of it."),
    output: Path | None = typer.Option(None, help="Folder of the run (default: evals/MODEL)."),
    data_dir: Path | None = DATA_DIR,
    backend: BackendName | None = BACKEND,
    base_url: str | None = typer.Option(None, help="OpenAI-compatible server, up to /v1."),
    api_key_env: str = typer.Option("OPENAI_API_KEY", help="Variable that holds its key."),
    concurrency: int = typer.Option(64, min=1, help="openai: requests in flight."),
    timeout: float = typer.Option(1800.0, min=0.1, help="openai: seconds one request may take."),
    retries: int = typer.Option(6, min=0, help="openai: further attempts at a request."),
    batch_size: int | None = BATCH_SIZE,
    device: str | None = typer.Option(None, help="transformers: cuda, cpu, mps."),
    trace: Path | None = typer.Option(None, help="transformers: folder of a trace of the samples."),
    failed: Failed = FAILED,
    workers: int | None = typer.Option(None, min=1, help="Verifications at a time."),
    remote: str | None = typer.Option(None, help="SandboxFusion-compatible server for code."),
    unsafe_local: bool = UNSAFE_LOCAL,
) -> None:
    """Sample, verify, and report accuracies with intervals. Killed, the same command continues."""
    from acpo.evaluate.backends import Sampling, make_backend
    from acpo.evaluate.terminal import evaluate
    from acpo.tasks.grading import Judges
    from acpo.verify import batch

    chat = prompt_format == "chat"
    sampling = Sampling(temperature, top_p, max_tokens, tuple(stop), chat, system)
    chosen, options = _backend(context, backend or ("openai" if base_url else "transformers"))
    _check_sampling(sampling, k)
    plans = _plans(benchmarks, data_dir, k, limit)
    source = make_backend(chosen, model, sampling, **options)
    folder = output or Path("evals") / folder_name(model)
    with Judges(workers, lambda: batch.backend(remote, unsafe_local, 10)) as judges:
        evaluate(plans, source, judges, output=folder, seed=seed, failed=failed)
    if trace is not None:
        from acpo.evaluate.traces import trace_samples

        golds = {(p.name, q.id): q.row.get("answer") for p in plans for q in p.questions}
        trace_samples(model, folder, trace, answers=golds, **options)


def _check_sampling(sampling: "Sampling", k: int | None) -> None:
    if sampling.temperature and not 1e-3 <= sampling.temperature < math.inf:
        raise ACPOError(
            f"--temperature {sampling.temperature} must be 0, which takes the most probable token, "
            "or 0.001 or more and finite"
        )
    if sampling.system is not None and not sampling.chat:
        raise ACPOError("--system needs --prompt-format chat: a plain prompt has no messages")
    if "" in sampling.stop:
        raise ACPOError("--stop '' ends every completion before it begins: give a text")
    if sampling.temperature == 0 and k != 1:
        text = "--temperature 0 draws the same sample k times: --k 1 gives the same numbers"
        warnings.warn(text, ACPOWarning, stacklevel=3)


def _backend(context: typer.Context, chosen: BackendName) -> tuple[BackendName, dict[str, Any]]:
    """Who samples, and its own options; one given that it does not take is refused."""
    trace = context.params["trace"]
    if trace is not None and chosen != "transformers":
        raise ACPOError(
            f"--trace {trace} needs --backend transformers: servers tell no token ids, and vLLM "
            "leaves no memory; after --backend vllm, run acpo trace MODEL --samples FOLDER"
        )
    known = dict.fromkeys(name for names in OPTIONS.values() for name in names)
    others = [name for name in known if name not in OPTIONS[chosen]]
    if named := given_options(context, others):
        raise ACPOError(f"--backend {chosen} does not take {named}: leave out what it cannot use")
    options = {name: context.params[name] for name in OPTIONS[chosen]}
    return chosen, {name: value for name, value in options.items() if value is not None}


def _plans(
    benchmarks: str, data_dir: Path | None, k: int | None, limit: int | None
) -> "list[Plan]":
    """What is asked, loaded before any model is."""
    from acpo.evaluate.run import plan
    from acpo.tasks.questions import load_questions

    loaded = [load_questions(name, data_dir, limit=limit) for name in _names(benchmarks)]
    plans = [plan(questions, k, limit) for questions in loaded]
    if len({one.name for one in plans}) < len(plans):
        raise ACPOError(f"--benchmarks {benchmarks}: two of the same name: rename one")
    return plans


@eval_app.command("compare")
def compare(
    a: Path = typer.Argument(help="Folder of a run."),
    b: Path = typer.Argument(help="Folder of another run."),
    form: Literal["markdown", "latex", "json"] = FORMAT,
    failed: Failed = FAILED,
) -> None:
    """A minus B, paired by question, with an interval and a sign test."""
    from acpo.evaluate.report import comparison_latex, comparison_markdown
    from acpo.evaluate.summary import compare_runs

    result = compare_runs(a, b, failed=failed)
    if form == "json":
        typer.echo(json.dumps(result, indent=1))
    else:
        render = comparison_latex if form == "latex" else comparison_markdown
        typer.echo(render(result))


@eval_app.command("table")
def table(
    runs: list[str] = typer.Argument(
        help="Folders of runs: DIR, METHOD=DIR or MODEL/METHOD=DIR.", metavar="DIR..."
    ),
    form: Literal["markdown", "latex", "csv"] = FORMAT,
    failed: Failed = FAILED,
) -> None:
    """The paper's main table: methods x benchmarks x models, with intervals."""
    from acpo.evaluate.table import read_table

    table = read_table(runs, failed=failed)
    typer.echo(table.render(form), nl=False)
    for warning in table.warnings() if form != "markdown" else ():
        typer.echo(warning, err=True)


@data_app.command("show")
def show_data(
    task: str = typer.Argument(help="A name, my_tasks.py:NAME, gym:NAME, or a data file."),
    data_dir: Path | None = DATA_DIR,
    data: str | None = typer.Option(None, help="Training problems: a file or hub id."),
    n: int = typer.Option(3, "--n", min=1, help="Problems."),
) -> None:
    """A few problems: prompt, gold, and what the grader says to the gold and to a wrong answer."""
    from acpo.evaluate.terminal import show_task

    show_task(task, data_dir=data_dir, data=data, count=n)


@data_app.command("check")
def check_data(
    context: typer.Context,
    benchmarks: str = BENCHMARKS,
    data_dir: Path | None = DATA_DIR,
    train: str | None = typer.Option(None, help="Training set, a file or hub id, to hold against."),
    train_field: str = typer.Option("problem", help="Field of its question."),
    train_gold: str = typer.Option("answer", help="Field of its gold answer, where it has one."),
    ngram: int = typer.Option(13, min=2, help="Words that have to agree in a row."),
    as_json: bool = typer.Option(False, "--json", help="Print everything but the texts as JSON."),
    output: Path | None = typer.Option(None, help="Write every overlap with its texts, as JSONL."),
    workers: int | None = typer.Option(None, min=1, help="Verifications at a time."),
) -> None:
    """Rows, checksums, gold answers that verify or cannot be read, overlap with a training set."""
    from acpo.evaluate.check import check, training_texts
    from acpo.evaluate.terminal import print_checks
    from acpo.jsonl import json_line
    from acpo.linefile import write_whole
    from acpo.tasks.sources import read_rows
    from acpo.verify.references import bad_references

    rows = read_rows(train) if train else []
    training = training_texts(rows, train_field)
    golds = _golds(rows, train_gold, given=bool(given_options(context, ["train_gold"])))
    names = _names(benchmarks)
    checks = check(names, data_dir, training=training, ngram=ngram, workers=workers)
    if as_json:
        typer.echo(json.dumps([entry.plain() for entry in checks], indent=1))
    else:
        print_checks(checks, train=train, ngram=ngram)
    bad = bad_references(rows, golds, workers)
    if bad:
        typer.echo(f"{train}: {len(bad)} of {len(rows)} rows cannot be judged against", err=True)
    for number, reason in bad[:NAMED_ROWS]:
        typer.echo(f"  row {number}: {reason}", err=True)
    if output is not None:
        lines = [json_line(row) for entry in checks for row in entry.texts(training)]
        write_whole(output, b"".join(lines).decode())
    if bad or not all(entry.sound for entry in checks):
        raise typer.Exit(1)


def _golds(rows: "Sequence[Row]", field: str, *, given: bool) -> list[str] | None:
    """The golds of a training set; told or refused where there are none and some should be."""
    from acpo.evaluate.check import training_golds
    from acpo.verify.problem import is_code

    golds = training_golds(rows, field)
    if golds is None and rows and given:
        names = ", ".join(sorted(rows[0]))
        raise ACPOError(f"--train-gold {field}: no row has such a field; the first has {names}")
    if golds is None and not all(map(is_code, rows)):
        typer.echo(f"golds not checked: no field {field!r}; name it with --train-gold", err=True)
    return golds


@data_app.command("verl")
def write_verl_data(
    folder: Path = typer.Argument(help="Where train.parquet and validation.parquet go."),
    task: str = typer.Option(
        "dapo_math", help="What to train on: dapo_math, gsm8k, math, custom, arithmetic."
    ),
    data: str | None = typer.Option(None, help="Its file or hub id (default: the task's own)."),
    benchmarks: str = BENCHMARKS,
    data_dir: Path | None = DATA_DIR,
) -> None:
    """Write training and validation data for verl, every problem once."""
    from acpo.evaluate.parquet import write_verl

    names = _names(benchmarks)
    done = write_verl(folder, task=task, data=data, benchmarks=names, data_dir=data_dir)
    typer.echo(f"{task}: {done.cleaning}")
    if done.asked:
        typer.echo(f"{done.asked} of them left out: a benchmark asks the same")
    counts = ", ".join(f"{name} {rows}" for name, rows in done.validation.items())
    typer.echo(f"{folder / 'train.parquet'}: {done.train} rows")
    typer.echo(f"{folder / 'validation.parquet'}: {sum(done.validation.values())} rows ({counts})")


def given_options(context: typer.Context, names: Iterable[str]) -> str:
    """Those of these options that stand on the command line, as they are written there."""
    sources = {name: context.get_parameter_source(name) for name in names}
    given = (name for name, source in sources.items() if source and source.name == "COMMANDLINE")
    return ", ".join(f"--{name.replace('_', '-')}" for name in given)


def _names(benchmarks: str) -> list[str]:
    """What stands between commas; those in brackets belong to the settings of a task."""
    parts = [""]
    for part in benchmarks.split(","):
        _, _, settings = parts[-1].partition("?")
        opened, closed = (sum(map(settings.count, pair)) for pair in ("[{", "]}"))
        if opened > closed:
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    names = list(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not names:
        raise ACPOError("--benchmarks is empty: name at least one")
    return names
