"""A recipe: one YAML file, overridden from the command line, read by TRL's own parser."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from acpo.errors import ACPOError

if TYPE_CHECKING:
    from trl import ModelConfig

    from acpo import ACPOConfig


def _option(text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class TaskArguments:
    """What to train on and what to report; everything else is `ACPOConfig` and `ModelConfig`."""

    task: str = _option("The task: a name in `acpo.tasks.TASKS`.", "custom")
    data: str | None = _option("A .jsonl, .json, .parquet or .csv file, or a hub id.")
    data_config: str | None = _option("The hub data set's configuration.")
    data_split: str = _option("The hub data set's split.", "train")
    problem_column: str | None = _option("Column of the problem; dots reach into objects.")
    answer_column: str | None = _option("Column of the gold answer.")
    template: str | None = _option("A name in `acpo.tasks.TEMPLATES`, or a text with {problem}.")
    chat: bool | None = _option("Prompt through the chat template. Unset: if there is one.")
    system_prompt: str | None = _option("The system message of a chat prompt.")
    max_prompt_tokens: int | None = _option("Leave out, and count, problems above this length.")
    max_problems: int | None = _option("Train on the first so many problems.")
    chain_steps: int = _option("Operations in each chain of the chain task.", 5)
    held_out: int = _option("Problems kept aside; accuracy on them before and after.", 0)
    held_out_data: str | None = _option("A file or hub id with the held-out problems.")
    held_out_split: str | None = _option("Its split, when on the hub. Unset: the task's, or test.")
    reward_funcs: list[str] | None = field(
        default=None, metadata={"help": "Dotted paths. Unset: the task's own reward."}
    )
    report: bool = _option("Write curves.png and report.json, and print a summary.", True)
    try_next: str | None = _option("The command to suggest at the end.")


class Recipe(NamedTuple):
    """A parsed recipe.

    Attributes:
        path: of the YAML file.
        task: what to train on.
        config: how to train.
        model: what to train.
        given: the options set in the file or on the command line.
    """

    path: Path
    task: TaskArguments
    config: "ACPOConfig"
    model: "ModelConfig"
    given: frozenset[str]

    @property
    def model_name(self) -> str:
        """The model, as the recipe names it."""
        return str(self.model.model_name_or_path)

    @property
    def output_dir(self) -> Path:
        """Where the run writes."""
        return Path(str(self.config.output_dir))


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Parse a recipe and its overrides (`--key value`).

    A recipe without `output_dir` writes to `runs/<name of the recipe>`.

    Raises:
        ACPOError: for a file that is missing or no mapping, an unknown key (the nearest is
            suggested) or a value of the wrong type.
    """
    path = Path(path)
    values = _read_yaml(path)
    parser = _parser()
    known = {action.dest for action in parser._actions}
    for key in values:
        if key != "env" and key not in known:
            _refuse_unknown(key, known, where=f"{path}: ")
    names = [text[2:].partition("=")[0] for text in overrides if text.startswith("--")]
    for name in names:
        if name.replace("-", "_") not in known:
            _refuse_unknown(name, known, where="--")
    arguments = ["--config", str(path), *overrides]
    if "output_dir" not in values:
        arguments[2:2] = ["--output_dir", f"runs/{path.stem}"]
    try:
        task, config, model = parser.parse_args_and_config(arguments)
    except ACPOError:
        raise
    except ValueError as error:  # what transformers and TRL refuse
        raise ACPOError(f"{path}: {error}") from error
    if model.model_name_or_path is None:
        raise ACPOError("model_name_or_path is missing; give a folder, a hub id or a .gguf file")
    given = frozenset([*values, *(name.replace("-", "_") for name in names)])
    return Recipe(path, task, config, model, given)


def _parser() -> Any:
    from trl import ModelConfig, TrlParser

    from acpo import ACPOConfig

    class RecipeParser(TrlParser):
        def error(self, message: str) -> NoReturn:
            raise ACPOError(message)

    parts: Any = (TaskArguments, ACPOConfig, ModelConfig)
    return RecipeParser(parts, allow_abbrev=False)


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    if not path.is_file():
        raise ACPOError(f"recipe={str(path)!r} is not a file; see recipes/ for some to copy")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ACPOError(f"recipe={str(path)!r} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ACPOError(f"recipe={str(path)!r} must be a mapping of options to values")
    return values


def _refuse_unknown(key: str, known: set[str], *, where: str) -> NoReturn:
    near = difflib.get_close_matches(key.replace("-", "_"), known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else "every option of GRPOConfig is accepted"
    raise ACPOError(f"{where}{key} is not an option; {hint}")
