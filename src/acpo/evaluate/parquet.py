"""Training problems and benchmarks as the Parquet files verl reads."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from acpo.errors import ACPOError
from acpo.tasks import Cleaning, Problem, get_task, get_template, load_problems
from acpo.tasks.questions import Questions, load_questions
from acpo.tasks.task import CODE, MATH
from acpo.tasks.templates import fill


class Written(NamedTuple):
    """What became of the data.

    Attributes:
        cleaning: of the training set.
        asked: training problems left out because a benchmark asks them.
        train: rows of `train.parquet`.
        validation: rows of `validation.parquet`, by benchmark.
    """

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
    """Write `train.parquet` and `validation.parquet`, every problem once.

    Args:
        folder: made where it does not exist.
        task: a name of `acpo.tasks.TASKS`.
        data: the task's problems; None for its own hub data set.
        benchmarks: names or `.jsonl` paths, for validation.
        data_dir: folder with the benchmarks' files; None downloads them once.
    """
    chosen = get_task(task)
    if chosen.endless:
        raise ACPOError(f"--task {task} is made on the fly; verl needs a data set")
    loaded = [load_questions(name, data_dir) for name in benchmarks]
    for judged in (chosen, *(benchmark.task for benchmark in loaded)):
        if judged.grader not in (MATH, CODE):
            raise ACPOError(f"{judged.reference!r} has a grader of its own, which verl cannot call")
    for name, count in Counter(benchmark.task.name for benchmark in loaded).items():
        if count > 1:
            raise ACPOError(
                f"--benchmarks has {count} called {name!r}, which verl would score as one; rename "
                "the files"
            )
    problems, cleaning = load_problems(chosen, data)
    kept = _unasked(problems, loaded)
    if not kept:
        raise ACPOError(
            f"--data: the benchmarks ask all {len(problems)} training problems; none is left"
        )
    template = get_template(chosen.template)
    train = [
        _row(
            chosen.name,
            fill(template, problem.row),
            problem.answer if chosen.grader == MATH else json.dumps(problem.row),
            str(chosen.grader),
            "train",
            index,
        )
        for index, problem in enumerate(kept)
    ]
    validation = [row for benchmark in loaded for row in _benchmark_rows(benchmark)]
    folder.mkdir(parents=True, exist_ok=True)
    _write(train, folder / "train.parquet")
    _write(validation, folder / "validation.parquet")
    counts = {benchmark.task.name: len(benchmark.questions) for benchmark in loaded}
    return Written(cleaning, len(problems) - len(kept), len(train), counts)


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


def _benchmark_rows(benchmark: Questions) -> list[dict[str, Any]]:
    task = benchmark.task
    return [
        _row(
            task.name,
            question.prompt,
            question.row["answer"] if task.grader == MATH else json.dumps(question.row),
            str(task.grader),
            "validation",
            index,
        )
        for index, question in enumerate(benchmark.questions)
    ]


def _row(source: str, prompt: str, gold: str, judge: str, split: str, index: int) -> dict[str, Any]:
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": prompt}],
        "ability": judge,
        "reward_model": {"style": "rule", "ground_truth": gold},
        "extra_info": {"judge": judge, "split": split, "index": index},
    }


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(rows), path)
