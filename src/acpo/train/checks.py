"""What is wrong with a recipe, known before anything is trained: the same for train and doctor."""

import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.utils import logging

from acpo.checkpoints import (
    LOOKED_AT,
    LOST,
    adapter_base,
    check_weights,
    load_tokenizer,
    require_tokens,
    resolve_model,
    unread,
)
from acpo.errors import ACPOError
from acpo.tasks.grading import ROW, gold_completion
from acpo.train.data import TrainingData, as_text, build_data, prompt_lengths
from acpo.train.plan import plan_batches, prompts_used
from acpo.train.recipe import BEFORE_OPTIONS, Recipe
from acpo.vllm_version import require_vllm

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GOLD_SAMPLE, MOST_MEASURED = 200, 50_000
"""Problems whose gold answers are tried, and whose prompts are measured."""

CHOOSING = {
    "save_strategy": ("best",),
    "load_best_model_at_end": (True,),
    "lr_scheduler_type": ("reduce_lr_on_plateau", "greedy"),
}
"""Options that go by evaluations, and at which values."""


def gather(
    recipe: Recipe,
    *,
    choose: Callable[[TrainingData], TrainingData] | None = None,
    elsewhere: bool = False,
) -> tuple[str, "PreTrainedTokenizerBase", TrainingData]:
    """The model's name, its tokenizer and the data; raises for whatever would stop the run later.

    `choose` picks from the data before anything looks at them; where another machine is to train,
    `elsewhere`, this one need not be able to.
    """
    from acpo.engines.trl.identity import STREAM
    from acpo.engines.trl.rewards import checked_rewards
    from acpo.engines.trl.safety import check_data, data_sets

    config, model = recipe.config, recipe.model
    check_packages(recipe, elsewhere=elsewhere)
    check_launch(recipe)
    name = resolve_model(recipe.model_name, recipe.output_dir)
    tokenizer = load_tokenizer(
        name, revision=model.model_revision, trust_remote_code=config.trust_remote_code
    )
    check_model(recipe, name, tokenizer, elsewhere=elsewhere)
    check_weights(name)
    used = prompts_used(recipe)
    spare = 8 if choose else 1  # a study leaves most of them to another phase
    options: Any = config.chat_template_kwargs
    data = build_data(
        recipe.task,
        tokenizer,
        seed=config.seed,
        prompts=used and spare * used,
        template_options=options,
    )
    data = choose(data) if choose else data
    read = data_sets(data.train, data.held_out)
    check_data(read, config, has_environment=False)
    checked_rewards(data.rewards, read, removes=config.remove_unused_columns)
    check_reward_weights(config.reward_weights, data)
    check_lengths(recipe, data, tokenizer, name)
    check_readable(recipe, data, tokenizer)
    check_evaluation(recipe, data)
    check_optimizer(recipe, name, plan_batches(recipe, len(data.train)).updates, elsewhere)
    if choose is None and data.stream is not None:
        # A longer run goes on in the stream where a shorter one ended: no order but the stream's.
        config.shuffle_dataset = False
        data.train.info.description = f"{STREAM}{data.stream}"
    return name, tokenizer, data


def resumption(config: Any) -> str | bool | None:
    """`true` asks for the newest checkpoint; anything else is the path of one."""
    value, words = config.resume_from_checkpoint, {"true": True, "false": False}
    return words.get(value.lower(), value) if isinstance(value, str) else value


def check_packages(recipe: Recipe, *, elsewhere: bool = False) -> None:
    """Raise for packages it needs and this machine lacks: those for GPUs unless elsewhere."""
    from transformers.integrations import get_reporting_integration_callbacks

    config, model = recipe.config, recipe.model
    with in_one_line(f"report_to={config.report_to}"):
        for reporter in get_reporting_integration_callbacks(config.report_to):
            reporter()  # each asks for its package when it is made
    if config.use_vllm and not elsewhere:
        require_vllm("use_vllm")
    wanted = dict.fromkeys(("load_in_4bit", "load_in_8bit"), "bitsandbytes")
    for option, package in {"use_peft": "peft", **({} if elsewhere else wanted)}.items():
        if getattr(model, option) and importlib.util.find_spec(package) is None:
            raise ACPOError(
                f"{option}: {package} is not installed; pip install {package}, or leave it out"
            )


