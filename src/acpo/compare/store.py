"""Results on disk: one `result.json` per run, and `runs.jsonl` with all of them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acpo.compare.plan import Result, StudyRun
from acpo.errors import ACPOError
from acpo.jsonl import read_jsonl

RESULT = "result.json"
PLACES = ("data", "held_out_data", "model_name_or_path")
"""Options that say where something lies, which may differ from machine to machine."""


def finished(folder: Path, run: StudyRun) -> Result | None:
    """What a finished run found, or None.

    Raises:
        ACPOError: when the folder holds the result of a run with other settings, or something else.
    """
    path = folder / "runs" / run.name / RESULT
    if not path.is_file():
        return None
    result, spec = read_json(path), json.loads(json.dumps(run.spec()))
    made = result.get("spec")
    if not isinstance(made, dict) or not isinstance(made.get("recipe"), dict):
        raise ACPOError(f"{path} is not the result of a run; remove it to have the run done again")
    for part, old, new in (("recipe", made["recipe"], spec["recipe"]), ("spec", made, spec)):
        for key in sorted({*old, *new} - {"recipe", *PLACES}):
            if old.get(key) != new.get(key):
                raise ACPOError(
                    f"{path.parent}: {key}={old.get(key)!r} there, {new.get(key)!r} in the study "
                    f"({part}); use another --output, or remove the runs that are out of date"
                )
    return result


def read_json(path: Path) -> dict[str, Any]:
    """A file that `write_json` wrote, perhaps on another machine.

    Raises:
        ACPOError: it is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ACPOError(f"{path} is damaged ({error}); remove it") from error
    if not isinstance(content, dict):
        raise ACPOError(f"{path} is damaged (not a mapping); remove it")
    return content


def write_json(path: Path, content: Any) -> None:
    """Write a file that is either whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def read_results(folder: Path, runs: Sequence[StudyRun]) -> dict[str, Result]:
    """The results there are, by run name."""
    found = {run.name: finished(folder, run) for run in runs}
    return {name: result for name, result in found.items() if result is not None}


def write_raw(results: Mapping[str, Result], path: Path) -> None:
    """Every run's result, one per line."""
    lines = [json.dumps({"run": name, **results[name]}) for name in sorted(results)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_raw(path: Path) -> dict[str, Result]:
    """What `write_raw` wrote: a study's results without its folders.

    Raises:
        ACPOError: a line is damaged.
    """
    rows = read_jsonl(path)
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get("run"), str) or not isinstance(row.get("spec"), dict):
            raise ACPOError(f"{path}:{number}: not the result of a run")
    return {row["run"]: {k: v for k, v in row.items() if k != "run"} for row in rows}
