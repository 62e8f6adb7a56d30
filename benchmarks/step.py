"""Where the seconds of one RL step go: stock TRL and acpo, by rollout engine, on one GPU.

    python benchmarks/step.py --out results/step.json                    # CUDA, all engines
    python benchmarks/step.py --engines acpo-static --out results/step.json   # one, into that file
    python benchmarks/step.py --tiny --out /tmp/step.json                # CPU: does it run?

A step is one rollout of 64 prompts x 8 and the four optimizer steps that train on it, as
`trainer.train()` runs them: two to warm up, then the mean of four. The model has Qwen2.5-0.5B's
shape and random weights, float32 under bfloat16 autocast. Every engine runs in its own process.

A random model neither stops nor answers. So lengths are imposed, the same for all engines: the n-th
rollout's completions end after log-normal numbers of tokens (median 150, sigma 0.6, cut at 400).
`generate` is made to say the end token there by a logits processor that writes one column; in the
other engines that is each request's own limit of new tokens, and no token ends it before. And the
reward appends an answer to each completion's text, right with the prompt's own chance (0 or 1 for 3
prompts in 8, which makes their groups silent, 1/2 for the others), and has acpo's verification
workers judge it; none can be judged without algebra.

Parts are exclusive and end with a synchronisation of the device: sampling (the tokens), rewards
(decoded texts to verdicts), scoring (the rest of the rollout: tokenizing, old log-probabilities,
advantages), update (forward and backward passes), optimizer (step and clipping), idle (the rest).
What Python's garbage collector took of each is told beside them.
"""

import argparse
import functools
import gc
import inspect
import json
import random
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from environment import environment
from measuring import clock, word_tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from transformers.generation import LogitsProcessor, LogitsProcessorList

FULL: dict[str, Any] = {
    "shape": {
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
    },
    "prompts": 64,
    "group": 8,
    "updates": 4,
    "prompt": (60, 140),
    "median": 150,
    "cap": 400,
    "micro_batch": 16,
    "warm_up": 2,
    "steps": 6,
}
TINY: dict[str, Any] = {
    "shape": {
        "vocab_size": 199,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    },
    "prompts": 4,
    "group": 4,
    "updates": 2,
    "prompt": (3, 6),
    "median": 8,
    "cap": 24,
    "micro_batch": 4,
    "warm_up": 1,
    "steps": 2,
}
PARTS = ("sampling", "scoring", "rewards", "update", "optimizer", "idle")
ENGINES: dict[str, dict[str, Any]] = {
    "trl-generate": {},
    "trl-continuous": {"use_transformers_continuous_batching": True},
    "trl-vllm": {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3},
    "acpo-generate": {},
    "acpo-continuous": {"use_transformers_continuous_batching": True},
    "acpo-vllm": {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3},
    "acpo-static": {"sampler": "static"},
}
SILENT = 3 / 8


