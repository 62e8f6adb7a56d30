"""Mistakes that can be known before anything is generated."""

import os
import tempfile
from collections.abc import Sequence
from itertools import islice
from typing import Any

from datasets import IterableDataset

from acpo.errors import ACPOError

MOST_CHECKED = 50_000


def check_output_folder(path: str) -> None:
    """Raise unless files can be written to `path`."""
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ACPOError(
            f"output_dir={path!r} cannot be written to ({error.strerror}); choose another folder"
        ) from error


def check_dataset(dataset: Any, config: Any, *, has_environment: bool) -> None:
    """Raise for a training set that would give no step, or no prompt."""
    if dataset is None or isinstance(dataset, IterableDataset):
        if dataset is not None and config.dynamic_sampling:
            raise ACPOError(
                "dynamic_sampling needs a training set that can be indexed; load it without "
                "streaming"
            )
        return
    columns = list(dataset.column_names)
    if "prompt" not in columns and not has_environment:
        raise ACPOError(
            f"the training data has no 'prompt' column; it has {', '.join(columns) or 'none'}. "
            "Rename the column that holds the question"
        )
    prompts = config.generation_batch_size // config.num_generations
    if len(dataset) < prompts:
        raise ACPOError(
            f"the training data has {len(dataset)} prompts, but one rollout takes {prompts} "
            f"(generation_batch_size={config.generation_batch_size} / num_generations="
            f"{config.num_generations}); lower generation_batch_size, per_device_train_batch_size "
            "or steps_per_generation"
        )


def check_prompts(dataset: Any, tokenizer: Any, *, room: int | None, template: Any = None) -> None:
    """Raise for prompts that are empty or too long, or chat prompts without a template.

    Args:
        dataset: the training set.
        tokenizer: the policy's.
        room: most prompt tokens that leave space for a completion; None if unlimited.
        template: a chat template that replaces the tokenizer's.
    """
    if dataset is None or "prompt" not in (dataset.column_names or []):
        return
    for number, row in enumerate(islice(dataset.select_columns("prompt"), MOST_CHECKED)):
        prompt = row["prompt"]
        chat = not isinstance(prompt, str)
        if chat and not (template or tokenizer.chat_template):
            raise ACPOError(
                f"prompt {number} is a conversation, but the tokenizer has no chat template; set "
                "tokenizer.chat_template, or give prompts as text"
            )
        text = prompt if not chat else "".join(str(m.get("content") or "") for m in prompt)
        if not prompt or not text.strip():
            raise ACPOError(f"prompt {number} is empty; drop the row")
        # A token has at least one byte, so short texts need no tokenizer.
        if room is not None and len(text.encode()) > room:
            count = len(tokenizer(text, add_special_tokens=False)["input_ids"])
            check_length(count, room, f"prompt {number}")


def check_length(count: int, room: int, what: str) -> None:
    """Raise if a prompt leaves no room for a completion."""
    if count > room:
        raise ACPOError(
            f"{what} has {count} tokens, but only {room} leave room for max_completion_length; "
            "drop long prompts, lower max_completion_length, or use a model with a longer context"
        )


def prompt_room(model_config: Any, config: Any) -> int | None:
    """Most tokens a prompt may have."""
    text = model_config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None)
    if config.use_vllm and config.vllm_max_model_length is not None:
        limit = min(limit or config.vllm_max_model_length, config.vllm_max_model_length)
    return None if limit is None else limit - config.max_completion_length


def check_tokens(prompts: Sequence[Sequence[int]], room: int | None) -> None:
    """The same checks on tokenised prompts, for data that could not be looked at beforehand."""
    for number, ids in enumerate(prompts):
        if len(ids) == 0:
            raise ACPOError(f"prompt {number} of this rollout has no tokens; drop empty prompts")
        if room is not None:
            check_length(len(ids), room, f"prompt {number} of this rollout")
