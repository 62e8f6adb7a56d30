"""What is wrong with a recipe, known before anything is trained: the same for train and doctor."""

import importlib.util
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acpo.errors import ACPOError
from acpo.tasks.grading import ROW, gold_completion

if TYPE_CHECKING:
    from acpo.train.data import TrainingData
    from acpo.train.recipe import Recipe

POSITIVE = (
    *("temperature", "top_p", "num_train_epochs", "max_completion_length", "steps_per_generation"),
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
    *("num_generations", "num_generations_eval", "generation_batch_size", "num_iterations"),
    *("logging_steps", "save_steps", "eval_steps", "repetition_penalty", "lora_r", "lora_alpha"),
)
NOT_NEGATIVE = ("learning_rate", "weight_decay", "max_grad_norm", "beta", "warmup_steps", "seed")
REPORTERS = ("wandb", "tensorboard", "mlflow", "trackio", "swanlab", "comet_ml", "clearml")
"""Values of `report_to` that are packages of the same name."""

GOLD_SAMPLE, MOST_MEASURED = 200, 50_000
"""Problems whose gold answers are tried, and whose prompts are measured."""


def check_types(values: dict[str, Any], actions: dict[str, Any], where: str) -> None:
    """Raise for values of a YAML file that an option cannot have, which the parser lets pass."""
    for key, value in values.items():
        action = actions.get(key)
        if action is None:
            continue
        if value is None and action.default is not None:
            raise ACPOError(f"{where}{key} is empty; give a value, or remove the line")
        kind, many = action.type, action.nargs in ("+", "*")
        if kind is int and isinstance(value, (bool, float)):
            raise ACPOError(f"{where}{key}={value} must be a whole number")
        if kind in (int, float) and not many and isinstance(value, (list, dict, bool)):
            raise ACPOError(f"{where}{key}={value!r} must be a number")


def check_ranges(values: Mapping[str, Any]) -> None:
    """Raise for numbers out of their range."""
    for name in (*POSITIVE, *NOT_NEGATIVE):
        value = values.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        if not math.isfinite(value) or value < 0 or (value == 0 and name in POSITIVE):
            least = "above 0" if name in POSITIVE else "0 or more"
            raise ACPOError(f"{name}={value} must be {least}")
        if name == "top_p" and value > 1:
            raise ACPOError(f"top_p={value} must be at most 1")


def check_dtype(kind: str | None) -> None:
    """Raise for a type of weights that does not exist."""
    import torch

    if kind not in (None, "auto") and not isinstance(getattr(torch, str(kind), None), torch.dtype):
        raise ACPOError(f"dtype={kind!r} is no type of torch; use float32, bfloat16 or auto")


def check_packages(recipe: "Recipe", *, elsewhere: bool = False) -> None:
    """Raise for packages that the recipe needs and this machine does not have.

    Args:
        recipe: what to train, and how.
        elsewhere: whether another machine will train: it needs its own vLLM.
    """
    config: Any = recipe.config
    wanted = [(f"report_to={name}", name) for name in config.report_to if name in REPORTERS]
    wanted += [("use_peft", "peft")] if recipe.model.use_peft else []
    wanted += [("use_vllm", "vllm")] if config.use_vllm and not elsewhere else []
    for what, package in wanted:
        if importlib.util.find_spec(package) is None:
            own = {"peft": "'acpo[peft]'", "vllm": "'acpo[vllm]'"}.get(package, package)
            raise ACPOError(
                f"{what}: {package} is not installed; pip install {own}, or leave it out"
            )


def _shape(recipe: "Recipe", name: str) -> Any:
    """The configuration of a model, or of what is below an adapter."""
    from transformers import AutoConfig

    from acpo.checkpoints import adapter_base

    trusted = recipe.config.trust_remote_code
    return AutoConfig.from_pretrained(adapter_base(name) or name, trust_remote_code=trusted)


