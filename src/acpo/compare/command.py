"""`acpo compare`: conduct a study, then report what is there."""

from collections.abc import Sequence
from pathlib import Path

import typer


def compare(
    path: Path,
    arguments: Sequence[str],
    *,
    output: Path | None,
    workers: int,
    stop_after: float | None,
    report_only: bool,
) -> None:
    """Run what is missing of a study and write its report.

    Args:
        path: the study.
        arguments: `--key value` pairs: recipe options for every run.
        output: the study's folder; `runs/compare/<name of the study>` when unset.
        workers: runs at a time.
        stop_after: seconds after which no further run is started.
        report_only: run nothing; read the runs there are, or `runs.jsonl` where they are not kept.
    """
    from acpo.compare.conduct import conduct, survey
    from acpo.compare.report import write_report
    from acpo.compare.study import parse_overrides, read_study
    from acpo.compare.summary import read_raw, summarise, write_raw

    study = read_study(path, parse_overrides(arguments))
    folder = output or Path("runs") / "compare" / path.stem
    say = typer.echo
    raw = folder / "runs.jsonl"
    if report_only and raw.is_file() and not (folder / "runs").is_dir():
        results = read_raw(raw)
    elif report_only:
        results = survey(study, folder).results
    else:
        results = conduct(study, folder, workers=workers, stop_after=stop_after, say=say)
    words = ["acpo", "compare", str(path), *arguments, "--workers", str(workers)]
    summary = summarise(study, results, command=" ".join(words))
    write_report(summary, folder)
    write_raw(results, raw)
    say(
        f"{folder}/report.md, table.tex, page.html, summary.json and figures; runs.jsonl holds "
        f"{len(results)} runs"
    )