class Clock(TrainerCallback):
    """Exclusive seconds of each part between the first and the last update of the measured step."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.parts = dict.fromkeys(PARTS, 0.0)
        self.collector = dict.fromkeys(PARTS, 0.0)
        self.counting = False
        self._open: list[str] = []
        self._since = 0.0
        self.seconds = 0.0
        self.updates: list[float] = []

    def _turn(self) -> None:
        """Give the time since the last turn to the innermost open part."""
        now = clock()
        if self.counting:
            self.parts[self._open[-1] if self._open else "idle"] += now - self._since
        self._since = now

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.perf_counter()
        elif self.counting:
            part = self._open[-1] if self._open else "idle"
            self.collector[part] += time.perf_counter() - self._collecting

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._turn()
            self._open.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._turn()
                self._open.pop()

        return run

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._update_began = clock()
        if state.global_step == self.first:
            self._turn()
            self.counting, self._began = True, self._since
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.updates.append(clock() - self._update_began)
        if state.global_step == self.last:
            self._turn()
            self.seconds = self._since - self._began
            self.counting = False

    def on_train_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
    ) -> None:
        optimizer.step = self.timed("optimizer", optimizer.step)

    def watch(self, trainer: Any) -> None:
        for part, name in (
            ("update", "training_step"),
            ("scoring", "_generate_and_score_completions"),
            ("sampling", "_generate_single_turn"),
            ("rewards", "_calculate_rewards"),
        ):
            setattr(trainer, name, self.timed(part, getattr(trainer, name)))
        clip = trainer.accelerator.clip_grad_norm_
        trainer.accelerator.clip_grad_norm_ = self.timed("optimizer", clip)
        trainer.add_callback(self)
        gc.callbacks.append(self._collected)


class Lengths:
    """How long each completion of a rollout is to be, for whichever engine samples it."""

    def __init__(self, size: dict[str, Any], end: int) -> None:
        self.size, self.end, self.rollouts = size, end, 0
        self.now: list[int] = []

    def impose(self, trainer: Any) -> None:
        inner = trainer._generate_single_turn

        def turn(prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
            generator = torch.Generator().manual_seed(self.rollouts)
            noise = torch.randn(len(prompt_ids), generator=generator)
            drawn = self.size["median"] * (0.6 * noise).exp()
            self.now = drawn.round().long().clamp(1, self.size["cap"]).tolist()
            self.rollouts += 1
            return inner(prompt_ids, *args, **kwargs)

        trainer._generate_single_turn = turn
        self._in_generate(trainer.accelerator.unwrap_model(trainer.model))
        self._in_continuous_batching()
        self._in_the_static_sampler()
        if getattr(trainer, "use_vllm", False):
            self._in_vllm(trainer.vllm_generation.llm)

    def _in_generate(self, model: Any) -> None:
        inner = model.generate

        def generate(**inputs: Any) -> Any:
            start = inputs["input_ids"].shape[1]
            limits = torch.tensor(self.now, device=inputs["input_ids"].device)
            stop = _EndAt(limits, start, self.end)
            return inner(**inputs, logits_processor=LogitsProcessorList([stop]))

        model.generate = generate

    def _in_continuous_batching(self) -> None:
        from transformers.generation.continuous_batching import ContinuousBatchingManager as Manager

        inner = Manager.add_request

        def add_request(manager: Any, *args: Any, **kwargs: Any) -> Any:
            own = {"max_new_tokens": self.now.pop()}
            if "eos_token_id" in inspect.signature(inner).parameters:
                own["eos_token_id"] = -1
            return inner(manager, *args, **{**kwargs, **own})

        Manager.add_request = add_request

    def _in_the_static_sampler(self) -> None:
        from acpo.sampling import StaticSampler

        inner = StaticSampler.sample

        def sample(sampler: Any, prompts: Any, *, seed: Any) -> Any:
            sampler.eos = sampler.eos[:0]
            return inner(sampler, prompts, seed=seed, limits=self.now)

        StaticSampler.sample = sample

    def _in_vllm(self, llm: Any) -> None:
        inner = llm.generate

        def generate(prompts: Any, sampling_params: Any = None, **kwargs: Any) -> Any:
            each = []
            for limit in self.now[: len(prompts) * sampling_params.n : sampling_params.n]:
                each.append(sampling_params.clone())
                each[-1].max_tokens, each[-1].ignore_eos = limit, True
            return inner(prompts, sampling_params=each, **kwargs)

        llm.generate = generate


class _EndAt(LogitsProcessor):
    """The end token where it is due, and nowhere else."""

    def __init__(self, limits: torch.Tensor, start: int, end: int) -> None:
        self.limits, self.start, self.end = limits, start, end

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        due = input_ids.shape[1] - self.start + 1 >= self.limits
        scores[:, self.end] = torch.where(due, 1e9, -1e9)
        return scores


def verified(
    completions: list[str], answer: list[int], chance: list[float], **_: Any
) -> list[float | None]:
    """Verdicts of acpo's workers on the completions, each with an answer put behind it."""
    from acpo.verify import math

    pairs = []
    for text, gold, right in zip(completions, answer, chance, strict=True):
        wrong = random.Random(zlib.crc32(text.encode())).random() >= right
        said = f"2\\sqrt{{3}}+{gold + wrong}"
        pairs.append((f"{text}\n\\boxed{{{said}}}", f"{gold}+\\sqrt{{12}}"))
    return [verdict.reward() for verdict in math.shared_pool().verify_all(pairs)]


def problems(size: dict[str, Any]) -> Dataset:
    """Prompts for every rollout and their answers."""
    numbers = random.Random(0)
    rows = []
    for index in range(size["steps"] * size["prompts"]):
        words = (
            numbers.randrange(2, size["shape"]["vocab_size"])
            for _ in range(numbers.randint(*size["prompt"]))
        )
        chance = float(index % 2) if index % 8 < 8 * SILENT else 0.5
        prompt = " ".join(f"w{word}" for word in words)
        rows.append({"prompt": prompt, "answer": 7 * index + 3, "chance": chance})
    return Dataset.from_list(rows)


