"""A study's file, checked whole before anything runs; a refusal names the line."""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from acpo.compare.plan import BASELINE, CONTROL, Study, StudyRow, StudyTask, Sweep
from acpo.errors import ACPOError
from acpo.objectives.methods import METHODS
from acpo.tasks.registry import get_task

Place = tuple[str | int, ...]

KEYS = {
    "title": "what the study is called in its report",
    "recipe": "the recipe every run starts from, relative to the study",
    "options": "options of the recipe to replace in every run",
    "methods": "'all', or rows: names in METHODS, or mappings with a name of their own",
    "updates": "optimizer steps of a run",
    "seeds": "one run per row, task and seed",
    "tasks": "named settings, each with options and optionally methods and seeds of its own",
    "sweep": "learning rates to choose from, on seeds and prompts of their own",
    "matched": "rows to run once more, with updates as long as SAPO's",
    "pass_at": "held-out problems, and samples of each, for pass@k",
    "keep_models": "whether study runs leave their model behind",
    "threads": "CPU threads of a run; part of what makes it repeatable",
    "launcher": "the command that starts a run of several processes",
    "note": "a remark to print in the report",
}
ROW_KEYS = ("name", "method", "options", "seed_offset")
TASK_KEYS = ("recipe", "options", "methods", "updates", "seeds", "sweep_of")
SWEEP_KEYS = ("learning_rates", "seeds", "updates", "share", "extend")
DECIDED = ("method", "seed", "learning_rate", "max_steps", "output_dir")
"""Options the study decides run by run."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


class YamlFile:
    """A parsed YAML file.

    Attributes:
        path: of the file.
        values: what it holds.
    """

    def __init__(self, path: str | Path, *, what: str = "study") -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise ACPOError(
                f"{what}={str(path)!r} is not a file; `acpo init` writes some to recipes/studies/"
            )
        try:
            text = self.path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ACPOError(f"{path}:1: not YAML in UTF-8: {error}") from error
        self._lines: dict[Place, int] = {}
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            self.values: Any = yaml.safe_load(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f":{mark.line + 1}" if mark else ""
            raise ACPOError(f"{path}{line}: not YAML: {error}") from error
        if not isinstance(self.values, dict) or node is None:
            raise ACPOError(f"{path}:1: a {what} is a mapping of options to values")
        self._walk(node, (), ())

    def _walk(self, node: Any, place: Place, around: tuple[Any, ...]) -> None:
        self._lines[place] = node.start_mark.line + 1
        if node in around:
            self.refuse(place, "an alias refers to what it is part of; write it out")
        around = (*around, node)
        if isinstance(node, yaml.SequenceNode):
            for index, child in enumerate(node.value):
                self._walk(child, (*place, index), around)
        elif isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, child in node.value:
                name = str(key.value)
                self._lines[(*place, name)] = key.start_mark.line + 1
                if name in seen:
                    self.refuse((*place, name), f"{name!r} is given twice; keep one")
                seen.add(name)
                line = self._lines[(*place, name)]
                self._walk(child, (*place, name), around)
                self._lines[(*place, name)] = line  # of the key, not where its block begins

    def line(self, place: Place) -> int:
        """The line of a value, or of the nearest thing around it."""
        while place not in self._lines:
            place = place[:-1]
        return self._lines[place]

    def refuse(self, place: Place, why: str) -> NoReturn:
        """Raise an error that names the file and the line of a value."""
        raise ACPOError(f"{self.path}:{self.line(place)}: {why}")


def read_study(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Study:
    """Read and check a study.

    Args:
        path: the YAML file.
        overrides: options of the recipe that replace the study's.

    Raises:
        ACPOError: for anything that cannot be run as written, with file and line.
    """
    return _Reader(YamlFile(path), overrides or {}).study()


class _Reader:
    def __init__(self, file: YamlFile, overrides: Mapping[str, Any]) -> None:
        self.file, self.overrides = file, overrides
        self.values: dict[str, Any] = file.values

    def study(self) -> Study:
        file, values = self.file, self.values
        self._known((), KEYS)
        for name in ("recipe", "methods", "updates", "seeds"):
            if values.get(name) is None:
                file.refuse((), f"{name} is missing: {KEYS[name]}")
        updates = self._count(("updates",))
        seeds = self._seeds(("seeds",))
        rows = self._rows(("methods",))
        tasks = self._tasks(rows, updates, seeds)
        sweep = self._sweep(tasks, updates)
        self._type(("keep_models",), bool, "true or false")
        self._type(("launcher",), str, "a command")
        options = self._options(("options",))
        self._measurable(tasks, options, sweep)
        return Study(
            path=file.path,
            title=str(values.get("title") or file.path.stem),
            options=options,
            overrides=self.overrides,
            tasks=tasks,
            sweep=sweep,
            keep_models=bool(values.get("keep_models")),
            threads=self._count(("threads",)) if "threads" in values else 1,
            launcher=values.get("launcher"),
            matched=self._matched(tasks),
            pass_at=self._pass_at(tasks, options),
            note=str(values.get("note") or ""),
        )

    def _type(self, place: Place, kind: type, words: str) -> None:
        value = self._at(place[:-1]).get(place[-1])
        if value is not None and not isinstance(value, kind):
            self.file.refuse(place, f"{place[-1]}={value!r} must be {words}")

    def _measurable(
        self, tasks: tuple[StudyTask, ...], options: Mapping[str, Any], sweep: Sweep | None
    ) -> None:
        """Every run must log something, and be measured on problems of its own."""
        for task in tasks:
            where: Place = ("tasks", task.name) if "tasks" in self.values else ("updates",)
            merged = self._merged(task, options)
            held, every = merged.get("held_out", 0), merged.get("logging_steps", 10)
            if not isinstance(held, int) or held < 1:
                self.file.refuse(where, f"held_out={held!r}: accuracy needs problems kept aside")
            kind, data = get_task(str(merged.get("task", "custom"))), merged.get("data")
            own = kind.endless or (data is None and kind.held_out_split)
            if sweep and not own and not merged.get("held_out_data"):
                self.file.refuse(
                    where, "a sweep would train on the held-out problems; set held_out_data"
                )
            lengths = [task.updates, *([sweep.updates] if sweep else [])]
            if not isinstance(every, int | float) or every > min(lengths):
                self.file.refuse(
                    where,
                    f"logging_steps={every!r} logs nothing of a run of {min(lengths)} updates; "
                    "lower it in options",
                )

    def _present(self, place: Place, names: Sequence[str]) -> None:
        for name in names:
            if self._at(place).get(name) is None:
                self.file.refuse(place, f"{'.'.join(map(str, (*place, name)))} is missing")

    def _merged(self, task: StudyTask, options: Mapping[str, Any]) -> dict[str, Any]:
        return {**task.recipe_options, **options, **task.options, **self.overrides}

    def _matched(self, tasks: tuple[StudyTask, ...]) -> tuple[str, ...]:
        value = self.values.get("matched") or []
        names = dict.fromkeys(row.name for task in tasks for row in task.rows)
        del names[BASELINE]
        self._type(("matched",), list, "a list of rows")
        for index, name in enumerate(value):
            if name not in names:
                self.file.refuse(
                    ("matched", index), f"{name!r} is no row to match; use {', '.join(names)}"
                )
        return tuple(value)

    def _pass_at(
        self, tasks: tuple[StudyTask, ...], options: Mapping[str, Any]
    ) -> tuple[int, int] | None:
        if self.values.get("pass_at") is None:
            return None
        self._type(("pass_at",), dict, "a mapping of problems and samples")
        self._known(("pass_at",), ("problems", "samples"))
        self._present(("pass_at",), ("problems", "samples"))
        problems, samples = (self._count(("pass_at", name)) for name in ("problems", "samples"))
        for task in tasks:
            merged = self._merged(task, options)
            batch = merged.get("per_device_eval_batch_size", 8)
            if problems > merged["held_out"] or batch % samples:
                self.file.refuse(
                    ("pass_at",),
                    f"{problems} problems must be among held_out={merged['held_out']}, and "
                    f"{samples} samples divide per_device_eval_batch_size={batch}",
                )
        return problems, samples

    def _recipe(self, place: Place) -> tuple[Path, Mapping[str, Any]]:
        """A recipe's path, and its options as they stand there."""
        path = self.file.path.parent / str(self._at(place))
        if not path.is_file():
            self.file.refuse(place, f"recipe={self._at(place)!r} is not a file beside the study")
        return path, YamlFile(path, what="recipe").values

    def _at(self, place: Place) -> Any:
        value: Any = self.values
        for part in place:
            value = value[part]
        return value

    def _known(self, place: Place, allowed: Sequence[str] | Mapping[str, Any]) -> None:
        for key in self._at(place):
            if key not in allowed:
                near = difflib.get_close_matches(str(key), allowed, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"use {', '.join(allowed)}"
                self.file.refuse((*place, key), f"{key!r} is not an option here; {hint}")

    def _count(self, place: Place) -> int:
        value = self._at(place)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.file.refuse(place, f"{place[-1]}={value!r} must be a whole number of at least 1")
        return value

    def _seeds(self, place: Place) -> tuple[int, ...]:
        value = self._at(place)
        if not isinstance(value, list) or not value:
            self.file.refuse(place, f"seeds={value!r} must be a list of whole numbers")
        for index, seed in enumerate(value):
            self._whole((*place, index))
            if seed in value[:index]:
                self.file.refuse((*place, index), f"seed {seed} is given twice; keep one")
        return tuple(value)

    def _whole(self, place: Place) -> int:
        value = self._at(place)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
            name = place[-1] if isinstance(place[-1], str) else "seed"
            self.file.refuse(
                place, f"{name} {value!r} must be a whole number from 0 on, of 32 bits"
            )
        return value

    def _rate(self, place: Place) -> float:
        value = self._at(place)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
            self.file.refuse(
                place, f"learning rate {value!r} must be a number above 0, as in 3.0e-4"
            )
        return float(value)

    def _options(self, place: Place) -> dict[str, Any]:
        name = place[-1]
        holder = self._at(place[:-1])
        value = holder.get(name) if isinstance(holder, dict) else None
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.file.refuse(place, f"options={value!r} must be a mapping of recipe options")
        for key in value:
            if key in DECIDED:
                where = "sweep.learning_rates" if key == "learning_rate" else "the study"
                self.file.refuse((*place, key), f"{key} is decided run by run, by {where}")
        return value

    def _rows(self, place: Place) -> tuple[StudyRow, ...]:
        value = self._at(place)
        if value == "all":
            return tuple(StudyRow(name, name) for name in METHODS)
        if not isinstance(value, list) or not value:
            self.file.refuse(place, f"methods={value!r} must be 'all' or a list of rows")
        rows: list[StudyRow] = []
        for index in range(len(value)):
            row = self._row((*place, index))
            if any(row.name == other.name for other in rows):
                self.file.refuse((*place, index), f"row {row.name!r} is given twice; rename one")
            rows.append(row)
        for needed in (BASELINE, CONTROL) if place == ("methods",) else (BASELINE,):
            if not any(row.name == needed for row in rows):
                rows.append(StudyRow(needed, needed))
        return tuple(rows)

    def _row(self, place: Place) -> StudyRow:
        value = self._at(place)
        if isinstance(value, dict):
            self._known(place, ROW_KEYS)
            name = str(value.get("name") or value.get("method"))
            row = StudyRow(
                name,
                str(value.get("method") or name),
                self._options((*place, "options")),
                self._whole((*place, "seed_offset")) if "seed_offset" in value else 0,
            )
        else:
            row = StudyRow(str(value), str(value))
        if row.method not in METHODS:
            near = difflib.get_close_matches(row.method, METHODS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            self.file.refuse(
                place, f"method {row.method!r} is unknown; {hint}choose from {', '.join(METHODS)}"
            )
        self._check_name(place, row.name)
        if row.name in METHODS and row != StudyRow(row.name, row.name):
            self.file.refuse(
                place, f"{row.name!r} must be the plain row; give this one a name of its own"
            )
        return row

    def _check_name(self, place: Place, name: str) -> None:
        if not _NAME.fullmatch(name):
            self.file.refuse(place, f"name {name!r} must consist of letters, digits and _ . + -")

    def _tasks(
        self, rows: tuple[StudyRow, ...], updates: int, seeds: tuple[int, ...]
    ) -> tuple[StudyTask, ...]:
        value = self.values.get("tasks")
        if value is None:
            recipe = self._recipe(("recipe",))
            return (StudyTask("main", *recipe, {}, rows, updates, seeds, "main"),)
        if not isinstance(value, dict) or not value:
            self.file.refuse(("tasks",), f"tasks={value!r} must be a mapping of names to settings")
        tasks: list[StudyTask] = []
        for name, setting in value.items():
            place: Place = ("tasks", name)
            self._check_name(place, str(name))
            if not isinstance(setting, dict):
                self.file.refuse(place, f"task {name!r} must be a mapping; {{}} for no options")
            self._known(place, TASK_KEYS)
            sweep_of = str(setting.get("sweep_of") or name)
            if sweep_of != str(name) and sweep_of not in [task.name for task in tasks]:
                self.file.refuse(
                    (*place, "sweep_of"), f"sweep_of={sweep_of!r} must name a task above this one"
                )
            tasks.append(
                StudyTask(
                    str(name),
                    *self._recipe((*place, "recipe") if "recipe" in setting else ("recipe",)),
                    self._options((*place, "options")),
                    self._rows((*place, "methods")) if "methods" in setting else rows,
                    self._count((*place, "updates")) if "updates" in setting else updates,
                    self._seeds((*place, "seeds")) if "seeds" in setting else seeds,
                    sweep_of,
                )
            )
        return tuple(tasks)

    def _sweep(self, tasks: tuple[StudyTask, ...], updates: int) -> Sweep | None:
        value = self.values.get("sweep")
        if value is None:
            return None
        self._type(("sweep",), dict, "a mapping")
        self._known(("sweep",), SWEEP_KEYS)
        self._present(("sweep",), ("learning_rates", "seeds"))
        rates = value["learning_rates"]
        if not isinstance(rates, list) or not rates:
            self.file.refuse(("sweep", "learning_rates"), "learning_rates must be a list")
        for index, rate in enumerate(rates):
            self._rate(("sweep", "learning_rates", index))
            if f"{rate:g}" in [f"{other:g}" for other in rates[:index]]:
                self.file.refuse(
                    ("sweep", "learning_rates", index), f"{rate:g} is given twice; keep one"
                )
        seeds = self._seeds(("sweep", "seeds"))
        for index, seed in enumerate(seeds):
            if any(seed in task.seeds for task in tasks):
                self.file.refuse(
                    ("sweep", "seeds", index),
                    f"seed {seed} is also one of the study's; a choice must not see its test",
                )
        share = value.get("share", Sweep.share)
        if not isinstance(share, int | float) or not 0 < share < 1:
            self.file.refuse(("sweep", "share"), f"share={share!r} must lie between 0 and 1")
        length = self._count(("sweep", "updates")) if "updates" in value else updates
        extend = self._whole(("sweep", "extend")) if "extend" in value else 0
        if extend and len(rates) < 2:
            self.file.refuse(("sweep", "extend"), "extend needs two learning rates for a spacing")
        return Sweep(tuple(sorted(map(float, rates))), seeds, length, float(share), extend)
