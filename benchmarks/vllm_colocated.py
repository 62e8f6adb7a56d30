"""vLLM colocated with the trainer, measured part by part on one engine: a start takes a minute.

    python benchmarks/vllm_colocated.py --out results                   # every part, one GPU
    python benchmarks/vllm_colocated.py --parts gap:60 --out results    # one, at most 60 s of it
    PYTHONPATH=tests/fakevllm python benchmarks/vllm_colocated.py --tiny --out /tmp/vllm    # CPU

Parts: `rollout` (vllm_rollout.py), `gap` (vllm_gap.py), `evaluate` (vllm_evaluate.py), `train`
(vllm_train.py), and `mark`, which writes the file `--mark` names: parts whose seconds count have
ended, and another process may use the GPU. The recipe's trainer is built once, with TRL's own vLLM
code below it; options that are not named here are the recipe's. Each part writes
OUT/vllm_NAME.json as it goes, with what went wrong where something did; the next one runs all the
same. `--engine` is JSON of further arguments to `vllm.LLM`, which TRL does not pass on.
"""

import argparse
import functools
import importlib
import json
import os
import signal
import threading
import time
import traceback
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()

PARTS = "rollout,gap,evaluate,train"
TINY = [
    *("--max_completion_length", "8", "--per_device_train_batch_size", "8"),
    *("--generation_batch_size", "16", "--num_generations", "4", "--num_generations_eval", "1"),
    *("--per_device_eval_batch_size", "4", "--held_out", "4", "--use_cpu", "true"),
    *("--bf16", "false", "--dataloader_pin_memory", "false"),
]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="recipes/qwen2.5-0.5b-gsm8k.yaml")
    parser.add_argument("--parts", default=PARTS, help="NAME or NAME:SECONDS, with commas.")
    parser.add_argument("--out", type=Path, required=True, help="Folder of the JSON files.")
    parser.add_argument("--folder", default="runs/vllm", help="Of the training run.")
    parser.add_argument("--label", default="", help="Put behind the names of the JSON files.")
    parser.add_argument(
        "--engine", type=json.loads, default={}, help="JSON: arguments to vllm.LLM."
    )
    parser.add_argument("--mark", type=Path, help="File that the part `mark` writes.")
    parser.add_argument("--wait", type=Path, help="`train` waits until this file is there.")
    parser.add_argument("--resume", action="store_true", help="Go on from the last checkpoint.")
    parser.add_argument("--benchmarks", default="", help="`evaluate`: data files, with commas.")
    parser.add_argument("--prompts", type=int, default=64, help="`rollout` and `gap`: problems.")
    parser.add_argument("--batch", type=int, default=256, help="`evaluate`: sequences at a time.")
    parser.add_argument("--limit", type=int, help="`evaluate`: questions of each benchmark.")
    parser.add_argument("--server", help="`evaluate`: a server of the same model, up to /v1.")
    parser.add_argument(
        "--stop-after",
        type=float,
        help="`train`: ends at the first update so long after the start.",
    )
    parser.add_argument("--tiny", action="store_true", help="Sizes for a CPU: does it run?")
    args, args.overrides = parser.parse_known_args()
    return args


class Colocated:
    """A recipe's trainer with its vLLM engine.

    Attributes:
        run: what `acpo train` would run.
        trainer: its trainer.
        began: when the process did, on the performance counter.
        seconds: what building took: the whole process so far, and the engine alone.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        from trl.generation import vllm_generation

        from acpo.train.launch import prepare
        from acpo.train.recipe import read_recipe

        self.args, self.began, self.engine_seconds = args, BEGAN, 0.0
        inner = vllm_generation.LLM

        @functools.wraps(inner)
        def timed(*values: Any, **named: Any) -> Any:
            began = time.perf_counter()
            made = inner(*values, **{**named, **args.engine})
            self.engine_seconds = time.perf_counter() - began
            return made

        vllm_generation.LLM = timed
        given = ["--use_vllm", "true", "--vllm_mode", "colocate", "--sampler", "generate"]
        given += ["--output_dir", args.folder, *(TINY if args.tiny else []), *args.overrides]
        self.run = prepare(read_recipe(args.recipe, given))
        vllm_generation.LLM = inner
        self.trainer = self.run.trainer
        self.seconds = {
            "to_trainer": round(time.perf_counter() - BEGAN, 2),
            "engine": round(self.engine_seconds, 2),
        }

    @property
    def model(self) -> str:
        return str(self.run.recipe.model_name)

    @property
    def llm(self) -> Any:
        return self.trainer.vllm_generation.llm

    def settle(self) -> None:
        """Let go of the requests that a part which was stopped has left in the engine."""
        left = getattr(getattr(self.llm.llm_engine, "output_processor", None), "request_states", {})
        if left:
            self.llm.llm_engine.abort_request(list(left), internal=True)

    def inputs(self, seed: int = 0) -> list[dict[str, Any]]:
        """Rows of training problems, each repeated for its group."""
        data = self.run.data.train
        size = self.trainer.num_generations
        count = min(self.args.prompts, len(data)) if not self.args.tiny else 4
        rows = data.shuffle(seed=seed).select(range(count))
        return [row for row in rows for _ in range(size)]

    def tokens(self, inputs: list[dict[str, Any]]) -> list[list[int]]:
        return self.trainer._tokenize_prompts([row["prompt"] for row in inputs])[0]


def gib_in_use() -> float | None:
    """Memory of the device that is taken, by whomever."""
    import torch

    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return round((total - free) / 2**30, 2)


def limited(seconds: float | None, function: Any) -> dict[str, Any]:
    """What a part found; what it raised, or that it took too long. May be nested."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"took more than {seconds:g} s")

    began = time.perf_counter()
    outer = signal.signal(signal.SIGALRM, stop)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds or 0)
    try:
        return function()
    except Exception as error:
        traceback.print_exc()
        told = traceback.format_exc().splitlines()[-12:]
        return {"error": f"{type(error).__name__}: {error}", "traceback": told}
    finally:
        signal.signal(signal.SIGALRM, outer)
        spent = time.perf_counter() - began
        signal.setitimer(signal.ITIMER_REAL, max(left - spent, 1e-3) if left else 0)


def main() -> None:
    from environment import environment

    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    place = Colocated(args)
    print(f"trainer and engine after {place.seconds}", flush=True)
    for part in args.parts.split(","):
        name, _, seconds = part.partition(":")
        if name == "mark":
            args.mark.touch()
            continue
        while name == "train" and args.wait is not None and not args.wait.exists():
            time.sleep(0.2)
        began = time.perf_counter()
        measure = importlib.import_module(f"vllm_{name}").measure
        path = args.out / f"vllm_{name}{args.label}.json"
        record: dict[str, Any] = {
            "environment": environment("acpo", "torch", "transformers", "trl", "vllm"),
            "model": place.model,
            "method": place.trainer.args.method,
            "engine": {"options": args.engine, "seconds": place.seconds},
        }
        save = functools.partial(write, path, record)
        work = functools.partial(measure, place, save)
        found = limited(float(seconds) if seconds else None, work)
        place.settle()
        save({**found, "part_seconds": round(time.perf_counter() - began, 1)})
        print(f"{name}: {found.get('error', 'done')} ({record['part_seconds']} s)", flush=True)
    leave = threading.Timer(10, os._exit, (0,))  # vLLM's threads may hold the interpreter
    leave.daemon = True
    leave.start()


def write(path: Path, record: dict[str, Any], found: dict[str, Any]) -> None:
    """Add what was found to the record, and put the whole on disk."""
    record.update(found)
    path.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
