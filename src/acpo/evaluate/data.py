"""From a benchmark's name, or a user's file, to questions."""

import dataclasses
import hashlib
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acpo.errors import ACPOError
from acpo.evaluate.benchmarks import CODE_PROMPT, Benchmark, Judge, benchmark
from acpo.jsonl import Row, read_jsonl
from acpo.verify.problem import ProblemError, read_problem

# The first of these that a row has is what is asked, and what is expected.
PROBLEM_FIELDS = ("problem", "question", "prompt")
ANSWER_FIELDS = ("answer", "expected_answer", "gold")
_DOWNLOAD_SECONDS = 60.0


class DataError(ACPOError):
    """Rows that are missing, incomplete, or not what the benchmark declares."""


@dataclasses.dataclass(frozen=True)
class Question:
    """One question of a benchmark.

    Attributes:
        id: Its name, unique within the benchmark.
        prompt: What the model is asked.
        row: The row it came from: gold answer, tests.
    """

    id: str
    prompt: str
    row: Row


@dataclasses.dataclass(frozen=True)
class LoadedBenchmark:
    """A benchmark and its questions."""

    spec: Benchmark
    questions: tuple[Question, ...]
    checksum: str


def load(name: str, data_dir: Path | None = None, *, check: bool = True) -> LoadedBenchmark:
    """The benchmark of that name, or the user's own `.jsonl` file.

    Args:
        name: A key of `BENCHMARKS`, or a path that ends in `.jsonl`.
        data_dir: Folder with `NAME.jsonl`; None downloads the pinned source once.
        check: Refuse rows that differ from the declared count and checksum.

    Raises:
        DataError: The rows cannot be had, are incomplete, or are not the declared ones.
    """
    if name.endswith(".jsonl"):
        return _own_file(Path(name))
    spec = benchmark(name)
    rows = [canonical(row, spec) for row in _rows(spec, data_dir)]
    loaded = _build(spec, rows, where=spec.name)
    if check:
        require_declared(loaded)
    return loaded


def require_declared(loaded: LoadedBenchmark) -> None:
    """Refuse rows that are not those the benchmark declares."""
    spec = loaded.spec
    if spec.rows is not None and len(loaded.questions) != spec.rows:
        raise DataError(f"{spec.name}: {len(loaded.questions)} rows, {spec.rows} declared")
    if spec.checksum is not None and loaded.checksum != spec.checksum:
        raise DataError(
            f"{spec.name}: checksum {loaded.checksum}, {spec.checksum} declared: questions or "
            "answers differ from the published ones. To use them anyway, pass the file's path"
        )


def canonical(row: Mapping[str, Any], spec: Benchmark) -> Row:
    """`row` with its question under `problem` and its gold answer under `answer`."""
    clean = dict(row)
    if spec.judge is Judge.CODE:
        return clean
    for target, names in (("problem", PROBLEM_FIELDS), ("answer", ANSWER_FIELDS)):
        found = next((name for name in names if row.get(name) is not None), None)
        if found is not None:
            clean[target] = str(row[found])
    if spec.cut and "problem" in clean:
        clean["problem"] = clean["problem"].partition(spec.cut)[0].rstrip()
    if "####" in clean.get("answer", ""):
        clean["answer"] = clean["answer"].rpartition("####")[2].strip().replace(",", "")
    return clean


def checksum(spec: Benchmark, rows: Sequence[Row]) -> str:
    """SHA-256 of what is asked and expected, in order, whatever the white space and field names."""
    fields: tuple[str, ...] = ("problem", "answer")
    if spec.judge is Judge.CODE:
        fields = ("raw_problem", "new_problem", "test_code")
    digest = hashlib.sha256()
    for row in rows:
        kept = [" ".join(str(row.get(field, "")).split()) for field in fields]
        digest.update(json.dumps(kept).encode() + b"\n")
    return digest.hexdigest()


def _own_file(path: Path) -> LoadedBenchmark:
    if not path.is_file():
        raise DataError(f"benchmark {str(path)!r}: no such file")
    rows = read_jsonl(path)
    name = re.sub(r"[^\w.-]+", "_", path.stem)
    try:
        read_problem(rows[0])
        spec = Benchmark(name, path.stem, judge=Judge.CODE, k=1, prompt=_code_prompt(rows[0]))
    except ProblemError:
        spec = Benchmark(name, path.stem)
    return _build(spec, [canonical(row, spec) for row in rows], where=str(path))


def _code_prompt(row: Row) -> str:
    if "new_problem" in row and "raw_problem" in row:
        return CODE_PROMPT
    field = next((name for name in PROBLEM_FIELDS if name in row), "prompt")
    return "Solve this in Python. Answer with one Python code block.\n\n{" + field + "}"


def _build(spec: Benchmark, rows: list[Row], *, where: str) -> LoadedBenchmark:
    if not rows:
        raise DataError(f"{where}: no rows")
    questions = []
    seen: set[str] = set()
    for number, row in enumerate(rows):
        if spec.judge is Judge.MATH:
            _require(row, where, number)
        try:
            prompt = spec.prompt.format_map(row)
        except KeyError as missing:
            raise DataError(
                f"{where}: row {number + 1} has no field {missing}, only {sorted(row)}"
            ) from None
        # Sources differ in their ids, not in their order.
        name = f"{spec.name}-{number}" if spec.source else str(row.get("id", number))
        if name in seen:
            raise DataError(f"{where}: two rows have id={name!r}: make ids unique or omit them")
        seen.add(name)
        questions.append(Question(name, prompt, row))
    return LoadedBenchmark(spec, tuple(questions), checksum(spec, rows))


def _require(row: Row, where: str, number: int) -> None:
    for target, names in (("problem", PROBLEM_FIELDS), ("answer", ANSWER_FIELDS)):
        if not row.get(target):
            raise DataError(
                f"{where}: row {number + 1} has no {' or '.join(names)}, only {sorted(row)}: "
                "a question needs what is asked and the expected answer"
            )


def _rows(spec: Benchmark, data_dir: Path | None) -> list[Row]:
    if data_dir is not None:
        for stem in (spec.name, f"{spec.name}_test"):
            if (data_dir / f"{stem}.jsonl").is_file():
                return read_jsonl(data_dir / f"{stem}.jsonl")
        raise DataError(f"--data-dir {data_dir}: no {spec.name}.jsonl in it")
    assert spec.source is not None
    return _parse(_download(spec), spec)


def _parse(text: str, spec: Benchmark) -> list[Row]:
    try:
        if text.lstrip().startswith("["):
            return list(json.loads(text))
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except json.JSONDecodeError as error:
        assert spec.source is not None
        raise DataError(f"{spec.name}: {spec.source.url} is not JSON: {error}") from error


def _download(spec: Benchmark) -> str:
    """The text of the pinned file, fetched once per user."""
    assert spec.source is not None
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "acpo"
    kept = home / f"{spec.name}-{spec.source.commit[:12]}"
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    try:
        with urllib.request.urlopen(spec.source.url, timeout=_DOWNLOAD_SECONDS) as reply:
            text = reply.read().decode("utf-8")
    except (urllib.error.URLError, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{spec.name}: cannot fetch {spec.source.url} ({error}). Without a network, put "
            f"{spec.name}.jsonl into a folder and pass it as --data-dir"
        ) from error
    home.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(f".{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(kept)
    return text
