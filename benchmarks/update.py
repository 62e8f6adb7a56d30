"""The update phase side by side with stock TRL: same model, same rollouts, generation excluded.

    python benchmarks/update.py --out results/update.json           # CUDA, about five minutes
    python benchmarks/update.py --tiny --out /tmp/update.json       # CPU, seconds: does it run?
    python benchmarks/update.py --without-trl --variants paper --prompt 1 --out FILE

The last bounds from above what packs could gain that hold a group's prompt once.

One update is the forward and backward passes of one optimizer step (no optimizer, no rollout):
`GRPOTrainer` with loss_type="sapo" over its micro-batches, `ACPOTrainer` with method="sapo" over
its packs. Old log-probabilities are part of the rollout, as with several updates per rollout.
Useful tokens are the prompt and completion tokens of all sequences, padding not counted.
"""

import argparse
import json
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from environment import environment
from measuring import cosine, release, timed, word_tokenizer
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from acpo import ACPOConfig, ACPOTrainer

FULL = {
    "shape": {
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 8192,
    },
    "completions": 128,
    "median": 665,
    "cap": 4096,
    "prompt": 128,
    "budget": 32_768,
}
TINY = {
    "shape": {
        "vocab_size": 199,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
    },
    "completions": 16,
    "median": 12,
    "cap": 48,
    "prompt": 4,
    "budget": 256,
}
GROUP = 8
PACKAGES = ("torch", "triton", "transformers", "trl", "accelerate")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
VARIANTS = {
    "paper": {"lengths": "lognormal", "silent": 0.4},
    "all informative": {"lengths": "lognormal", "silent": 0.0},
    "equal lengths": {"lengths": "equal", "silent": 0.0},
}