def check_launch(recipe: Recipe) -> None:
    """Raise where the processes cannot train as they were started, or write no output folder."""
    from acpo.engines.trl.refusals import refuse_several_gpus
    from acpo.engines.trl.safety import check_output_folder

    config = recipe.config
    refuse_several_gpus(config)
    if config.fsdp and config.world_size == 1:
        raise ACPOError(
            f"fsdp={config.fsdp} shards over several processes, and here is one: start them with "
            "accelerate launch (recipes/accelerate), or leave fsdp out"
        )
    if config.process_index == 0:
        check_output_folder(str(recipe.output_dir))


@contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """What transformers, TRL and PEFT raise inside, as an error of ours that begins with `what`.

    With `TRANSFORMERS_VERBOSITY=debug` it is let through, traceback and all.
    """
    from safetensors import SafetensorError

    try:
        yield
    except ACPOError:
        raise
    except (
        *(ValueError, TypeError, AttributeError, KeyError, ImportError, OSError, RuntimeError),
        SafetensorError,
    ) as error:
        if logging.get_verbosity() <= logging.DEBUG:
            raise
        words = " ".join(str(error).split())
        raise ACPOError(f"{what}: {type(error).__name__}: {words}") from error


def shape_of(recipe: Recipe, name: str) -> Any:
    """The configuration of a model, or of what is below an adapter."""
    from transformers import AutoConfig

    trusted, base = recipe.config.trust_remote_code, adapter_base(name)
    revision = recipe.model.model_revision if base is None else None
    given = dict(recipe.config.model_init_kwargs or {})  # type: ignore[arg-type]
    of_loading = (*BEFORE_OPTIONS, "trust_remote_code")
    own = {key: value for key, value in given.items() if key not in of_loading}
    with in_one_line(f"model {base or name!r}: its config.json cannot be read"):
        config, _ = AutoConfig.from_pretrained(
            base or name,
            trust_remote_code=trusted,
            revision=revision or "main",
            return_unused_kwargs=True,
            **own,
        )
        return config


def empty_model(recipe: Recipe, name: str, attention: str | None = None) -> Any:
    """A model without its weights."""
    import torch
    from transformers import AutoModelForCausalLM

    shape, trusted = shape_of(recipe, name), recipe.config.trust_remote_code
    wanted: dict[str, Any] = {"attn_implementation": attention} if attention else {}
    told = f" with attn_implementation={attention}" if attention else ""
    wrong = f"model {recipe.model_name!r}: no causal LM can be built of its config.json{told}"
    with in_one_line(wrong), torch.device("meta"):
        return AutoModelForCausalLM.from_config(shape, trust_remote_code=trusted, **wanted)


def check_model(recipe: Recipe, name: str, tokenizer: Any, *, elsewhere: bool = False) -> None:
    """Raise for a model that cannot be trained, or what does not fit it; no weights are loaded."""
    from acpo.engines.trl.refusals import refuse_model

    rows = getattr(shape_of(recipe, name).get_text_config(), "vocab_size", None)
    for token in ("pad_token", "eos_token"):
        number = getattr(tokenizer, f"{token}_id")
        if rows is not None and number is not None and number >= rows:
            raise ACPOError(
                f"model {recipe.model_name!r}: {token} {getattr(tokenizer, token)!r} is number "
                f"{number}, outside its vocabulary of {rows}; choose a token that is in it, or "
                "resize the embedding, and save both"
            )
    if recipe.model.use_peft and adapter_base(name) is not None:
        raise ACPOError(
            f"use_peft=True and model_name_or_path={recipe.model_name!r}, which is an adapter "
            "already: leave use_peft out to train it on, or name its base model"
        )
    empty = empty_model(recipe, name, None if elsewhere else recipe.model.attn_implementation)
    refuse_model(_adapted(recipe, empty) if recipe.model.use_peft else empty, recipe.config)


