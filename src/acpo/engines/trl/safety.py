"""What keeps a run honest: checks of its data, and probes of the trainer as built.

A probe compares our logits with the model's own, and packed sequences with padded ones, before
anything is trained.
"""

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, IterableDataset
from torch import Tensor
from transformers.utils import logging

from acpo.engines.attention import HALF
from acpo.engines.ranks import Ranks
from acpo.engines.trl.forward import Attention
from acpo.engines.trl.packing import find_rows
from acpo.engines.trl.update import PackedUpdate, UpdateSettings
from acpo.errors import ACPOError
from acpo.head import probe

logger = logging.get_logger(__name__)

MOST_CHECKED = 50_000

TRAINING = "the training data"
EVALUATED = (Dataset, IterableDataset, torch.utils.data.Dataset, list)
"""What TRL evaluates on; it trains on the first two alone."""


def check_output_folder(path: str) -> None:
    """Raise unless files can be written to `path`, which need not be there and is not made."""
    try:
        there = next(folder for folder in (Path(path), *Path(path).parents) if folder.exists())
        with tempfile.NamedTemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ACPOError(
            f"output_dir={path!r} cannot be written to ({error.strerror}); choose another folder"
        ) from error


def columns_of(dataset: Any) -> list[str] | None:
    """The columns of a data set's rows as they come out of it; None if it does not say."""
    if _transformed(dataset) and len(dataset):
        return list(dataset[0])
    return getattr(dataset, "column_names", None)


def _transformed(dataset: Any) -> bool:
    """Whether a function of the user's makes the rows (`with_transform`)."""
    return isinstance(dataset, Dataset) and dataset.format["type"] == "custom"


def data_sets(train: Any, evaluation: Any) -> dict[str, Any]:
    """The data sets a trainer reads rows of, by what to call them; splits one by one."""
    named = {"eval_dataset": evaluation}
    if isinstance(evaluation, Mapping):
        named = {f"eval_dataset[{name!r}]": split for name, split in evaluation.items()}
    found = {TRAINING: train, **named}
    return {what: dataset for what, dataset in found.items() if dataset is not None}


def check_data(data: Mapping[str, Any], config: Any, *, has_environment: bool) -> None:
    """Raise for a training set that would give no step, and for rows without a prompt."""
    for what, dataset in data.items():
        _check_columns(dataset, what, has_environment=has_environment)
    dataset = data.get(TRAINING)
    if isinstance(dataset, IterableDataset) and config.dynamic_sampling:
        raise ACPOError(
            "dynamic_sampling needs a training set that can be indexed; load it without streaming"
        )
    prompts = config.generation_batch_size // config.num_generations
    if isinstance(dataset, Dataset) and len(dataset) < prompts:
        raise ACPOError(
            f"the training data has {len(dataset)} prompts, but one rollout takes {prompts} "
            f"(generation_batch_size={config.generation_batch_size} / num_generations="
            f"{config.num_generations}); lower generation_batch_size, per_device_train_batch_size "
            "or steps_per_generation"
        )


def _check_columns(dataset: Any, what: str, *, has_environment: bool) -> None:
    readable = (Dataset, IterableDataset) if what == TRAINING else EVALUATED
    if not isinstance(dataset, readable):
        held = dataset.items() if isinstance(dataset, Mapping) else ()
        names = [name for name, value in held if isinstance(value, Dataset | IterableDataset)]
        remedy = "make it one, such as Dataset.from_list(rows)"
        if names:
            one = "train" if "train" in names else names[0]
            remedy = f"it holds {', '.join(map(repr, names))}: pass one of them, data[{one!r}]"
        raise ACPOError(f"{what} is a {type(dataset).__name__}, not a datasets.Dataset; {remedy}")
    columns = columns_of(dataset)
    if columns is None:
        return
    images = [name for name in ("image", "images") if name in columns]
    if images:
        raise ACPOError(f"{what} has a column {images[0]!r}, and images are not supported; drop it")
    if "prompt" not in columns and not has_environment:
        raise ACPOError(
            f"{what} has no 'prompt' column; it has {', '.join(columns) or 'none'}. "
            "Rename the column that holds the question"
        )


def check_prompts(data: Mapping[str, Any], trainer: Any, *, may_be_empty: bool = False) -> None:
    """Raise for prompts that are empty or too long, or that no chat template takes.

    Args:
        data: what to call it, and the data set; streams are not looked at.
        trainer: built, with the tokenizer, the chat template and the room for prompts.
        may_be_empty: whether an environment fills prompts in later.
    """
    for what, dataset in data.items():
        if isinstance(dataset, Dataset) and "prompt" in (columns_of(dataset) or []):
            rows = dataset if _transformed(dataset) else dataset.select_columns("prompt")
            for number, row in enumerate(islice(rows, MOST_CHECKED)):
                _check_prompt(row["prompt"], f"prompt {number} of {what}", trainer, may_be_empty)