def make_trainer(engine: str, size: dict[str, Any], folder: str, args: Any) -> Any:
    cuda = torch.cuda.is_available()
    torch.manual_seed(0)
    config = Qwen2Config(
        **size["shape"],
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    with torch.device("cuda" if cuda else "cpu"):
        model = Qwen2ForCausalLM(config)
    completions = size["prompts"] * size["group"]
    per_update = completions // size["updates"]
    ours = engine.startswith("acpo")
    batch = per_update if ours else args.micro_batch or size["micro_batch"]
    common = {
        "output_dir": folder,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "learning_rate": 1e-6,
        "num_generations": size["group"],
        "max_completion_length": size["cap"],
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": per_update // batch,
        "generation_batch_size": completions,
        "max_steps": size["steps"] * size["updates"],
        "gradient_checkpointing": args.checkpointing,
        "use_cpu": not cuda,
        "bf16": cuda,
        **ENGINES[engine],
    }
    if ours:
        from acpo import ACPOConfig, ACPOTrainer

        trainer, options = ACPOTrainer, ACPOConfig(method="sapo", **common)
    else:
        from trl import GRPOConfig, GRPOTrainer

        trainer, options = GRPOTrainer, GRPOConfig(loss_type="sapo", **common)
    tokenizer = word_tokenizer(size["shape"]["vocab_size"])
    if common.get("use_vllm"):  # which loads it from a folder
        for part in (model, tokenizer):
            part.save_pretrained(f"{folder}/model")
        model.name_or_path = model.config._name_or_path = f"{folder}/model"
        from trl.generation import vllm_generation

        vllm_generation.LLM = functools.partial(vllm_generation.LLM, **args.engine)
    return trainer(model, verified, options, problems(size), processing_class=tokenizer)


def measure(engine: str, size: dict[str, Any], args: Any) -> dict[str, Any]:
    """One engine: steps to warm up, then those that count."""
    if "vllm" in engine and find_spec("vllm") is None:
        return {"engine": engine, "skipped": "vllm is not installed"}
    clock = Clock(size["warm_up"] * size["updates"], size["steps"] * size["updates"])
    lengths = Lengths(size, end=1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(engine, size, folder, args)
        lengths.impose(trainer)
        clock.watch(trainer)
        began = time.perf_counter()
        trainer.train()
    logs = [log for log in trainer.state.log_history if "completions/mean_length" in log]
    cuda, counted = torch.cuda.is_available(), size["steps"] - size["warm_up"]
    return {
        "engine": engine,
        **({"vllm_options": args.engine} if "vllm" in engine else {}),
        "seconds": round(clock.seconds / counted, 3),
        "parts": {name: round(value / counted, 3) for name, value in clock.parts.items()},
        "collector_seconds": {
            name: round(value / counted, 3) for name, value in clock.collector.items()
        },
        "each_update": [round(value, 3) for value in clock.updates],
        "with_warm_up_seconds": round(time.perf_counter() - began, 1),
        "mean_length": logs[-1]["completions/mean_length"] if logs else None,
        "reward": logs[-1].get("reward") if logs else None,
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if cuda else None,
        "environment": environment("torch", "transformers", "trl", "accelerate", "vllm"),
    }


def in_a_process(engine: str, args: Any) -> dict[str, Any]:
    """`measure` where a crash or a full memory is the engine's own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        command = [sys.executable, __file__, "--one", engine, "--out", str(out)]
        command += ["--tiny"] if args.tiny else []
        command += ["--engine", json.dumps(args.engine)]
        command += ["--checkpointing"] if args.checkpointing else []
        command += ["--micro-batch", str(args.micro_batch)] if args.micro_batch else []
        try:
            subprocess.run(command, check=False, timeout=args.limit, stdout=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return {"engine": engine, "error": f"took more than {args.limit} s"}
        if not out.exists():
            return {"engine": engine, "error": "the process died"}
        row = dict(json.loads(out.read_text(encoding="utf-8")))
        if "environment" in row:
            row["environment"]["command"] = environment()["command"]
        return row


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'':16}" + "".join(f"{name:>11}" for name in ("total", *PARTS))]
    for row in rows:
        if "parts" not in row:
            said = row.get("skipped") or row["error"].strip().splitlines()[-1]
            lines.append(f"{row['engine']:16}  {said}")
            continue
        values = (row["seconds"], *(row["parts"][name] for name in PARTS))
        lines.append(f"{row['engine']:16}" + "".join(f"{value:10.2f}s" for value in values))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/step.json"))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to see that it runs")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--micro-batch", type=int, help="TRL's completions per backward pass [16]")
    parser.add_argument(
        "--engine", type=json.loads, default={}, help="JSON: arguments to vllm.LLM beside TRL's"
    )
    parser.add_argument("--limit", type=int, default=240, help="seconds an engine may take")
    parser.add_argument("--one", choices=ENGINES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    size = TINY if args.tiny else FULL
    if args.one:
        try:
            row = measure(args.one, size, args)
        except Exception:
            row = {"engine": args.one, "error": traceback.format_exc()}
        args.out.write_text(json.dumps(row), encoding="utf-8")
        return
    record: dict[str, Any] = {"size": size, "rows": []}
    if args.out.exists():
        record = json.loads(args.out.read_text(encoding="utf-8"))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for engine in args.engines:
        row = in_a_process(engine, args)
        rows = {other["engine"]: other for other in record["rows"]} | {engine: row}
        record["rows"] = [rows[name] for name in ENGINES if name in rows]
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(table([row]), flush=True)
    print(table(record["rows"]))


if __name__ == "__main__":
    main()
