"""Training problems and benchmarks as the Parquet files verl reads."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from acpo.errors import ACPOError
from acpo.linefile import whole_file
from acpo.tasks import Cleaning, Problem, get_task, get_template, load_problems
from acpo.tasks.questions import Questions, load_questions
from acpo.tasks.task import Row, Task
from acpo.tasks.templates import fill


class Written(NamedTuple):
    """What became of the data: training problems that a benchmark asks are left out."""

    cleaning: Cleaning
    asked: int
    train: int
    validation: dict[str, int]


def write_verl(
    folder: Path,
    *,
    task: str = "dapo_math",
    data: str | None = None,
    benchmarks: Sequence[str],
    data_dir: Path | None = None,
) -> Written:
    """Write `train.parquet` and, of the benchmarks, `validation.parquet`, every problem once."""
    chosen = get_task(task)
    if chosen.endless:
        raise ACPOError(f"--task {task} is made on the fly; verl needs a data set")
    loaded = [load_questions(name, data_dir) for name in benchmarks]
    _require_known_judges(chosen, loaded)
    problems, cleaning = load_problems(chosen, data)
    kept = _unasked(problems, loaded)
    if not kept:
        raise ACPOError(
            f"--data: the benchmarks ask all {len(problems)} training problems; none is left"
        )
    template = get_template(chosen.template)
    prompts = [(fill(template, problem.row), problem.row) for problem in kept]
    train = _rows(chosen, prompts, "train")
    validation: list[dict[str, Any]] = []
    for benchmark in loaded:
        asked = [(question.prompt, question.row) for question in benchmark.questions]
        validation += _rows(benchmark.task, asked, "validation")
    folder.mkdir(parents=True, exist_ok=True)
    _write(train, folder / "train.parquet")
    _write(validation, folder / "validation.parquet")
    counts = {benchmark.task.name: len(benchmark.questions) for benchmark in loaded}
    return Written(cleaning, len(problems) - len(kept), len(train), counts)


def _require_known_judges(task: Task, benchmarks: Sequence[Questions]) -> None:
    """Refuse what verl could not judge, or would score under one name."""
    for judged in (task, *(benchmark.task for benchmark in benchmarks)):
        if callable(judged.grader):
            raise ACPOError(f"{judged.reference!r} has a grader of its own, which verl cannot call")
    for name, count in Counter(benchmark.task.name for benchmark in benchmarks).items():
        if count > 1:
            raise ACPOError(
                f"--benchmarks has {count} called {name!r}, which verl would score as one; rename "
                "the files"
            )


def _unasked(problems: list[Problem], benchmarks: Sequence[Questions]) -> list[Problem]:
    """Training problems that no benchmark asks word for word."""

    def words(text: str) -> str:
        return " ".join(text.split())

    asked = {
        words(str(question.row.get("problem", question.prompt)))
        for benchmark in benchmarks
        for question in benchmark.questions
    }
    return [problem for problem in problems if words(problem.text) not in asked]


def _rows(task: Task, prompts: Sequence[tuple[str, Row]], split: str) -> list[dict[str, Any]]:
    """Problems in verl's columns: prompts, and what to judge the answers against."""
    judge = str(task.grader)
    return [
        {
            "data_source": task.name,
            "prompt": [{"role": "user", "content": prompt}],
            "ability": judge,
            "reward_model": {
                "style": "rule",
                "ground_truth": row["answer"] if task.needs_gold else json.dumps(row, default=str),
            },
            "extra_info": {"judge": judge, "split": split, "index": index},
        }
        for index, (prompt, row) in enumerate(prompts)
    ]


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    with whole_file(path) as name:
        parquet.write_table(pa.Table.from_pylist(rows), name)
