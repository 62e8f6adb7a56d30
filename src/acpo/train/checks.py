"""What is wrong with a recipe, known before anything is trained: the same for train and doctor."""

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acpo.errors import ACPOError
from acpo.tasks.grading import ROW, gold_completion
from acpo.vllm_version import require_vllm

if TYPE_CHECKING:
    from acpo.train.data import TrainingData
    from acpo.train.recipe import Recipe

REPORTERS = ("wandb", "tensorboard", "mlflow", "trackio", "swanlab", "comet_ml", "clearml")
"""Values of `report_to` that are packages of the same name."""

GOLD_SAMPLE, MOST_MEASURED = 200, 50_000
"""Problems whose gold answers are tried, and whose prompts are measured."""


def check_packages(recipe: "Recipe", *, elsewhere: bool = False) -> None:
    """Raise for packages that the recipe needs and this machine lacks; vLLM, unless elsewhere."""
    config: Any = recipe.config
    wanted = [(f"report_to={name}", name) for name in config.report_to if name in REPORTERS]
    wanted += [("use_peft", "peft")] if recipe.model.use_peft else []
    if config.use_vllm and not elsewhere:
        require_vllm("use_vllm")
    for what, package in wanted:
        if importlib.util.find_spec(package) is None:
            raise ACPOError(
                f"{what}: {package} is not installed; pip install {package}, or leave it out"
            )


def shape_of(recipe: "Recipe", name: str) -> Any:
    """The configuration of a model, or of what is below an adapter."""
    from transformers import AutoConfig

    from acpo.checkpoints import adapter_base

    trusted, base = recipe.config.trust_remote_code, adapter_base(name)
    revision = recipe.model.model_revision if base is None else None
    return AutoConfig.from_pretrained(
        base or name, trust_remote_code=trusted, revision=revision or "main"
    )


def check_model(recipe: "Recipe", name: str, tokenizer: Any) -> None:
    """Raise for a tokenizer or LoRA targets that do not fit the model; no weights are loaded."""
    from trl import get_peft_config

    trusted = recipe.config.trust_remote_code
    shape = shape_of(recipe, name)
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
    some = data.train["prompt"][:MOST_MEASURED]
    longest = max(prompt_lengths(some, tokenizer, data.template_options))
    room = prompt_room(shape_of(recipe, name), config)
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
