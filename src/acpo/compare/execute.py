"""One run of a study in this process: a recipe in, `result.json` out.

A launcher starts it as `LAUNCHER -m acpo.compare.execute FOLDER THREADS`.
"""

import dataclasses
import gc
import hashlib
import json
import os
import platform
import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from acpo.compare.plan import START, SWEEP, StudyRun
from acpo.compare.store import RESULT, STEPS, pack_verdicts
from acpo.errors import ACPOError, NonFiniteError
from acpo.jsonl import read_json
from acpo.linefile import write_whole
from acpo.train.accuracy import Sample, question

CURVES = {
    "entropy": "entropy",
    "length": "completions/mean_length",
    "truncated": "completions/clipped_ratio",
    "reversed": "reversed",
    "aligned": "aligned",
    "delta": "delta",
    "positive_share": "update/positive_share",
    "saturated": "saturated",
    "score_variation": "score_variation",
    "ratio_max": "ratio_max",
    "grad_norm": "grad_norm",
    "silent_groups": "frac_reward_zero_std",
    "left_undone": "verify/left_undone",
}
"""What is kept of every log entry, and TRL's or our name for it."""

EXAMPLES, LONGEST = 4, 1000
"""Held-out completions that are kept as text, and how many letters of each."""

VERSIONS = ("torch", "transformers", "trl", "numpy")


def execute(run: StudyRun, folder: Path, *, threads: int, gpu_share: float = 1.0) -> dict[str, Any]:
    """Train and measure one run in its folder; returns what was written to its `result.json`.

    Of the GPU's memory this process may take `gpu_share`.
    """
    import torch
    import yaml

    release_memory()  # of a run before this one that broke
    torch.set_num_threads(threads)
    if gpu_share < 1 and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(gpu_share)
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / "recipe.yaml"
    write_whole(recipe, yaml.safe_dump(dict(run.recipe), sort_keys=False))
    began, cpu = time.perf_counter(), time.process_time()
    outcome: dict[str, Any] = {}
    failed = None
    try:
        _train(run, recipe, folder, outcome)
    except NonFiniteError as error:
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
        write_whole(folder / RESULT, json.dumps(result, indent=1) + "\n")
    release_memory()
    return result


def release_memory() -> None:
    """Give back what a trainer, full of cycles, holds, and what was compiled for its model."""
    import torch

    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _train(run: StudyRun, recipe: Path, folder: Path, outcome: dict[str, Any]) -> None:
    from acpo.train.launch import prepare
    from acpo.train.recipe import read_recipe

    def choose(data: Any) -> Any:
        kept = own_problems(len(data.train), run.share, sweep=run.phase == SWEEP)
        return data if kept is None else dataclasses.replace(data, train=data.train.select(kept))

    prepared = prepare(read_recipe(recipe, ["--output_dir", str(folder)]), choose)
    trainer, probe = prepared.trainer, prepared.probe
    if probe is not None:  # start runs measure the model as it comes, once per seed
        trainer.remove_callback(probe)
    outcome["start_model"] = fingerprint(trainer.policy)
    outcome["problems"] = problems_hash(trainer.train_dataset)
    if probe is not None:
        outcome["held_out"] = problems_hash(probe.held_out)
    outcome["parameters"] = trainer.policy.num_parameters()
    if run.phase != START:
        resumes = any(folder.glob("checkpoint-*"))
        steps = StepLengths(folder / STEPS, run.step_lengths, resumes=resumes)
        if not trainer.is_fsdp_enabled:  # a process there has a part of the weights only
            trainer.add_callback(steps)
        try:
            trainer.train(resume_from_checkpoint=resumes or None)
        finally:  # of a run that failed, too
            state = trainer.state
            outcome["curve"] = curve(state.log_history, trainer.reward_func_names[0])
            outcome["updates"] = state.global_step
            outcome["step_lengths"] = steps.lengths(state.global_step)
        outcome["tokens"] = int(state.num_input_tokens_seen)
        if not prepared.clock.first:  # else part of the time is not known any more
            outcome["train_seconds"] = round(prepared.clock.seconds, 2)
    if probe is not None:
        samples, prompts = probe.measure(), probe.held_out["prompt"]
        outcome["accuracy"] = measured(samples, prompts)
        outcome["examples"] = examples(samples, prompts)
    if probe is not None and run.pass_at:
        problems, trainer.num_generations_eval = run.pass_at
        probe.held_out = probe.held_out.select(range(min(problems, len(probe.held_out))))
        outcome["pass_at"] = measured(probe.measure(), probe.held_out["prompt"])
    if run.keeps_model:
        trainer.save_model(str(folder))


