"""Which run a folder holds.

Checkpoints of two runs in one folder would be taken for one another: by step number the older run
is the newest. So what decides a run's weights is written beside them, and compared before the
first step.
"""

import functools
import inspect
import json
import re
from enum import Enum
from pathlib import Path
from typing import Any

import torch
import xxhash
from datasets import Dataset

from acpo.errors import ACPOError
from acpo.jsonl import read_if_json
from acpo.linefile import write_whole

RUN = "acpo_run.json"

DECISIVE = (
    *("method", "seed", "num_generations", "generation_batch_size", "num_iterations"),
    *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"),
    *("optim", "optim_args", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("max_grad_norm", "beta", "use_bias_correction_kl", "sync_ref_model"),
    *("ref_model_mixup_alpha", "ref_model_sync_steps", "entropy_coef"),
    *("off_policy_mask_threshold", "sparse_head", "scale_rewards", "reward_weights"),
    *("multi_objective_aggregation", "soft_overlong_cache", "soft_overlong_penalty"),
    *("mask_truncated_completions", "dynamic_sampling", "max_resample_times", "shuffle_dataset"),
    *("max_completion_length", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
    *("generation_kwargs", "chat_template_kwargs", "max_tool_calling_iterations"),
    *("bf16", "cast_lm_head_to_fp32", "disable_dropout", "optim_target_modules"),
    *("vllm_importance_sampling_correction", "vllm_importance_sampling_mode"),
    *("vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min"),
)
"""Options a run keeps to its end. Others say how it runs, how long, and what it writes."""

LENGTH = ("max_steps", "num_train_epochs")
"""Options that say how long a run is: resumed, it may be longer; begun anew, it leaves another
model."""

MIXED = "mixed_precision"

MOST_ROWS = 10_000
MOST_WEIGHTS = 64
"""Values of each parameter that are looked at."""

STREAM = "endless: "
"""How the description of a data set begins whose rows are the first of a stream."""

NO_MATTER = (
    *("base_model_name_or_path", "revision", "inference_mode", "auto_mapping"),
    *("peft_version", "runtime_config"),
)
"""What an adapter's configuration says beside how it changes the policy."""

WEIGHTS = ("model*.safetensors", "adapter_model*.safetensors", "pytorch_model*.bin")


def decisive(args: Any) -> dict[str, Any]:
    """What of a configuration decides a run's weights and its length, as a file gives it back."""
    found = {name: getattr(args, name) for name in DECISIVE}
    found["method_options"] = dict(args.objective.options)
    counted = args.max_steps > 0
    found["max_steps"] = args.max_steps if counted else None
    found["num_train_epochs"] = None if counted else args.num_train_epochs
    return json.loads(json.dumps(found, default=_plain))


def identity(trainer: Any) -> dict[str, Any]:
    """What decides a trainer's weights, for a file and for people to read."""
    args = trainer.args
    processes = trainer.accelerator.num_processes
    return {
        **decisive(args),
        MIXED: trainer.accelerator.mixed_precision,  # by the options or the launcher
        "completions_per_update": args.per_device_train_batch_size * processes,
        "updates_per_rollout": args.steps_per_generation * args.num_iterations,
        "processes": processes,
        "reward_funcs": [
            f"{name}{_source(function)}"
            for name, function in zip(trainer.reward_func_names, trainer.reward_funcs, strict=True)
        ],
        "train_dataset": _training_data(trainer),
        "chat_template": _template(trainer.chat_template or trainer._tokenizer.chat_template),
        "model": {"name": str(trainer.policy.config._name_or_path), "weights": _weights(trainer)},
        "dtype": sorted({str(p.dtype) for p in trainer.model.parameters() if p.requires_grad}),
        "peft": json.loads(json.dumps(_adapters(trainer.model), default=_plain)),
    }


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else str(value)


def _template(template: Any) -> str:
    return "checksum " + xxhash.xxh3_64_hexdigest(str(template).encode())[:8]


def _source(function: Any) -> str:
    """A checksum of the code of a reward function or its grader; nothing where there is none."""
    function = inspect.unwrap(getattr(function, "grader", function))
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    try:
        called = function if inspect.isroutine(function) else type(function)
        source = inspect.getsource(called)
    except (OSError, TypeError):
        return ""
    return f", checksum {xxhash.xxh3_64_hexdigest(source.encode())[:8]}"


def _adapters(model: Any) -> dict[str, Any]:
    """What decides a model's adapters, by name: options left at nothing are left out."""
    found = {}
    for name, config in getattr(model, "peft_config", {}).items():
        values = {key: value for key, value in config.to_dict().items() if key not in NO_MATTER}
        found[name] = {
            key: sorted(value) if isinstance(value, set) else value
            for key, value in values.items()
            if value
        }
    return found


def _training_data(trainer: Any) -> str | None:
    """Of a stream, which one and how it begins: how much of it was made says how long a run is."""
    dataset = trainer.train_dataset
    said = dataset.info.description if isinstance(dataset, Dataset) else ""
    if not said.startswith(STREAM):
        return described_data(dataset)
    first = trainer.args.generation_batch_size // trainer.num_generations
    return f"{said}; at first {described_data(dataset.select(range(first)))}"


def described_data(dataset: Any) -> str | None:
    """Rows of a data set and a checksum of them, at most `MOST_ROWS`, evenly spaced."""
    if not isinstance(dataset, Dataset):
        return None
    count = len(dataset)
    some = dataset.select(range(0, count, -(-count // MOST_ROWS) or 1))
    digest = xxhash.xxh3_128()
    for row in some.with_format(None):
        digest.update(json.dumps(row, sort_keys=True, default=_told).encode())
    return f"{count} rows, checksum {digest.hexdigest()[:8]}"


def _told(value: Any) -> str:
    """A value as text; of a picture or sound, made anew whenever it is read, what it is."""
    text = str(value)
    return type(value).__qualname__ if re.search(r"\bat 0x[0-9a-f]+", text) else text


def _weights(trainer: Any) -> str | None:
    """A checksum of a few values of every parameter; of adapters, of those of their base.

    Values are rounded to bfloat16: a model is the same in whichever precision it was loaded.
    """
    named = sorted(trainer.model.named_parameters())
    frozen = [(name, p) for name, p in named if not p.requires_grad]
    digest = xxhash.xxh3_128()
    for name, parameter in frozen or named:
        if parameter.is_meta:
            return None
        values = parameter.detach().flatten()
        some = values[:: max(1, values.numel() // MOST_WEIGHTS)].to("cpu", torch.bfloat16)
        digest.update(f"{name} {list(parameter.shape)}".encode())
        digest.update(some.contiguous().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:8]


def differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """How two runs differ, but for their length, one line each."""
    found = []
    # `bf16` is one of two ways to ask for a precision; `acpo doctor` knows no more than that.
    passed = (*LENGTH, "bf16") if MIXED in here else LENGTH
    for name in (name for name in here if name not in passed):
        a, b = there.get(name), here[name]
        if name == "model":  # a folder may have moved; its weights say what it is
            same = isinstance(a, dict) and a.get("weights") in (b["weights"], None)
            same = same or b["weights"] is None
            if not same:
                found.append(_difference(name, a, b))
        else:
            found += _differences(name, a, b)
    return found


def _other_length(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """How two runs differ in length, one line each; nothing where one does not say."""
    names = [name for name in LENGTH if name in there and name in here]
    return [line for name in names for line in _differences(name, there[name], here[name])]


def _differences(name: str, a: Any, b: Any) -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted({*a, *b})
        return [x for key in keys for x in _differences(f"{name}.{key}", a.get(key), b.get(key))]
    return [] if a == b else [_difference(name, a, b)]


def _difference(name: str, a: Any, b: Any) -> str:
    return f"{name}: {json.dumps(a)} there, {json.dumps(b)} here"


def read(folder: Path, name: str = RUN) -> dict[str, Any] | None:
    """What a file of a folder says, its run's unless named; None if it does not say."""
    return read_if_json(folder / name)


def write(folder: Path, run: dict[str, Any]) -> None:
    """Say whose the folder is, at once or not at all."""
    write_whole(folder / RUN, json.dumps(run, indent=1) + "\n")


def refuse_other_run(checkpoint: Path, run: dict[str, Any]) -> None:
    """Raise unless a checkpoint was written by a run that would have gone on like this one."""
    there = read(checkpoint)
    if not (checkpoint / RUN).exists():  # of a whole checkpoint: it was never written
        raise ACPOError(
            f"resume_from_checkpoint={str(checkpoint)!r} holds weights alone (save_only_model=True)"
            ", and no run can go on from it; start one from them: pass the checkpoint as the "
            "model, with another output_dir"
        )
    differ = [f"{RUN} is missing or not readable"] if there is None else differences(there, run)
    if differ:
        raise ACPOError(
            f"resume_from_checkpoint={str(checkpoint)!r} is of another run:\n  "
            + "\n  ".join(differ)
            + "\nset these as they were; or start a run of its own from the checkpoint's weights: "
            "pass the checkpoint as the model, with another output_dir"
        )


def refuse_occupied(
    folder: Path, checkpoints: list[Path], run: dict[str, Any], *, goes_on: bool
) -> None:
    """Raise if a folder holds what another run left, or this one, which is not to be resumed.

    Args:
        folder: where the run is to write.
        checkpoints: those in the folder, oldest first, unless the run may leave them behind.
        run: what `identity` says of it, or some of it.
        goes_on: whether it goes on from a checkpoint in the folder, and so may replace the model
            of its shorter self.
    """
    there = read(folder)
    trained = any(path for pattern in WEIGHTS for path in folder.glob(pattern))
    differ = differences(there, run) if there is not None else []
    if there is not None and trained and not checkpoints and not goes_on:
        differ += _other_length(there, run)
    if not checkpoints and not (trained and differ):
        return
    holds = f"checkpoints up to {checkpoints[-1].name}" if checkpoints else "a trained model"
    words = f"output_dir={str(folder)!r} holds {holds} of another run"
    if there is not None and not differ:
        words = f"output_dir={str(folder)!r} holds {holds} of a run with these options"
    remedy = "choose another output_dir, or empty this one"
    if checkpoints and not differ:
        remedy += "; resume_from_checkpoint=True (--resume_from_checkpoint true) goes on from the "
        remedy += "newest"
    raise ACPOError("\n  ".join([words, *differ]) + ("\n" if differ else "; ") + remedy)