def _adapted(recipe: Recipe, empty: Any) -> Any:
    import torch
    from peft import get_peft_model
    from trl import get_peft_config

    model = recipe.model
    names = [f".{name}" for name, _ in (*empty.named_modules(), *empty.named_parameters())]
    for option in ("lora_target_modules", "lora_target_parameters", "lora_modules_to_save"):
        value = getattr(model, option)
        for part in value if isinstance(value, list) else ():  # PEFT passes over those it lacks
            if not any(name.endswith(f".{part}") for name in names):
                linear = (n for n, m in empty.named_modules() if isinstance(m, torch.nn.Linear))
                known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
                raise ACPOError(
                    f"{option}={value}: {part!r} is no part of {recipe.model_name!r}, which has "
                    f"{known}"
                )
    with in_one_line(f"use_peft=True on {recipe.model_name!r}"), torch.device("meta"):
        return get_peft_model(empty, get_peft_config(model))  # type: ignore[arg-type]


def check_lengths(recipe: Recipe, data: TrainingData, tokenizer: Any, name: str) -> None:
    """Raise where a prompt leaves no room, no completion holds an answer, or no pack a sequence."""
    from acpo.engines.trl.safety import prompt_room

    config: Any = recipe.config
    sets = {"prompt": data.train, "held-out prompt": data.held_out}
    lengths = {
        what: prompt_lengths(rows["prompt"][:MOST_MEASURED], tokenizer, data.template_options)
        for what, rows in sets.items()
        if rows is not None
    }
    for what, counts in lengths.items():
        require_tokens(counts, what, recipe.model_name)
    golds = [gold for _, gold in gold_answers(data) if gold]
    if golds and recipe.task.reward_funcs is None:
        counts = [len(ids) for ids in tokenizer(golds, add_special_tokens=False)["input_ids"]]
        if min(counts) > config.max_completion_length:
            shortest = golds[counts.index(min(counts))]
            raise ACPOError(
                f"max_completion_length={config.max_completion_length} cannot hold an answer: the "
                f"shortest gold, {shortest[:80]!r}, has {min(counts)} tokens"
            )
    longest, what = max((max(counts), what) for what, counts in lengths.items())
    room = prompt_room(shape_of(recipe, name), config)
    if room is not None and longest > room:
        raise ACPOError(
            f"the longest {what} has {longest} tokens, but max_completion_length="
            f"{config.max_completion_length} leaves room for {room} in the model's context; "
            + (f"set max_prompt_tokens: {room}" if room > 0 else "lower max_completion_length")
        )
    whole = longest + config.max_completion_length
    if config.max_tokens_per_pack is not None and config.max_tokens_per_pack < whole:
        raise ACPOError(
            f"max_tokens_per_pack={config.max_tokens_per_pack} cannot hold a sequence: prompt and "
            f"completion may have {whole} tokens; raise it, or leave it out"
        )


def check_readable(recipe: Recipe, data: TrainingData, tokenizer: Any) -> None:
    """Raise where the tokenizer has no token for over a tenth of the prompts; note any less."""
    prompts = data.train["prompt"][:LOOKED_AT]
    texts = [as_text(prompt, tokenizer, data.template_options) for prompt in prompts]
    share, said = unread(texts, tokenizer)
    if share > LOST:
        raise ACPOError(
            f"model {recipe.model_name!r} cannot read the prompts: its tokenizer makes {said}; "
            "name a model that reads such text, or change task or template to what it reads"
        )
    if share:
        data.notes.append(
            f"{share:.2%} of the prompts is lost to the tokenizer, which makes {said}"
        )


