"""A study's file, checked whole before anything runs; a refusal names the line."""

import difflib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from acpo.compare.plan import BASELINE, CONTROL, NOT_A_RUNS, Study, StudyRow, StudyTask, Sweep
from acpo.errors import ACPOError
from acpo.objectives.methods import METHODS, get_method
from acpo.tasks.registry import get_task
from acpo.yamlfile import Place, YamlFile

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
    "least_gain": "what SAPO and GRPO must gain over the start before rows are told apart",
    "keep_models": "whether study runs leave their model behind",
    "threads": "CPU threads of a run; part of what makes it repeatable",
    "launcher": "the command that starts a run of several processes",
    "note": "a remark to print in the report",
}
ROW_KEYS = ("name", "method", "options", "seed_offset")
TASK_KEYS = ("recipe", "options", "methods", "updates", "seeds", "sweep_of")
SWEEP_KEYS = ("learning_rates", "seeds", "updates", "share", "extend")
DECIDED = ("method", "seed", "learning_rate", "max_steps", *NOT_A_RUNS)
"""Options the study decides run by run."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


def _is_command(value: Any) -> bool:
    if type(value) is not str:
        return False
    try:
        shlex.split(value)
    except ValueError:  # a quotation that does not end
        return False
    return True


KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "count": (lambda v: type(v) is int and v >= 1, "a whole number of at least 1"),
    "whole": (lambda v: type(v) is int and 0 <= v < 2**32, "a whole number from 0 on, of 32 bits"),
    "rate": (lambda v: type(v) in (int, float) and 0 < v < 1, "a number above 0, as in 3.0e-4"),
    "share": (lambda v: type(v) in (int, float) and 0 < v < 1, "a number between 0 and 1"),
    "switch": (lambda v: type(v) is bool, "true or false"),
    "command": (_is_command, "a command"),
    "numbers": (lambda v: type(v) is list and bool(v), "a list of numbers"),
    "names": (lambda v: type(v) is list, "a list of rows"),
    "mapping": (lambda v: type(v) is dict, "a mapping of options to values"),
}
"""What a value may be, and how that is said."""


def read_study(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Study:
    """Read and check a study; `overrides` are options of the recipe that replace the study's."""
    file = YamlFile(path, what="study", others="recipes/studies/")
    return _Reader(file, overrides or {}).study()


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
        updates = self._value(("updates",), "count")
        tasks = self._tasks(self._rows(("methods",)), updates, self._seeds(("seeds",)))
        sweep = self._sweep(tasks, updates)
        options = self._options(("options",))
        self._measurable(tasks, options, sweep)
        return Study(
            path=file.path,
            title=str(values.get("title") or file.path.stem),
            options=options,
            overrides=self.overrides,
            tasks=tasks,
            sweep=sweep,
            keep_models=self._value(("keep_models",), "switch", False),
            threads=self._value(("threads",), "count", 1),
            launcher=self._value(("launcher",), "command", ""),
            matched=self._matched(tasks),
            pass_at=self._pass_at(tasks, options),
            least_gain=self._value(("least_gain",), "share", 0.0),
            note=str(values.get("note") or ""),
        )

    def _value(self, place: Place, kind: str, default: Any = None) -> Any:
        """What stands at a place, checked; the default, if there is one, where nothing does."""
        around: Any = self._at(place[:-1])
        value = around.get(place[-1]) if isinstance(around, dict) else around[place[-1]]
        if value is None and default is not None:
            return default
        good, words = KINDS[kind]
        if not good(value):
            name = place[-1] if isinstance(place[-1], str) else f"{place[-2]}[{place[-1]}]"
            self.file.refuse(place, f"{name}={value!r} must be {words}")
        return value

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
        value = self._value(("matched",), "names", [])
        rows = dict.fromkeys(row.name for task in tasks for row in task.rows)
        names = [name for name in rows if name != BASELINE]
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
        names = ("problems", "samples")
        self._value(("pass_at",), "mapping")
        self._known(("pass_at",), names)
        self._present(("pass_at",), names)
        problems, samples = (self._value(("pass_at", name), "count") for name in names)
        for task in tasks:
            merged = self._merged(task, options)
            batch = merged.get("per_device_eval_batch_size", 8)
            if problems > merged["held_out"] or type(batch) is not int or batch % samples:
                self.file.refuse(
                    ("pass_at",),
                    f"{problems} problems must be among held_out={merged['held_out']}, and "
                    f"{samples} samples divide per_device_eval_batch_size={batch!r}",
                )
        return problems, samples

    def _recipe(self, place: Place) -> tuple[Path, Mapping[str, Any]]:
        """A recipe's path, and its options as they stand there."""
        path = self.file.path.parent / str(self._at(place))
        if not path.is_file():
            self.file.refuse(place, f"recipe={self._at(place)!r} is not a file beside the study")
        return path, YamlFile(path, what="recipe", others="recipes/").values

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

    def _seeds(self, place: Place) -> tuple[int, ...]:
        value = self._value(place, "numbers")
        for index, seed in enumerate(value):
            self._value((*place, index), "whole")
            if seed in value[:index]:
                self.file.refuse((*place, index), f"seed {seed} is given twice; keep one")
        return tuple(value)

    def _options(self, place: Place) -> dict[str, Any]:
        value: dict[str, Any] = self._value(place, "mapping", {})
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
                self._value((*place, "seed_offset"), "whole", 0),
            )
        else:
            row = StudyRow(str(value), str(value))
        try:
            get_method(row.method)
        except ACPOError as error:
            self.file.refuse(place, str(error))
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
            self._value(place, "mapping")
            self._known(place, TASK_KEYS)
            own = self._rows((*place, "methods")) if "methods" in setting else rows
            tasks.append(
                StudyTask(
                    str(name),
                    *self._recipe((*place, "recipe") if "recipe" in setting else ("recipe",)),
                    self._options((*place, "options")),
                    own,
                    self._value((*place, "updates"), "count", updates),
                    self._seeds((*place, "seeds")) if "seeds" in setting else seeds,
                    self._sweep_of(place, own, tasks),
                )
            )
        return tuple(tasks)

    def _sweep_of(self, place: Place, rows: Sequence[StudyRow], above: Sequence[StudyTask]) -> str:
        """The task that sweeps the learning rates of all these rows."""
        name = str(place[-1])
        given, place = str(self._at(place).get("sweep_of") or name), (*place, "sweep_of")
        if given == name:
            return name
        swept = {task.name: task for task in above}
        if given not in swept:
            self.file.refuse(place, f"sweep_of={given!r} must name a task above this one")
        root = swept[swept[given].sweep_of]
        for row in rows:
            if row not in root.rows:
                self.file.refuse(
                    place, f"{row.name!r} is no row of {root.name!r}, so it would have no rate"
                )
        return root.name

    def _sweep(self, tasks: tuple[StudyTask, ...], updates: int) -> Sweep | None:
        value = self.values.get("sweep")
        if value is None:
            return None
        self._value(("sweep",), "mapping")
        self._known(("sweep",), SWEEP_KEYS)
        self._present(("sweep",), ("learning_rates", "seeds"))
        rates = self._value(("sweep", "learning_rates"), "numbers")
        for index, rate in enumerate(rates):
            self._value(("sweep", "learning_rates", index), "rate")
            if f"{rate:g}" in [f"{other:g}" for other in rates[:index]]:
                self.file.refuse(
                    ("sweep", "learning_rates", index), f"{rate:g} is given twice; keep one"
                )
        seeds = self._seeds(("sweep", "seeds"))
        for index, seed in enumerate(seeds):
            if any(seed - row.seed_offset in task.seeds for task in tasks for row in task.rows):
                self.file.refuse(
                    ("sweep", "seeds", index),
                    f"seed {seed} is also one of the study's; a choice must not see its test",
                )
        share = self._value(("sweep", "share"), "share", Sweep.share)
        length = self._value(("sweep", "updates"), "count", updates)
        extend = self._value(("sweep", "extend"), "whole", 0)
        if extend and len(rates) < 2:
            self.file.refuse(("sweep", "extend"), "extend needs two learning rates for a spacing")
        return Sweep(tuple(sorted(map(float, rates))), seeds, length, float(share), extend)
