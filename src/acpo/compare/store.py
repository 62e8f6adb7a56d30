"""Results on disk: one `result.json` per run, and `runs.jsonl`, which holds all of them.

A run is known by a hash of everything that decides it. Files from several machines are merged by
writing one behind the other: a run that stands there twice counts once, as it first finished.
"""

import base64
import contextlib
import functools
import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from acpo.compare.plan import MATCHED, START, Result, StudyRun, step_lengths
from acpo.errors import ACPOError, writing
from acpo.jsonl import read_json, read_jsonl
from acpo.linefile import lock, write_whole

RESULT = "result.json"
RUNS = "runs.jsonl"
LEFT_OUT = "left_out.jsonl"
LOCK = ".lock"
STEPS = "steps.txt"
"""In a run's folder: every update and how far it moved the weights, as it goes."""

MOST_VERDICTS = 10_000_000
"""Of one run; a thousandth of that many letters may say so."""

PLACES = ("data", "held_out_data", "model_name_or_path")
"""Options that say where something lies, which may differ from machine to machine."""


def _is_number(value: Any) -> bool:
    """Whether it is one that a float can be: JSON's integers have no end."""
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def _is_measured(value: Any) -> bool:
    if value is None:
        return True
    if type(value) is not dict or not _is_number(value.get("value")):
        return False
    return 0 <= value["value"] <= 1 and _is_of(value["value"], value.get("verdicts"))


def _is_of(accuracy: float, verdicts: Any) -> bool:
    """Whether these verdicts, where they are known, are of this accuracy."""
    if verdicts is None:
        return True
    try:
        counts = verdict_counts(verdicts) if type(verdicts) is str else ()
    except ACPOError:
        return False
    shares = [right / samples for samples, right in counts if samples]
    return bool(shares) and abs(math.fsum(shares) / len(shares) - accuracy) < 1e-9


def _is_amount(value: Any) -> bool:
    return _is_finite(value) and value >= 0


def _is_logged(value: Any) -> bool:
    """A number, if a finite one whose square is one, too."""
    return _is_number(value) and not 1e100 < abs(value) < math.inf


def _is_curve(value: Any) -> bool:
    entries = value if type(value) is list else []
    return value in (None, entries) and all(
        type(one) is dict and _is_finite(one.get("step")) and all(map(_is_logged, one.values()))
        for one in entries
    )


def _is_told(value: Any) -> bool:
    """What a machine or its software is called, which a report prints."""
    return type(value) is dict and all(
        one is None or _is_finite(one) or (type(one) is str and one.isprintable())
        for one in (*value, *value.values())
    )


class Busy(ACPOError):
    """A study's folder where another command is at work."""


FIELDS: dict[str, Callable[[Any], bool]] = {
    "run": lambda v: type(v) is str,
    "spec": lambda v: type(v) is dict and type(v.get("recipe")) is dict,
    "failed": lambda v: v is None or type(v) is str,
    **dict.fromkeys(("start_model", "held_out", "problems"), lambda v: v is None or type(v) is str),
    "accuracy": _is_measured,
    "pass_at": _is_measured,
    "curve": _is_curve,
    "step_lengths": lambda v: v is None or (type(v) is list and all(map(_is_number, v))),
    "tokens": lambda v: v is None or (type(v) is int and _is_amount(v)),
    "seconds": _is_amount,
    "hardware": _is_told,
    "versions": _is_told,
}
"""What the report reads of a result, and what that may be."""


