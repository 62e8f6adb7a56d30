"""The tasks by name, and those of the user: what every command means by a task."""

import dataclasses
import difflib
import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from acpo.errors import ACPOError, reason
from acpo.jsonl import read_jsonl
from acpo.tasks.blame import blame, importing_file
from acpo.tasks.chain import chain_task
from acpo.tasks.gym import gym_task
from acpo.tasks.sources import FORMATS, is_file, read_rows
from acpo.tasks.task import CODE, DIGITS, USUAL, Columns, Pinned, Task
from acpo.verify.problem import ProblemError, is_code, read_problem
from acpo.yamlfile import YamlFile

GYM = "gym:"
_PINNED = {
    row["name"]: {**row, "test": Pinned(**row["test"])}
    for row in read_jsonl(Path(__file__).with_name("benchmarks.jsonl"))
}
BENCHMARKS = tuple(_PINNED)
"""Tasks whose questions are published and pinned, in `benchmarks.jsonl`."""

_ENTRIES = (
    chain_task(),
    Task(
        name="dapo_math",
        title="DAPO-Math-17k",
        problems="BytedTsinghua-SIA/DAPO-Math-17k",
        template="dapo",
        columns=(
            Columns("problem", "answer"),
            Columns("prompt", "reward_model.ground_truth"),
            Columns("prompt", "solution"),
        ),
    ),
    Task(
        **_PINNED["gsm8k"],
        title="GSM8K",
        problems="openai/gsm8k",
        config="main",
        held_out_split="test",
        template="gsm8k",
        test_template="boxed",
        k=1,
    ),
    Task(
        name="math",
        title="MATH",
        problems="DigitalLearningGmbH/MATH-lighteval",
        columns=(*USUAL, Columns("problem", "solution", "boxed")),
        held_out_split="test",
    ),
    Task(name="custom", title="Your own problems"),
    Task(name="arithmetic", title="Arithmetic", grader=DIGITS),
    *(Task(**fields) for name, fields in _PINNED.items() if name != "gsm8k"),
)
TASKS: dict[str, Task] = {
    entry.name: dataclasses.replace(entry, reference=entry.name) for entry in _ENTRIES
}
PAPER = ("aime24", "aime25", "math500", "hmmt25", "beyondaime", "humaneval_pro")
"""The columns of the paper's table, in its order."""


def get_task(reference: str) -> Task:
    """The task behind what a recipe, `--task` or `--benchmarks` says.

    Args:
        reference: a name of `TASKS`; `my_tasks.py:NAME` or `my_tasks.yaml:NAME` for one of the
            user's own; `gym:NAME` for one of reasoning-gym's; or a data file. `chain`, `gym:` and
            functions of a Python file that return a task take settings: `gym:NAME?KEY=VALUE&...`.
    """
    base, _, query = reference.partition("?")
    settings = _settings(query, reference)
    file, _, name = base.rpartition(":")
    if base in TASKS:
        task = TASKS[base]
        if settings and base != "chain":
            raise ACPOError(f"task={reference!r}: {base} takes no settings")
        if settings:
            if settings.keys() != {"steps"} or type(settings["steps"]) is not int:
                raise ACPOError(f"task={reference!r}: it takes steps=N")
            task = chain_task(settings["steps"])
    elif base.startswith(GYM):
        task = gym_task(base.removeprefix(GYM), settings)
    elif file.endswith(".py"):
        task = _from_python(Path(file), name, settings, reference)
    elif settings and (file.endswith((".yaml", ".yml")) or is_file(base)):
        raise ACPOError(f"task={reference!r}: a file takes no settings; leave out ?{query}")
    elif file.endswith((".yaml", ".yml")):
        task = _from_yaml(Path(file), name, reference)
    elif is_file(base):
        task = _own_file(Path(base))
    else:
        raise ACPOError(_unknown(reference))
    name = task.name or name
    if not re.fullmatch(r"[\w.-]+", name):
        raise ACPOError(f"task={reference!r}: use letters, digits, '.', '_' and '-' in its name")
    return dataclasses.replace(task, name=name, title=task.title or name, reference=reference)