def check_model(recipe: "Recipe", name: str, tokenizer: Any) -> None:
    """Raise for a tokenizer or LoRA targets that do not fit the model; no weights are loaded."""
    from trl import get_peft_config

    trusted = recipe.config.trust_remote_code
    shape = _shape(recipe, name)
    rows = getattr(shape.get_text_config(), "vocab_size", None)
    for token in ("pad_token", "eos_token"):
        number = getattr(tokenizer, f"{token}_id")
        if rows is not None and number is not None and number >= rows:
            raise ACPOError(
                f"model {recipe.model_name!r}: {token} {getattr(tokenizer, token)!r} is number "
                f"{number}, outside its vocabulary of {rows}; choose a token that is in it, or "
                "resize the embedding, and save both"
            )
    if recipe.model.use_peft:
        import torch
        from peft import get_peft_model
        from transformers import AutoModelForCausalLM

        targets = recipe.model.lora_target_modules
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(shape, trust_remote_code=trusted)
            try:
                adapter: Any = get_peft_config(recipe.model)
                get_peft_model(empty, adapter)
            except ValueError as error:
                linear = (n for n, m in empty.named_modules() if isinstance(m, torch.nn.Linear))
                known = {part.rpartition(".")[2] for part in linear}
                raise ACPOError(
                    f"lora_target_modules={targets} fits no part of {recipe.model_name!r}, which "
                    f"has {', '.join(sorted(known))} ({str(error).splitlines()[0]})"
                ) from error


def check_lengths(recipe: "Recipe", data: "TrainingData", tokenizer: Any, name: str) -> None:
    """Raise where a prompt leaves no room, no completion holds an answer, or no pack a sequence."""
    from acpo.engines.trl.safety import prompt_room
    from acpo.train.data import prompt_lengths

    config: Any = recipe.config
    golds = [gold for _, gold in gold_answers(data) if gold]
    if golds and recipe.task.reward_funcs is None:
        lengths = [len(ids) for ids in tokenizer(golds, add_special_tokens=False)["input_ids"]]
        if min(lengths) > config.max_completion_length:
            shortest = golds[lengths.index(min(lengths))]
            raise ACPOError(
                f"max_completion_length={config.max_completion_length} cannot hold an answer: the "
                f"shortest gold, {shortest[:80]!r}, has {min(lengths)} tokens"
            )
    longest = max(prompt_lengths(data.train["prompt"][:MOST_MEASURED], tokenizer))
    room = prompt_room(_shape(recipe, name), config)
    if room is not None and longest > room:
        raise ACPOError(
            f"the longest prompt has {longest} tokens, but max_completion_length="
            f"{config.max_completion_length} leaves room for {room} in the model's context; "
            + (f"set max_prompt_tokens: {room}" if room > 0 else "lower max_completion_length")
        )
    whole = longest + config.max_completion_length
    if config.max_tokens_per_pack is not None and config.max_tokens_per_pack < whole:
        raise ACPOError(
            f"max_tokens_per_pack={config.max_tokens_per_pack} cannot hold a sequence: prompt and "
            f"completion may have {whole} tokens; raise it, or leave it out"
        )


def gold_answers(data: "TrainingData") -> list[tuple[dict[str, Any], str | None]]:
    """The first training rows, each with a completion that is right, where one is known."""
    rows = data.train.select(range(min(GOLD_SAMPLE, len(data.train)))).to_list()
    return [
        (row, gold_completion(data.task, json.loads(row[ROW]) if ROW in row else row))
        for row in rows
    ]


def check_files(name: str) -> None:
    """Raise for a weight that is not a number, in the files of a folder, one tensor at a time."""
    from safetensors import safe_open

    for file in sorted(Path(name).glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118
                value = tensors.get_tensor(key)
                if value.is_floating_point() and not value.isfinite().all():
                    raise ACPOError(f"{file}: {key} has values that are not finite; it is damaged")
