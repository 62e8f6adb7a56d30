"""A recipe: one YAML file, overridden from the command line, read by TRL's own parser."""

import dataclasses
import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from acpo.errors import ACPOError
from acpo.train.values import check_loading, check_switches, check_types, kinds
from acpo.yamlfile import YamlFile

if TYPE_CHECKING:
    from trl import ModelConfig

    from acpo import ACPOConfig


def _option(text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": text})


BEFORE_OPTIONS = {
    **{name: name for name in ("dtype", "attn_implementation")},
    **{"torch_dtype": "dtype", "revision": "model_revision"},
}
"""What of `model_init_kwargs` goes before the model's own options, and their names."""


ELSEWHERE = {
    theirs: ours
    for ours, names in {
        "model_name_or_path": "model model_id model_path",
        "data": "dataset dataset_name data_files train_file",
        "data_config": "dataset_config",
        "data_split": "dataset_train_split",
        "learning_rate": "lr",
        "per_device_train_batch_size": "batch_size",
        "max_steps": "steps",
        "num_train_epochs": "epochs num_epochs",
        "num_generations": "group_size",
        "gradient_accumulation_steps": "grad_accum",
        "max_completion_length": "max_tokens max_new_tokens",
        "reward_funcs": "rewards reward reward_function reward_fn",
        "max_prompt_tokens": "max_prompt_length",
        "beta": "kl_coef",
        "output_dir": "output",
        "resume_from_checkpoint": "resume",
        "method": "algorithm",
        "chat": "chat_template",
    }.items()
    for theirs in names.split()
}
"""What others call an option."""


@dataclass
class TaskArguments:
    """What to train on and what to report; everything else is `ACPOConfig` and `ModelConfig`."""

    task: str = _option("A name, my_tasks.py:NAME, gym:NAME?KEY=VALUE, or a data file.", "custom")
    data: str | None = _option("A .jsonl, .json, .parquet or .csv file, or a hub id.")
    data_config: str | None = _option("The hub data set's configuration.")
    data_split: str = _option("The hub data set's split.", "train")
    problem_column: str | None = _option("Column of the problem; dots reach into objects.")
    answer_column: str | None = _option("Column of the gold answer.")
    template: str | None = _option("A name in `acpo.tasks.TEMPLATES`, or a text with {column}.")
    chat: bool | None = _option("Prompt through the chat template. Unset: if there is one.")
    system_prompt: str | None = _option("The system message of a chat prompt.")
    max_prompt_tokens: int | None = _option("Leave out, and count, problems above this length.")
    max_problems: int | None = _option("Train on the first so many problems.")
    chain_steps: int = _option("Operations in each chain of the chain task.", 5)
    held_out: int | None = _option(
        "Problems kept aside; accuracy on them before and after. Unset: all of held_out_data."
    )
    held_out_data: str | None = _option("A file or hub id with the held-out problems.")
    held_out_split: str | None = _option("Its split, when on the hub. Unset: the task's, or test.")
    reward_funcs: list[str] | None = _option(  # noqa: RUF009
        "Dotted paths, my_rewards.py:NAME. Unset: the task's grader."
    )
    report: bool = _option("Write curves.png and report.json, and print a summary.", True)
    try_next: list[str] | None = _option(  # noqa: RUF009
        "Commands to suggest at the end: the first that has not been run."
    )

    def __post_init__(self) -> None:
        for name in ("reward_funcs", "try_next"):
            if isinstance(value := getattr(self, name), str):  # one, without the brackets
                setattr(self, name, [value])


class Recipe(NamedTuple):
    """A parsed recipe.

    `given` are the options set in the file or on the command line, `env` the file's variables.
    """

    path: Path
    task: TaskArguments
    config: "ACPOConfig"
    model: "ModelConfig"
    given: frozenset[str]
    env: Mapping[str, Any]

    @property
    def model_name(self) -> str:
        """The model, as the recipe names it."""
        return str(self.model.model_name_or_path)

    @property
    def output_dir(self) -> Path:
        """Where the run writes."""
        return Path(str(self.config.output_dir))


def read_recipe(
    path: str | Path, overrides: Sequence[str] = (), *, processes: int | None = None
) -> Recipe:
    """Parse a recipe and its overrides (`--key value`).

    A recipe without `output_dir` writes to `runs/<name of the recipe>`, and with the override
    `--method ROW` to `runs/<name of the recipe>-ROW`: another row is another run.
    Unless given, the `processes` that will train are those of this launch.
    """
    path = Path(path)
    values = YamlFile(path, what="recipe", others="recipes/").values
    parser = _parser(processes)
    actions = {action.dest: action for action in parser._actions}
    known = set(actions)
    for key in values:
        if key != "env" and key not in known:
            _refuse_unknown(str(key), known, where=f"{path}: ")
    check_types(values, actions, kinds(parser.dataclass_types), f"{path}: ")
    variables = values.get("env")
    for name, value in variables.items() if isinstance(variables, Mapping) else ():
        if not isinstance(value, str | int | float):
            raise ACPOError(f"{path}: env: {name}={value!r} must be a text or a number")
    overridden = _overridden(overrides, actions)
    empty = {name: "" for name, texts in overridden.items() if texts == [""]}
    check_types(empty, actions, {}, "--")
    given = frozenset([*values, *overridden])
    check_switches(given)
    arguments = ["--config", str(path), *overrides]
    if "output_dir" not in values:
        arguments[2:2] = ["--output_dir", f"runs/{path.stem}"]
    try:
        task, config, model = parser.parse_args_and_config(arguments)
    except ACPOError:
        raise
    except (ValueError, TypeError) as error:  # what transformers and TRL refuse
        raise ACPOError(f"{path}: {' '.join(str(error).split())}") from error
    if model.model_name_or_path is None:
        raise ACPOError("model_name_or_path is missing; give a folder, a hub id or a .gguf file")
    if "output_dir" not in given and "method" in overridden:
        config.output_dir += f"-{config.method}"
    _settle(model, config.model_init_kwargs or {})
    return Recipe(path, task, config, model, given, values.get("env") or {})


def _settle(model: Any, loading: Any) -> None:
    """Options of the model, as what else says the same of it and as PEFT takes them."""
    from acpo.engines.trl.ranges import check_ranges

    for name, value in dict(loading).items():
        if name in BEFORE_OPTIONS:
            setattr(model, BEFORE_OPTIONS[name], value)
    check_ranges(vars(model))
    check_loading(model)
    for name in ("lora_modules_to_save", "lora_target_parameters"):
        if isinstance(value := getattr(model, name), str):  # whose letters PEFT would take
            setattr(model, name, [value])
    part = model.lora_target_modules
    if isinstance(part, str) and part.isidentifier():  # TRL takes one of a list for a pattern
        model.lora_target_modules = [part]


def resolved(recipe: Recipe) -> str:
    """The recipe with its overrides as YAML; what follows from it stands below, as comments."""
    import yaml

    given: dict[str, Any] = {"env": dict(recipe.env)} if recipe.env else {}
    given["output_dir"] = str(recipe.output_dir)
    follows = {
        f"{recipe.config.method}: {k}": v for k, v in recipe.config.objective.options.items()
    }
    for part in (recipe.model, recipe.task, recipe.config):
        for entry in dataclasses.fields(part):
            value = getattr(part, entry.name)
            value = getattr(value, "value", value)
            if entry.name in recipe.given:
                given.setdefault(entry.name, value)
            elif (
                entry.name not in given
                and isinstance(value, (int, float, str))
                and value != _default(entry)
            ):
                follows.setdefault(entry.name, value)
    text = yaml.safe_dump(json.loads(json.dumps(given, default=str)), sort_keys=False)
    return text + "".join(f"# {key}: {value}\n" for key, value in follows.items())


def _default(entry: dataclasses.Field[Any]) -> Any:
    if entry.default_factory is not dataclasses.MISSING:
        return entry.default_factory()
    return entry.default


def option_groups() -> dict[str, list[tuple[str, str]]]:
    """Every option of a recipe with its help, by what it is about."""
    from transformers import TrainingArguments
    from trl import GRPOConfig, ModelConfig

    from acpo import ACPOConfig

    groups: dict[str, list[tuple[str, str]]] = {}
    seen: set[str] = set()
    for title, part in (
        ("Data and report", TaskArguments),
        ("Model", ModelConfig),
        ("Training", TrainingArguments),
        ("Sampling and rewards", GRPOConfig),
        ("Method and update", ACPOConfig),
    ):
        own = [entry for entry in dataclasses.fields(part) if entry.name not in seen and entry.init]
        seen |= {entry.name for entry in own}
        rows = [(e.name, " ".join(str(e.metadata.get("help", "")).split())) for e in own]
        groups[title] = sorted(rows) if part is not TaskArguments else rows
    order = ("Data and report", "Model", "Method and update", "Sampling and rewards", "Training")
    return {title: groups[title] for title in order}


def _parser(processes: int | None) -> Any:
    from trl import ModelConfig, TrlParser

    from acpo import ACPOConfig

    class RecipeParser(TrlParser):
        def error(self, message: str) -> NoReturn:
            raise ACPOError(message)

    parts: Any = [TaskArguments, ACPOConfig, ModelConfig]
    if processes is not None:  # only to plan with: such a class cannot be pickled
        parts[1] = type("ACPOConfig", (ACPOConfig,), {"world_size": processes, "n_gpu": 1})
    return RecipeParser(parts, allow_abbrev=False)


def _overridden(texts: Sequence[str], actions: Mapping[str, Any]) -> dict[str, list[str]]:
    """The options that a command line sets, each with its words."""
    found: dict[str, list[str]] = {}
    words: list[str] = []
    most: float = 0
    for place, text in enumerate(texts):
        if text.startswith("--"):
            key, equals, value = text[2:].partition("=")
            name = key.replace("-", "_")
            if name not in actions:
                _refuse_unknown(key, set(actions), where="--")
            if name in found:
                raise ACPOError(f"--{name} is given twice; keep one")
            words = found[name] = [value] if equals else []
            takes_several = not equals and actions[name].nargs in ("+", "*")
            most = math.inf if takes_several else 1
        elif len(words) < most:
            words.append(text)
        else:
            key, equals, value = text.partition("=")
            option = f"--{key} {value or ' '.join(texts[place + 1 : place + 2])}".strip()
            hint = f"did you mean {option}?" if key in actions else "options come as --key value"
            raise ACPOError(f"{text!r} is the value of no option; {hint}")
    return found


def _refuse_unknown(key: str, known: set[str], *, where: str) -> NoReturn:
    name = key.replace("-", "_")
    elsewhere = ELSEWHERE.get(name)
    near = [elsewhere] if elsewhere else difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else "every option of GRPOConfig is accepted"
    raise ACPOError(f"{where}{key} is not an option; {hint}")