def make_rollout(size: dict[str, Any], lengths: str, silent: float) -> dict[str, Any]:
    """Random tokens in completions of the given lengths; whole groups without advantage."""
    generator = torch.Generator().manual_seed(0)
    count, cap = size["completions"], size["cap"]
    drawn = torch.full((count,), float(size["median"]))
    if lengths == "lognormal":
        drawn = drawn * (0.7 * torch.randn(count, generator=generator)).exp()
    drawn = drawn.round().long().clamp(1, cap)
    vocab = size["shape"]["vocab_size"]
    width = int(drawn.max())
    advantages = torch.randn(count // GROUP, GROUP, generator=generator)
    advantages = (advantages - advantages.mean(1, keepdim=True)) / advantages.std(1, keepdim=True)
    advantages[: round(silent * len(advantages))] = 0.0
    shuffled = torch.randperm(count, generator=generator)
    rollout = {
        "prompt_ids": torch.randint(2, vocab, (count, size["prompt"]), generator=generator),
        "prompt_mask": torch.ones(count, size["prompt"], dtype=torch.long),
        "completion_ids": torch.randint(2, vocab, (count, width), generator=generator),
        "completion_mask": (torch.arange(width) < drawn[:, None]).long(),
        "advantages": advantages.flatten()[shuffled],
    }
    rollout = {name: value.to(DEVICE) for name, value in rollout.items()}
    return {**rollout, "num_items_in_batch": rollout["completion_mask"].sum()}


def make_model(size: dict[str, Any], dtype: torch.dtype) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(**size["shape"], tie_word_embeddings=True, attn_implementation="sdpa")
    with torch.device(DEVICE):
        return Qwen3ForCausalLM(config).to(dtype)


def make_trainer(
    trainer: Any, config: Any, model: Any, folder: str, size: dict[str, Any], **options: Any
) -> Any:
    """A trainer ready to step, without a rollout of its own."""
    given = {
        "output_dir": folder,
        "report_to": [],
        "num_generations": GROUP,
        "max_completion_length": size["cap"],
        "use_cpu": not torch.cuda.is_available(),
        "bf16": torch.cuda.is_available(),
        **options,
    }
    built = trainer(
        model,
        lambda completions, **_: [0.0] * len(completions),
        config(**given),
        Dataset.from_dict({"prompt": ["w3 w4"] * size["completions"]}),
        processing_class=word_tokenizer(64),
    )
    built.model_wrapped = built.accelerator.prepare_model(built.model)
    built.model_wrapped.train()
    if options["gradient_checkpointing"]:
        built.model.gradient_checkpointing_enable()
    return built


def stock_update(trainer: Any, rollout: dict[str, Any], batch: int) -> None:
    """The micro-batches of one optimizer step, as TRL's loop would run them."""
    count = rollout["advantages"].shape[0]
    trainer.current_gradient_accumulation_steps = count // batch
    for start in range(0, count, batch):
        part = {
            name: value[start : start + batch] if value.dim() else value
            for name, value in rollout.items()
        }
        trainer._prepare_inputs = lambda _, part=part: part
        trainer.training_step(trainer.model_wrapped, {}, None)


def our_update(trainer: Any, rollout: dict[str, Any]) -> None:
    trainer._prepare_inputs = lambda _: rollout
    trainer.training_step(trainer.model_wrapped, {}, None)


def measure(
    update: Any, model: Any, *, repeats: int, warm_up: bool
) -> tuple[dict[str, Any], Tensor]:
    """Median time, peak memory and gradient of an update."""
    if warm_up:
        update()
    measured = timed(update, repeats=repeats, prepare=lambda: model.zero_grad(set_to_none=True))
    gradient = torch.cat([p.grad.flatten().float() for p in model.parameters()]).cpu()
    model.zero_grad(set_to_none=True)
    return measured, gradient


def add_old_logp(trainer: Any, rollout: dict[str, Any]) -> dict[str, Any]:
    """Log-probabilities of a policy a little behind the current one."""
    ids = torch.cat([rollout["prompt_ids"], rollout["completion_ids"]], 1)
    attended = torch.cat([rollout["prompt_mask"], rollout["completion_mask"]], 1)
    width = rollout["completion_ids"].shape[1]
    with torch.no_grad():
        logp = trainer._get_per_token_logps_and_entropies(trainer.model, ids, attended, width)[0]
    generator = torch.Generator().manual_seed(1)
    noise = 0.05 * torch.randn(logp.shape, generator=generator).to(logp.device)
    return {**rollout, "old_per_token_logps": (logp + noise) * rollout["completion_mask"]}


def run_ours(
    rollout: dict[str, Any], checkpointing: bool, size: dict[str, Any], args: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Any], Tensor]:
    """Our update: the rollout with old log-probabilities, the measurements, the gradient."""
    model = make_model(size, getattr(torch, args.dtype))
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            ACPOTrainer,
            ACPOConfig,
            model,
            folder,
            size,
            method="sapo",
            per_device_train_batch_size=size["completions"],
            max_tokens_per_pack=args.budget or size["budget"],
            logits_bytes=args.logits_bytes,
            gradient_checkpointing=checkpointing,
            **({"compile_layers": False} if args.eager else {}),
        )
        rollout = add_old_logp(trainer, rollout)
        began = time.perf_counter()
        our_update(trainer, rollout)
        first = time.perf_counter() - began
        graphs = getattr(getattr(trainer.packed, "compiled", None), "graphs", None)
        measured, gradient = measure(
            lambda: our_update(trainer, rollout), model, repeats=args.repeats, warm_up=True
        )
        if graphs is not None:
            measured["compiled_graphs"] = [graphs, trainer.packed.compiled.graphs]
    parameters = sum(p.numel() for p in model.parameters())
    measured |= {"layout": trainer.packed.attention.layout, "parameters": parameters}
    return rollout, measured | {"first_update_seconds": first}, gradient


def run_stock(
    rollout: dict[str, Any],
    checkpointing: bool,
    size: dict[str, Any],
    args: argparse.Namespace,
    *,
    thorough: bool,
) -> tuple[dict[str, Any], Tensor]:
    """TRL's update; if `thorough`, repeated, and once more with larger micro-batches."""
    model = make_model(size, getattr(torch, args.dtype))
    batch = args.stock_batch
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            GRPOTrainer,
            GRPOConfig,
            model,
            folder,
            size,
            loss_type="sapo",
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=size["completions"] // batch,
            gradient_checkpointing=checkpointing,
        )
        warm_up = {k: v[:batch] if v.dim() else v for k, v in rollout.items()}
        stock_update(trainer, warm_up, batch)
        repeats = args.repeats if thorough else 1
        measured, gradient = measure(
            lambda: stock_update(trainer, rollout, batch), model, repeats=repeats, warm_up=False
        )
        measured["micro_batch"] = batch
        if thorough:
            larger, other = measure(
                lambda: stock_update(trainer, rollout, 4 * batch), model, repeats=1, warm_up=False
            )
            larger |= {"micro_batch": 4 * batch, "cosine": cosine(other, gradient)}
            measured["larger_micro_batch"] = larger
    return measured, gradient