def spec_hash(spec: Mapping[str, Any]) -> str:
    """What a run is known by, on every machine."""
    text = json.dumps({**spec, "recipe": _decisive(spec)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _decisive(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide what a run finds: a start is measured and not trained."""
    idle = (*PLACES, *(("learning_rate",) if spec.get("phase") == START else ()))
    return {name: value for name, value in spec["recipe"].items() if name not in idle}


def read_results(folder: Path, say: Callable[[str], None] = print) -> dict[str, Result]:
    """Every result in a study's folder, by run name: of `runs.jsonl` and of the run folders.

    Of files from two machines, one's SAPO runs count; runs matched to the other's are left out.
    """
    return _read(folder, say)[0]


def _read(
    folder: Path, say: Callable[[str], None]
) -> tuple[dict[str, Result], list[dict[str, Any]]]:
    """The results that count, and the rows that are left out."""
    found: dict[str, Result] = {}
    matched: list[tuple[str, dict[str, Any]]] = []
    for where, row in _rows(folder):
        for name, fits in FIELDS.items():
            if not fits(row.get(name)):
                raise ACPOError(
                    f"{where} is not the result of a run ({name}={row.get(name)!r:.60}); remove it "
                    "to have the run done again"
                )
        if row["spec"].get("phase") == MATCHED:
            matched.append((where, row))
        else:
            _add(found, row, where)
    made = [(one["spec"].get("task"), step_lengths(one)) for one in found.values()]
    left_out: list[dict[str, Any]] = []
    for where, row in matched:
        if (row["spec"].get("task"), row["spec"].get("step_lengths")) in made:
            _add(found, row, where)
        elif row not in left_out:
            left_out.append(row)
            say(
                f"{where}: {row['run']} is left out: it matched updates of a SAPO run not kept here"
            )
    return found, left_out


def merge_results(folder: Path, say: Callable[[str], None] = print) -> dict[str, Result]:
    """The same, and `runs.jsonl` holds each of them once: for whoever has the folder alone.

    What is left out is kept beside it, and counts once its SAPO run is there.
    """
    found, left_out = _read(folder, say)
    if left_out:
        write_whole(folder / LEFT_OUT, "".join(f"{json.dumps(row)}\n" for row in left_out))
    elif (folder / LEFT_OUT).exists():
        (folder / LEFT_OUT).unlink()
    if found:
        write_results(found, folder / RUNS)
    return found


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[int]:
    """Hold a study's folder; so does who has this descriptor, such as a run that was launched."""
    with writing(f"--output {folder}", other="folder"):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a")
    with file:
        busy = "another `acpo compare`, or a run it launched, is at work there"
        lock(file, folder / LOCK, Busy(f"{folder}: {busy}: wait for it, or end it"))
        yield file.fileno()


def _rows(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each result stands, and what stands there."""
    for file in (folder / RUNS, folder / LEFT_OUT):
        if file.is_file() and file.stat().st_size:
            for number, row in enumerate(read_jsonl(file), 1):
                yield f"{file}:{number}", row
    for path in sorted((folder / "runs").rglob(RESULT)):
        name = path.parent.relative_to(folder / "runs").as_posix()
        yield str(path), {"run": name, **read_json(path)}


def _add(found: dict[str, Result], row: Mapping[str, Any], where: str) -> None:
    name = row["run"]
    result = {key: value for key, value in row.items() if key not in ("run", "hash")}
    other = found.get(name)
    if other is not None:
        refuse_difference(other["spec"], row["spec"], where)
    if other is None or str(result.get("finished")) < str(other.get("finished")):
        found[name] = result


def result_of(results: Mapping[str, Result], run: StudyRun) -> Result | None:
    """What a run found, or None; a name that stands for a run with other settings is refused."""
    result = results.get(run.name)
    if result is not None:
        refuse_difference(result["spec"], run.spec(), run.name)
    return result


def refuse_difference(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> None:
    """Raise for two runs of one name that were not the same run, with what differs."""
    new = json.loads(json.dumps(new))
    if spec_hash(old) == spec_hash(new):
        return
    for part, a, b in (("recipe", _decisive(old), _decisive(new)), ("spec", old, new)):
        for key in sorted({*a, *b} - {"recipe", "keeps_model"}):
            if a.get(key) != b.get(key):
                raise ACPOError(
                    f"{where}: {key}={a.get(key)!r:.60} there, {b.get(key)!r:.60} in the study "
                    f"({part}); use another --output, or remove the runs that are out of date"
                )


def write_results(results: Mapping[str, Result], path: Path) -> None:
    """Every run's result, one per line."""
    lines = [
        json.dumps({"run": name, "hash": spec_hash(results[name]["spec"]), **results[name]})
        for name in sorted(results)
    ]
    write_whole(path, "".join(f"{line}\n" for line in lines))


def pack_verdicts(groups: Iterable[Iterable[bool]]) -> str:
    """The verdicts of every problem's samples, as text of a few hundred letters."""
    text = " ".join("".join("01"[bool(one)] for one in group) for group in groups)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


@functools.lru_cache(maxsize=4096)  # a run stands beside several others
def verdict_counts(packed: str) -> tuple[tuple[int, int], ...]:
    """Samples and right ones of each problem."""
    return tuple((len(group), sum(group)) for group in unpack_verdicts(packed))


def unpack_verdicts(packed: str) -> list[list[bool]]:
    """What `pack_verdicts` packed."""
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(base64.b64decode(packed), MOST_VERDICTS).decode()
        if not unpacking.eof:
            raise ValueError(f"cut off, or more than {MOST_VERDICTS:,}")
    except (ValueError, zlib.error) as error:
        raise ACPOError(f"verdicts={packed[:40]!r} are damaged: {error}") from error
    return [[letter == "1" for letter in group] for group in text.split(" ")]
