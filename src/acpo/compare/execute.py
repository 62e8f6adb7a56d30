"""One run of a study in this process: a recipe in, `result.json` out.

A launcher starts it as `LAUNCHER -m acpo.compare.execute FOLDER`.
"""

import dataclasses
import gc
import hashlib
import os
import platform
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from acpo.compare.plan import START, SWEEP, StudyRun
from acpo.compare.store import RESULT, write_json
from acpo.errors import ACPOError

CURVES = {
    "entropy": "entropy",
    "length": "completions/mean_length",
    "truncated": "completions/clipped_ratio",
    "reversed": "reversed",
    "aligned": "aligned",
    "delta": "delta",
    "positive_share": "update/positive_share",
    "saturated": "saturated",
    "ratio_max": "ratio_max",
    "grad_norm": "grad_norm",
    "silent_groups": "frac_reward_zero_std",
}
"""What is kept of every log entry, and TRL's or our name for it."""

VERSIONS = ("torch", "transformers", "trl", "numpy")


def execute(
    run: StudyRun, folder: Path, *, threads: int, model: str | None = None
) -> dict[str, Any]:
    """Train and measure one run; returns what was written to its `result.json`.

    Args:
        run: what to do.
        folder: the run's own.
        threads: CPU threads to use.
        model: the model, where it is not the recipe's.
    """
    import torch
    import yaml

    torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(dict(run.recipe), sort_keys=False), encoding="utf-8")
    began, cpu = time.perf_counter(), time.process_time()
    outcome: dict[str, Any] = {}
    failed = None
    try:
        _train(run, recipe, folder, model, outcome)
    except FloatingPointError as error:
        failed = str(error)
    except ACPOError as error:
        if "max_nonfinite_steps" not in str(error):
            raise
        failed = str(error)
    result = {
        "spec": run.spec(),
        "failed": failed,
        **outcome,
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(threads),
        "versions": {name: version(name) for name in VERSIONS},
    }
    if int(os.environ.get("RANK", "0")) == 0:
        write_json(folder / RESULT, result)
    gc.collect()  # a trainer is full of cycles, and the next run needs its memory
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return result


def _train(
    run: StudyRun, recipe: Path, folder: Path, model: str | None, outcome: dict[str, Any]
) -> None:
    from acpo.train.launch import prepare
    from acpo.train.recipe import read_recipe

    overrides = ["--output_dir", str(folder), *(["--model_name_or_path", model] if model else [])]

    def choose(data: Any) -> Any:
        kept = own_problems(len(data.train), run.share, sweep=run.phase == SWEEP)
        return data if kept is None else dataclasses.replace(data, train=data.train.select(kept))

    prepared = prepare(read_recipe(recipe, overrides), choose)
    trainer, probe = prepared.trainer, prepared.probe
    if probe is not None:  # start runs measure the model as it comes, once per seed
        trainer.remove_callback(probe)
    outcome["start_model"] = fingerprint(trainer.policy)
    outcome["parameters"] = trainer.policy.num_parameters()
    if run.phase != START:
        trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")) or None)
        outcome["curve"] = curve(trainer.state.log_history, trainer.reward_func_names[0])
        outcome["updates"] = trainer.state.global_step
        outcome["tokens"] = int(trainer.state.num_input_tokens_seen)
        outcome["train_seconds"] = round(prepared.clock.seconds, 2)
    if probe is not None:
        outcome["accuracy"] = measured(probe.measure())
    if run.keeps_model:
        trainer.save_model(str(folder))


def own_problems(count: int, share: float, *, sweep: bool) -> list[int] | None:
    """The training problems of a sweep or of a study; no problem is in both. None for all."""
    if not share:
        return None
    chosen = set(random.Random(0).sample(range(count), int(count * share)))
    return [index for index in range(count) if (index in chosen) == sweep]


def curve(history: Sequence[Mapping[str, Any]], reward: str) -> list[dict[str, Any]]:
    """The logged numbers a comparison needs, per log entry."""
    rows = []
    for entry in history:
        if f"rewards/{reward}/mean" not in entry:
            continue
        row = {"step": entry["step"], "accuracy": round(entry[f"rewards/{reward}/mean"], 5)}
        for name, logged in CURVES.items():
            value = entry.get(logged)
            if value is not None:
                row[name] = float(f"{value:.5g}")
        rows.append(row)
    return rows


def measured(samples: Sequence[Any]) -> dict[str, Any]:
    """mean@k of held-out completions, problems weighed equally."""
    groups: dict[str, list[bool]] = defaultdict(list)
    for sample in samples:
        groups[sample.prompt].append(bool(sample.correct))
    shares = [sum(group) / len(group) for group in groups.values()]
    return {
        "value": sum(shares) / len(shares),
        "problems": len(groups),
        "samples": len(samples),
        "correct": sum(sample.correct for sample in samples),
    }


def fingerprint(model: Any) -> str:
    """A short hash of a model's weights: runs are paired only if they started from the same."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        values = parameter.detach().flatten()
        some = values[:: max(1, values.numel() // 65_536)]
        digest.update(f"{name} {list(parameter.shape)}".encode())
        digest.update(some.float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def hardware(threads: int) -> dict[str, Any]:
    """What the run ran on."""
    import torch

    found: dict[str, Any] = {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": threads,
    }
    if torch.cuda.is_initialized():
        found["gpu"] = torch.cuda.get_device_name()
    return found


if __name__ == "__main__":
    import json

    import typer

    def main(
        folder: Path, threads: int = typer.Option(1), model: str | None = typer.Option(None)
    ) -> None:
        """Execute the run that `spec.json` in FOLDER describes."""
        spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
        execute(StudyRun(**spec), folder, threads=threads, model=model)

    typer.run(main)