def run_variant(
    name: str, checkpointing: bool, size: dict[str, Any], args: argparse.Namespace
) -> dict[str, Any]:
    """Ours and TRL's on one kind of rollout."""
    rollout = make_rollout(size, **VARIANTS[name])
    rollout, ours, gradient = run_ours(rollout, checkpointing, size, args)
    release()
    if args.without_trl:
        return {"variant": name, "gradient_checkpointing": checkpointing, "acpo": ours}
    thorough = name == "paper" and checkpointing
    stock, reference = run_stock(rollout, checkpointing, size, args, thorough=thorough)
    parameters = ours["parameters"]
    return {
        "variant": name,
        "gradient_checkpointing": checkpointing,
        "silent_rows": float((rollout["advantages"] == 0).float().mean()),
        "acpo": ours | speeds(rollout, ours["seconds"], parameters, trained_only=True),
        "trl": stock | speeds(rollout, stock["seconds"], parameters, trained_only=False),
        "speedup": stock["seconds"] / ours["seconds"],
        "gradient_cosine": cosine(gradient, reference),
    }


def speeds(
    rollout: dict[str, Any], seconds: float, parameters: int, *, trained_only: bool
) -> dict[str, Any]:
    """Throughput over useful tokens, and 6·params FLOPs per token that was trained."""
    per_row = rollout["completion_mask"].sum(1) + rollout["prompt_mask"].sum(1)
    useful = int(per_row.sum())
    trained = int(per_row[rollout["advantages"] != 0].sum()) if trained_only else useful
    flops = 6 * parameters * trained / seconds
    peak = None
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        peak = next((value for key, value in PEAK_FLOPS.items() if key in name), None)
    return {
        "useful_tokens": useful,
        "trained_tokens": trained,
        "tokens_per_second": useful / seconds,
        "flops_6nd_per_second": flops,
        "share_of_peak": flops / peak if peak else None,
    }


def told(row: dict[str, Any]) -> str:
    """A row in short."""
    ours, stock = row["acpo"], row.get("trl")
    if stock is None:
        return str(ours)
    return (
        f"acpo {ours['seconds']:.3f} s, trl {stock['seconds']:.3f} s, {row['speedup']:.1f}x, "
        f"cosine {row['gradient_cosine']:.6f}, GiB {ours['peak_gib']} / {stock['peak_gib']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/update.json"))
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to see that it runs")
    parser.add_argument("--dtype", default="bfloat16", help="dtype of the weights")
    parser.add_argument("--stock-batch", type=int, default=4, help="TRL's micro-batch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", type=int, help="our tokens per pack [32768]")
    parser.add_argument("--logits-bytes", type=int, help="our memory for a chunk of logits")
    for name, meaning in (
        ("median", "a completion"),
        ("cap", "the longest"),
        ("prompt", "a prompt"),
    ):
        parser.add_argument(f"--{name}", type=int, help=f"tokens of {meaning} [{FULL[name]}]")
    parser.add_argument("--eager", action="store_true", help="ours without compiled layers")
    parser.add_argument("--without-trl", action="store_true", help="ours alone")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    args = parser.parse_args()
    size: dict[str, Any] = TINY if args.tiny else FULL
    if args.tiny:
        args.dtype = "float32"
    given = {k: getattr(args, k) for k in ("median", "cap", "prompt")}
    size = size | {k: v for k, v in given.items() if v is not None}
    settings = {k: v for k, v in size.items() if k != "shape"}
    result: dict[str, Any] = {"environment": environment(*PACKAGES), "size": settings, "rows": []}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for name in args.variants:
        for checkpointing in (True, False):
            try:
                row = run_variant(name, checkpointing, size, args)
                print(
                    f"{name}, checkpointing {'on' if checkpointing else 'off'}: {told(row)}",
                    flush=True,
                )
            except Exception:
                error = traceback.format_exc()
                row = {"variant": name, "gradient_checkpointing": checkpointing, "error": error}
                print(error, flush=True)
            result["rows"].append(row)
            args.out.write_text(json.dumps(result, indent=1))
            release()


if __name__ == "__main__":
    main()