class StepLengths(TrainerCallback):
    """Measures how far every update moves the weights, and sets it where lengths are given.

    Adam's step keeps its direction and gets the norm asked for, so the learning rate cancels.
    """

    def __init__(self, path: Path, wanted: Sequence[float], *, resumes: bool) -> None:
        self.path, self.wanted = path, wanted
        if not resumes or not path.exists():
            path.write_text("")
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)  # nothing must join a torn line

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.state = state
        optimizer = getattr(kwargs["optimizer"], "optimizer", kwargs["optimizer"])
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def _before(self, optimizer: Any, *arguments: Any) -> None:
        groups = optimizer.param_groups
        self.weights = [p for group in groups for p in group["params"] if p.grad is not None]
        self.old = [p.detach().clone() for p in self.weights]

    def _after(self, optimizer: Any, *arguments: Any) -> None:
        import torch

        step, length = self.state.global_step, 0.0
        with torch.no_grad():
            if self.weights:  # none where the gradient was not finite and was dropped
                torch._foreach_sub_(self.old, self.weights)
                norms = torch.stack(torch._foreach_norm(self.old)).double()
                length = float(norms.square().sum().sqrt())
            if step < len(self.wanted) and length > 0:
                excess = 1 - self.wanted[step] / length
                torch._foreach_add_(self.weights, self.old, alpha=excess)
                length = self.wanted[step]
        del self.old, self.weights
        if self.state.is_world_process_zero:
            with self.path.open("a") as file:
                file.write(f"{step} {length:.6g}\n")

    def lengths(self, updates: int) -> list[float]:
        """Of all updates, those before an interruption included; none where one is not known."""
        lines = self.path.read_text().splitlines()
        found = dict(line.split() for line in lines if line.count(" ") == 1)
        known = [float(found[str(step)]) for step in range(updates) if str(step) in found]
        return known if len(known) == updates else []


def own_problems(count: int, share: float, *, sweep: bool) -> list[int] | None:
    """The training problems of a sweep or of a study; no problem is in both. None for all."""
    if not share:
        return None
    chosen = set(random.Random(0).sample(range(count), int(count * share)))
    return [index for index in range(count) if (index in chosen) == sweep]


def curve(history: Sequence[Mapping[str, Any]], reward: str) -> list[dict[str, Any]]:
    """The logged numbers a comparison needs, per log entry; one without a rollout has some."""
    rows = []
    for entry in history:
        row = {"step": entry["step"]}
        if f"rewards/{reward}/mean" in entry:
            row["accuracy"] = round(entry[f"rewards/{reward}/mean"], 5)
        for name, logged in CURVES.items():
            value = entry.get(logged)
            if value is not None:
                row[name] = float(f"{value:.5g}")
        if len(row) > 1:
            rows.append(row)
    return rows


def measured(samples: Sequence[Sample], prompts: Iterable[Any]) -> dict[str, Any]:
    """mean@k of held-out completions, problems weighed equally, and every verdict.

    Verdicts are in the order of `prompts`, not in that of the evaluation, which each seed shuffles.
    """
    groups: dict[str, list[bool]] = {question(prompt): [] for prompt in prompts}
    for sample in samples:
        groups[sample.prompt].append(bool(sample.correct))
    shares = [sum(group) / len(group) for group in groups.values() if group]
    if not shares:
        raise ACPOError("no held-out completion has a verdict: there is no accuracy to compare")
    return {
        "value": sum(shares) / len(shares),
        "problems": len(shares),
        "samples": len(samples),
        "correct": sum(sample.correct for sample in samples),
        "verdicts": pack_verdicts(groups.values()),
    }


def examples(samples: Sequence[Sample], prompts: Iterable[Any]) -> list[dict[str, Any]]:
    """How the first problems were answered, once each: what a number does not show, a text does."""
    first = {sample.prompt: sample for sample in reversed(samples)}
    asked = [question(prompt) for prompt in prompts][:EXAMPLES]
    return [
        {"ends": first[one].completion[-LONGEST:], "correct": bool(first[one].correct)}
        for one in asked
        if one in first
    ]


def fingerprint(model: Any) -> str:
    """A short hash of a model's weights: runs are paired only if they started from the same."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        values = parameter.detach().flatten()
        some = values[:: max(1, values.numel() // 65_536)]
        digest.update(f"{name} {list(parameter.shape)}".encode())
        digest.update(some.float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def problems_hash(problems: Any) -> str:
    """A short hash of what is asked and expected: a data file may change under its name."""
    digest = hashlib.sha256()
    for prompt, answer in zip(problems["prompt"], problems["answer"], strict=True):
        digest.update(json.dumps([prompt, answer]).encode())
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
    place, cpu_threads = Path(sys.argv[1]), int(sys.argv[2])
    execute(StudyRun(**read_json(place / "spec.json")), place, threads=cpu_threads)
