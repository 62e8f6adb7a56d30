"""The model a study starts from: supervised training on worked solutions, once per study."""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

from acpo.compare.plan import read_json, write_json
from acpo.compare.settings import Study, WarmStart
from acpo.compare.study import read_options
from acpo.errors import ACPOError

FOLDER = "warm-start"
DONE = "warmstart.json"
_CALCULATIONS = re.compile(r"<<[^<>]*>>")
"""GSM8K's calculator annotations, which are no part of a solution."""

Example = tuple[list[int], int]
"""Token ids, and how many of them are the prompt."""


def prepare_start(
    study: Study,
    folder: Path,
    submit: Callable[..., Future[Any]],
    say: Callable[[str], None],
) -> str | None:
    """The folder of the warm-started model, trained now if it is not there; None without one."""
    if study.warm_start is None:
        return None
    settings = study.warm_start
    place = folder / FOLDER
    if (place / DONE).is_file():
        made = read_json(place / DONE).get("settings")
        if made != json.loads(json.dumps(asdict(settings))):
            raise ACPOError(f"{place} was made with other settings, {made}; remove it")
        return str(place)
    say("warm start: supervised training on worked solutions")
    recipe = {**read_options(study.tasks[0].recipe), **study.options, **study.overrides}
    record = submit(train_start, recipe, settings, place).result()
    say(
        f"warm start: loss {record['loss']:.3f} after {record['steps']} steps, "
        f"{record['seconds']:.0f} s"
    )
    return str(place)


def train_start(recipe: Mapping[str, Any], settings: WarmStart, place: Path) -> dict[str, Any]:
    """Train, and write model, tokenizer and `warmstart.json` to `place`."""
    import time

    import torch
    from transformers import AutoModelForCausalLM

    from acpo.checkpoints import load_tokenizer, resolve_model

    began = time.perf_counter()
    place.mkdir(parents=True, exist_ok=True)
    name = resolve_model(str(recipe["model_name_or_path"]), place)
    tokenizer = load_tokenizer(name)
    model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(settings.seed)
    examples = read_examples(recipe, settings, tokenizer)
    losses = fit(model.to(device), examples, settings, pad=int(tokenizer.pad_token_id))
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    record = {
        "settings": asdict(settings),
        "examples": len(examples),
        "steps": len(losses),
        "loss": sum(losses[-20:]) / len(losses[-20:]),
        "seconds": round(time.perf_counter() - began, 1),
    }
    write_json(place / DONE, record)
    return record


def read_examples(recipe: Mapping[str, Any], settings: WarmStart, tokenizer: Any) -> list[Example]:
    """The training problems as prompts, each followed by its solution and the end token."""
    from acpo.tasks.problems import find_layout
    from acpo.tasks.sources import column, has_column, read_rows
    from acpo.train.data import as_text, prompt_maker, recipe_task
    from acpo.train.recipe import TaskArguments

    fields = {k: v for k, v in recipe.items() if k in TaskArguments.__dataclass_fields__}
    arguments = TaskArguments(**fields)
    task = recipe_task(arguments)
    source = arguments.data or task.problems
    if not isinstance(source, str):
        raise ACPOError(f"warm_start: task={task.name!r} has no data with worked solutions")
    own_split = arguments.data is None and task.held_out_split
    if arguments.held_out and not (arguments.held_out_data or own_split):
        raise ACPOError(
            f"warm_start: held_out={arguments.held_out} problems are kept aside from "
            f"data={source!r}, whose solutions would be trained on; set held_out_data"
        )
    config = arguments.data_config or (task.config if source == task.problems else None)
    rows = read_rows(source, config=config, split=arguments.data_split)
    layout = find_layout(rows, task.columns, source=source)
    found = [name for name in settings.solution_columns if has_column(rows[0], name)]
    if not found:
        raise ACPOError(
            f"warm_start.solution_columns={settings.solution_columns}: data={source!r} has "
            f"{', '.join(rows[0])}"
        )
    prompt = prompt_maker(arguments, tokenizer)
    assert layout is not None
    prompts = [prompt({**row, "problem": str(column(row, layout.problem))}) for row in rows]
    texts = [as_text(one, tokenizer) for one in prompts]
    solutions = [_CALCULATIONS.sub("", str(column(row, found[0]))) for row in rows]
    # A chat template writes the special tokens itself.
    asked = tokenizer(texts, add_special_tokens=isinstance(prompts[0], str))["input_ids"]
    answered = tokenizer(solutions, add_special_tokens=False)["input_ids"]
    end = tokenizer.eos_token_id
    examples = [([*a, *b, end], len(a)) for a, b in zip(asked, answered, strict=True)]
    return [example for example in examples if len(example[0]) <= settings.max_tokens]


def fit(model: Any, examples: Sequence[Example], settings: WarmStart, *, pad: int) -> list[float]:
    """Minimise the cross entropy of the solutions; returns the loss of every step."""
    import torch

    batches = list(_batches(examples, settings))
    if not batches:
        raise ACPOError("warm_start: no example is short enough; raise max_tokens")
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    rise = max(1, len(batches) // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / rise, (len(batches) - step) / max(1, len(batches) - rise)),
    )
    half = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    model.train()
    losses = []
    for batch in batches:
        ids, labels, mask = (x.to(device) for x in _tensors(batch, pad))
        with half:
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def _batches(examples: Sequence[Example], settings: WarmStart) -> Iterator[list[Example]]:
    """Shuffled batches of similar length."""
    rng = random.Random(settings.seed)
    size = settings.batch_size
    for _ in range(settings.epochs):
        order = list(examples)
        rng.shuffle(order)
        batches = []
        for first in range(0, len(order), 16 * size):
            near = sorted(order[first : first + 16 * size], key=lambda example: len(example[0]))
            batches += [near[i : i + size] for i in range(0, len(near), size)]
        rng.shuffle(batches)
        yield from batches


def _tensors(batch: Sequence[Example], pad: int) -> tuple[Any, Any, Any]:
    """Right-padded ids, labels that leave out prompts and padding, and the attention mask."""
    import torch

    width = max(len(ids) for ids, _ in batch)
    ids = torch.full((len(batch), width), pad)
    labels = torch.full((len(batch), width), -100)
    mask = torch.zeros((len(batch), width), dtype=torch.long)
    for row, (tokens, prompt) in enumerate(batch):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, prompt : len(tokens)] = torch.tensor(tokens[prompt:])
        mask[row, : len(tokens)] = 1
    return ids, labels, mask
