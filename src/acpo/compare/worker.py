"""One run of a study as a process of its own: `LAUNCHER -m acpo.compare.worker FOLDER`."""

import json
from pathlib import Path

import typer

from acpo.compare.execute import execute
from acpo.compare.plan import Run


def main(
    folder: Path, threads: int = typer.Option(1), model: str | None = typer.Option(None)
) -> None:
    """Execute the run that `spec.json` in FOLDER describes."""
    spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    execute(Run(**spec), folder, threads=threads, model=model)


if __name__ == "__main__":
    typer.run(main)