def check_evaluation(recipe: Recipe, data: TrainingData) -> None:
    """Raise for evaluation in split groups, or for a best checkpoint that none would choose.

    Where nothing is held out, evaluation is turned off, and a note says so.
    """
    config: Any = recipe.config
    group = config.num_generations_eval or config.num_generations
    if data.held_out is None:
        if config.eval_strategy != "no" or config.eval_on_start:
            data.notes.append("eval_strategy is off: held_out is 0, nothing to evaluate on")
        config.eval_strategy, config.eval_on_start = "no", False
    elif config.per_device_eval_batch_size * config.world_size % group:
        raise ACPOError(
            f"per_device_eval_batch_size={config.per_device_eval_batch_size} on "
            f"{config.world_size} process(es) is not a multiple of num_generations_eval={group}, "
            "so held-out problems would be split; make it one"
        )
    metric, never = config.metric_for_best_model, config.eval_strategy == "no"
    for name, values in CHOOSING.items():
        value = getattr(config, name)
        value = getattr(value, "value", value)
        if value in values and (metric is None or never):
            raise ACPOError(
                f"{name}={value} needs evaluations to choose by, and here are none; set held_out, "
                "eval_strategy and metric_for_best_model (as in eval_reward), or leave it out"
            )


def check_optimizer(recipe: Recipe, name: str, updates: int, elsewhere: bool) -> None:
    """Raise for an optimizer or a schedule that training could not build; it is built for nothing.

    An optimizer that some `elsewhere` is to build may need what this machine lacks.
    """
    import torch
    from transformers import Trainer, get_scheduler

    config: Any = recipe.config
    optimizer: Any = torch.optim.SGD([torch.zeros(2, 2)], lr=config.learning_rate)
    if not elsewhere:
        with in_one_line(f"optim={config.optim.value}, optim_args={config.optim_args}"):
            kind, options = Trainer.get_optimizer_cls_and_kwargs(config, empty_model(recipe, name))
            parameters = options.pop("params", optimizer.param_groups[0]["params"])
            optimizer = kind(parameters, **options)
    kind, warmup = config.lr_scheduler_type.value, config.get_warmup_steps(updates)
    with in_one_line(f"lr_scheduler_type={kind}, lr_scheduler_kwargs={config.lr_scheduler_kwargs}"):
        get_scheduler(kind, optimizer, warmup, updates, config.lr_scheduler_kwargs)
    if warmup and optimizer.param_groups[0]["lr"] == config.learning_rate != 0:
        raise ACPOError(
            f"warmup_steps={config.warmup_steps} has no effect with lr_scheduler_type={kind}; use "
            "constant_with_warmup or another that warms up, or leave it out"
        )


def check_reward_weights(weights: list[float] | None, data: TrainingData) -> None:
    """Raise unless there is a weight for every reward function, or none at all."""
    if weights is not None and len(weights) != len(data.rewards):
        raise ACPOError(
            f"reward_weights={weights} has {len(weights)} number(s) for {len(data.rewards)} reward "
            "function(s); give one each, or leave it out"
        )


def gold_answers(data: TrainingData) -> list[tuple[dict[str, Any], str | None]]:
    """The first training rows, each with a completion that is right, where one is known."""
    rows = data.train.select(range(min(GOLD_SAMPLE, len(data.train)))).to_list()
    return [
        (row, gold_completion(data.task, json.loads(row[ROW]) if ROW in row else row))
        for row in rows
    ]


def check_finite(name: str) -> None:
    """Raise for a weight that is not a number, in the files of a folder, one tensor at a time."""
    from safetensors import safe_open

    for file in sorted(Path(name).glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118
                value = tensors.get_tensor(key)
                if value.is_floating_point() and not value.isfinite().all():
                    raise ACPOError(f"{file}: {key} has values that are not finite; it is damaged")