def _settings(query: str, reference: str) -> dict[str, Any]:
    settings = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            raise ACPOError(f"task={reference!r}: {part!r} is not KEY=VALUE")
        try:
            settings[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            settings[key] = value
    return settings


def _unknown(name: str) -> str:
    folded = name.lower().replace("-", "").replace("_", "")
    spellings = {known.replace("_", ""): known for known in TASKS}
    near = difflib.get_close_matches(folded, spellings, n=1, cutoff=0.4)
    hint = f"did you mean {spellings[near[0]]!r}? " if near else ""
    return (
        f"task={name!r} is unknown; {hint}Known are {', '.join(TASKS)}; others are "
        f"my_tasks.py:NAME, gym:NAME, or a file that ends in {', '.join(FORMATS)}"
    )


def _own_file(path: Path) -> Task:
    """A data file as a task: code, where its rows are code problems, else math."""
    if not path.is_file():
        raise ACPOError(f"benchmark {str(path)!r}: no such file")
    row = dict(read_rows(str(path), most=1)[0])
    name = re.sub(r"[^\w.-]+", "_", path.stem)
    own = Task(problems=str(path), name=name, title=path.stem)
    try:
        read_problem(row)
    except ProblemError:
        if row.get("answer") is not None or not is_code(row):
            return own
    pair = "new_problem" in row and "raw_problem" in row
    return dataclasses.replace(own, grader=CODE, k=1, template="code_pair" if pair else "code")


def _from_python(path: Path, name: str, settings: dict[str, Any], reference: str) -> Task:
    made = getattr(load_file(path, f"task={reference!r}"), name, None)
    if callable(made) and not isinstance(made, Task):
        try:
            made = made(**settings)
        except Exception as error:
            raise ACPOError(f"task={reference!r}: {blame(error, made)}") from error
    elif settings:
        raise ACPOError(f"task={reference!r}: {name} is no function, so it takes no settings")
    if not isinstance(made, Task):
        raise ACPOError(
            f"task={reference!r}: {name} is {type(made).__name__} in {path}; make it an "
            "acpo.tasks.Task"
        )
    return dataclasses.replace(made, identity={"file": _hash(path), **made.identity})


YAML_KEYS = ("problems", "test", "template", "test_template", "grader", "columns", "k", "title")


def _from_yaml(path: Path, name: str, reference: str) -> Task:
    where = f"task={reference!r}"
    if not path.is_file():
        raise ACPOError(f"{where}: no file {str(path)!r}")
    try:
        fields = dict(YamlFile(path, what="file of tasks", others="recipes/").values[name])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ACPOError(f"{where}: {path} has no entry {name!r} ({reason(error)})") from error
    if "gym" in fields:
        if not isinstance(fields["gym"], str):
            raise ACPOError(f"{where}: gym={fields['gym']!r} must be the name of a task")
        return gym_task(fields.pop("gym"), fields)
    for key in fields:
        if key not in YAML_KEYS:
            raise ACPOError(f"{where}: {key!r} is unknown; use gym, {', '.join(YAML_KEYS)}")
    for key in ("problems", "test"):
        value = fields.get(key)
        if isinstance(value, str) and is_file(value):
            fields[key] = str(path.parent / value)
    identity = {"file": _hash(path)}
    grader = str(fields.get("grader", "math"))
    if ":" in grader:
        file, _, function = grader.rpartition(":")
        fields["grader"] = load_function(path.parent / file, function, f"{where}: grader")
        identity["grader"] = _hash(path.parent / file)
    if "columns" in fields:
        fields["columns"] = (_yaml_columns(fields["columns"], where),)
    try:
        return Task(**fields, identity=identity)
    except ACPOError as error:
        raise ACPOError(f"{where}: {error}") from None


def _yaml_columns(value: Any, where: str) -> Columns:
    try:
        return Columns(**value)
    except TypeError:
        raise ACPOError(f"{where}: columns={value!r}; give problem and answer") from None


def load_function(path: Path, name: str, what: str) -> Callable[..., Any]:
    """A function of a Python file of the user's."""
    found = getattr(load_file(path, what), name, None)
    if not callable(found):
        raise ACPOError(f"{what}: {path} has no function {name!r}")
    return found


_FILES: dict[Path, ModuleType] = {}


def load_file(path: Path, what: str) -> ModuleType:
    """A Python file of the user's as a module; files beside it can be imported."""
    whole = path.resolve()
    if whole in _FILES:
        return _FILES[whole]
    if not whole.is_file():
        raise ACPOError(f"{what}: no file {str(path)!r}")
    if str(whole.parent) not in sys.path:
        sys.path.insert(0, str(whole.parent))
    spec = importlib.util.spec_from_file_location(whole.stem, whole)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(whole.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ACPOError(f"{what}: {blame(error, path)}") from error
    _FILES[whole] = module
    return module


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def import_reward(path: str) -> Callable[..., Any]:
    """The reward function at a dotted path, or `my_rewards.py:NAME`.

    Modules in the working directory are found.
    """
    file, _, function = path.rpartition(":")
    if (alone := path.removesuffix(":")).endswith(".py"):
        raise ACPOError(f"reward_funcs: {path!r} is a file; name its function: {alone}:NAME")
    names = re.findall(r"[^][,\s'\"]+", path)
    if names and names != [path] and not Path(file).is_file():
        raise ACPOError(
            f"reward_funcs: {path!r} is no name; give each by itself: --reward_funcs "
            f"{' '.join(names)}, or in a recipe reward_funcs: [{', '.join(names)}]"
        )
    if file.endswith(".py"):
        return load_function(Path(file), function, "reward_funcs")
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise ACPOError(f"reward_funcs: {path!r} is not a dotted path like 'my_rewards.exact'")
    working_directory = str(Path.cwd())
    if working_directory not in sys.path:
        sys.path.insert(0, working_directory)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ACPOError(f"reward_funcs: {path!r} cannot be imported: {error}") from error
    except Exception as error:
        said = blame(error, importing_file(error))
        raise ACPOError(f"reward_funcs: {path!r} cannot be imported: {said}") from error
    found = getattr(module, name, None)
    if not callable(found):
        has = f"has {name}={found!r}, no function" if hasattr(module, name) else f"has no {name!r}"
        raise ACPOError(f"reward_funcs: module {module_name!r} {has}")
    return found