def _check_prompt(prompt: Any, what: str, trainer: Any, may_be_empty: bool) -> None:
    tokenizer, room, template = trainer._tokenizer, trainer.prompt_room, trainer.chat_template
    chat = not isinstance(prompt, str)
    if chat and not (isinstance(prompt, list) and all(isinstance(m, Mapping) for m in prompt)):
        raise ACPOError(
            f"{what} is {prompt!r:.80}, neither a text nor a list of messages; drop the row, or "
            "make it one of both"
        )
    if chat and not (template or tokenizer.chat_template):
        raise ACPOError(
            f"{what} is a conversation, but the tokenizer has no chat template; set "
            "tokenizer.chat_template, or give prompts as text"
        )
    text = prompt if not chat else "".join(str(m.get("content") or "") for m in prompt)
    if not may_be_empty and (not prompt or not text.strip()):
        raise ACPOError(f"{what} is empty; drop the row")
    if chat:
        text = rendered(prompt, tokenizer, trainer.chat_template_kwargs, template)
    # A token has at least one byte, so short texts need no tokenizer.
    if room is not None and len(text.encode()) > room:
        check_length(len(tokenizer(text, add_special_tokens=False)["input_ids"]), room, what)


def rendered(
    prompt: Any, tokenizer: Any, options: Mapping[str, Any] | None = None, template: Any = None
) -> str:
    """A conversation as the model reads it, before the answer.

    `options` are `chat_template_kwargs`, and `template` replaces the tokenizer's.
    """
    try:
        return tokenizer.apply_chat_template(
            prompt,
            tokenize=False,
            add_generation_prompt=True,
            chat_template=template,
            **(options or {}),
        )
    except Exception as error:  # the template is the checkpoint's own program
        roles = ", ".join(str(message.get("role")) for message in prompt)
        raise ACPOError(
            f"the chat template cannot lay out a prompt of the roles {roles} "
            f"({type(error).__name__}: {error}); leave out roles it does not take (system_prompt), "
            "mend tokenizer.chat_template, or give prompts as text (chat: false)"
        ) from error


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


@contextmanager
def random_states_kept(device: torch.device) -> Iterator[None]:
    """Whatever draws random numbers inside, rewards among them, those after are what they were."""
    ours, numpys = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([device.index or 0] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(ours)
            np.random.set_state(numpys)


LEAK = 1e-2
"""Largest change of a packed log-probability that can be rounding in bfloat16."""


def probe_head(policy: Any) -> None:
    """Raise unless our head gives the logits the policy itself gives, on a few tokens."""
    # Any attention will do; kernels may want a device or dtype the weights do not have yet.
    with Attention("padded", "probe", "eager").installed(policy):
        probe.probe_head(policy)


@torch.no_grad()
def second_sequence(update: PackedUpdate, policy: Any, model: Any) -> tuple[Tensor, float]:
    """Log-probabilities of a sequence behind another, and how far they move with that other.

    `model` is what training calls, the policy or a wrapper: FSDP gathers weights at its root alone.
    """
    long, short = 9, 6
    ids = probe.probe_ids(policy, 2 * long).view(2, long).clone()
    attended = torch.ones_like(ids, dtype=torch.bool)
    attended[1, short:] = False
    targets = attended.clone()
    targets[:, 0] = False
    rows = find_rows(attended=attended, targets=targets)
    training = policy.training
    policy.eval()
    try:
        found = []
        for _ in range(2):
            with update.ready(policy):
                stats = update.statistics(model, ids=ids, rows=rows, first=1)
            found.append(stats.logp[1, : short - 1])
            ids[0] = ids[0].flip(0)
    finally:
        policy.train(training)
    return found[0], float((found[0] - found[1]).abs().max())


def packing_fault(trainer: Any, attention: Attention) -> str | None:
    """What is wrong with packing the trainer's policy; None if nothing is.

    Beside the leak, packed log-probabilities are held to the model's own.
    """
    policy, accelerator = trainer.policy, trainer.accelerator

    def trial(layout: Attention) -> PackedUpdate:
        return PackedUpdate(
            UpdateSettings(trainer.args.objective, trainer.temperature, budget=256),
            ranks=Ranks(accelerator.device, together=False),
            attention=layout,
            autocast=accelerator.autocast,
        )

    packed, leak = second_sequence(trial(attention), policy, trainer.model)
    # Nothing can leak where sequences are padded: what moves there is the model's rounding.
    own, noise = second_sequence(trial(Attention("padded", "probe")), policy, trainer.model)
    name = type(policy).__name__
    if leak > max(LEAK, 4 * noise):
        return (
            f"sequences of {name} see each other in a pack: a log-probability moved by {leak:.2g}"
        )
    apart = float((packed - own).abs().mean())
    exact = accelerator.mixed_precision == "no" and policy.dtype not in HALF
    if apart > (1e-2 if exact else 0.3):
        return f"packed log-probabilities of {name} are {apart:.2g} from its own"
    return None


def probed_attention(trainer: Any, attention: Attention) -> Attention:
    """The layout, once packing has been tried; raises if packs were insisted on in vain."""
    fault = packing_fault(trainer, attention)
    if fault is None:
        return attention
    if trainer.args.update_layout == "packed":
        raise ACPOError(f"update_layout='packed' is not possible: {fault}; use 'auto'")
    logger.warning(f"sequences are padded instead of packed: {fault}")
    return Attention("padded", fault)


def require_packing(trainer: Any) -> None:
    """Raise if the policy, now in place on all processes, cannot be packed after all."""
    fault = packing_fault(trainer, trainer.packed.attention)
    if fault is not None:
        raise ACPOError(f"{fault}; set update_layout='padded'")
