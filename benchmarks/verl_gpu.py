"""What our rows cost inside verl, and whether both engines have the same gradient in bf16.

    python benchmarks/verl_gpu.py rollout --model MODEL --work WORK             # either environment
    python benchmarks/verl_gpu.py verl --work WORK --out results/verl_gpu.json  # verl's
    python benchmarks/verl_gpu.py trl --work WORK --out results/verl_gpu.json   # TRL's

`rollout` samples completions of the model and keeps them. `verl` puts them through verl's FSDP2
engine in bf16 as one mini-batch, forward and backward, under stock `sapo` (before our plugin is
loaded) and under our rows. `trl` puts the same through `ACPOTrainer` and compares gradients with
those `verl` kept. Both attend by torch's own flash kernel, sequence by sequence, since the
flash-attn package verl asks for may be missing, and verl takes log-probabilities by its own
fallback: both are the same for every row. Rows are written to `--out` as they come.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from environment import environment
from measuring import cosine, release, timed
from torch import Tensor
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from acpo.engines.attention import packed_attention

ROWS = ("sapo", "acpo", "acpo_no_routing", "shannon")
GROUP = 8
MODEL = "model.txt"
ROLLOUT = "rollout.pt"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISION = torch.bfloat16
ATTENTION = "each_sequence"


def attend(*args: Any, position_ids: Tensor | None = None, **kwargs: Any) -> tuple[Tensor, None]:
    """Packed attention over a row without padding, whose sequences begin at position 0."""
    assert position_ids is not None
    starts = (position_ids.flatten() == 0).nonzero().flatten()
    bounds = F.pad(starts, (0, 1), value=position_ids.numel()).int()
    longest = int(bounds.diff().max())
    return packed_attention(*args, cu_seq_lens_q=bounds, max_length_q=longest, **kwargs)


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)


def make_rollout(args: argparse.Namespace) -> None:
    """Sampled completions with drawn rewards; the old policy is a little behind the current one."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=PRECISION).to(DEVICE)
    prompts = torch.tensor([tokenizer.encode("3 + 4 * 2 =") or [2, 3]] * args.completions)
    prompts = prompts.to(DEVICE)
    with torch.no_grad():
        ids = model.generate(
            prompts, do_sample=True, top_k=0, max_new_tokens=args.tokens, pad_token_id=0
        )
    completions = ids[:, prompts.shape[1] :].cpu()
    lengths = torch.randint(args.tokens // 4, args.tokens + 1, (args.completions,))
    mask = (torch.arange(completions.shape[1]) < lengths[:, None]).long()
    groups = torch.randint(0, 2, (args.completions // GROUP, GROUP)).float()
    groups[:, 0], groups[:, 1] = 0.0, 1.0  # every group says something
    advantages = (groups - groups.mean(1, keepdim=True)) / groups.std(1, keepdim=True)
    logp = log_probabilities(model, ids, completions.shape[1]) * mask
    args.work.mkdir(parents=True, exist_ok=True)
    (args.work / MODEL).write_text(str(Path(args.model).resolve()))
    torch.save(
        {
            "prompt_ids": prompts.cpu(),
            "prompt_mask": torch.ones_like(prompts.cpu()),
            "completion_ids": completions * mask,
            "completion_mask": mask,
            "old_per_token_logps": (logp + 0.05 * torch.randn(logp.shape)) * mask,
            "advantages": advantages.flatten(),
        },
        args.work / ROLLOUT,
    )


@torch.no_grad()
def log_probabilities(model: Any, ids: Tensor, width: int) -> Tensor:
    rows = []
    for row in ids:
        logits = model(input_ids=row[None]).logits[0, -width - 1 : -1].float()
        rows.append(logits.log_softmax(-1).gather(-1, row[-width:, None])[:, 0].cpu())
    return torch.stack(rows)


def measure(update: Any, repeats: int) -> dict[str, Any]:
    """Seconds and memory of an update, after one that warms up."""
    update()
    return timed(update, repeats=repeats)


def run_verl(args: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> None:
    """Every row through one engine per kind: verl's own for stock `sapo`, ours for the rest."""
    import torch.distributed as dist

    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}.items():
        os.environ.setdefault(name, str(value))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29533")
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    rollout = torch.load(args.work / ROLLOUT, weights_only=True)
    tokens = int(rollout["completion_mask"].sum() + rollout["prompt_mask"].sum())
    rows: dict[str, Any] = {}
    engine = verl_engine(args, external_lib=None)
    stock = verl_row(engine, rollout, verl_actor("sapo"), args)
    rows["sapo, without the plugin"] = stock
    del engine
    release()
    actors = {row: verl_actor(row) for row in ROWS}  # naming a row of ours extends the engine
    engine = verl_engine(args, external_lib="acpo.verl")
    for row, actor in actors.items():
        rows[row] = cost = verl_row(engine, rollout, actor, args)
        cost["seconds_over_stock"] = cost["seconds"] / stock["seconds"]
        if stock["peak_gib"]:
            cost["memory_over_stock"] = cost["peak_gib"] / stock["peak_gib"]
        keep({"tokens": tokens, "micro_batch_tokens": args.micro_batch_tokens, "rows": rows})
    dist.destroy_process_group()


def verl_engine(args: argparse.Namespace, external_lib: str | None) -> Any:
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine import EngineRegistry

    model = HFModelConfig(
        path=(args.work / MODEL).read_text(),
        override_config={"attn_implementation": ATTENTION},
        enable_gradient_checkpointing=True,
        use_remove_padding=True,
        external_lib=external_lib,
    )
    engine = EngineRegistry.new(
        model_type="language_model",
        backend="fsdp2",
        model_config=model,
        engine_config=verl_engine_config(),
        optimizer_config=FSDPOptimizerConfig(lr=1e-6),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def verl_engine_config() -> Any:
    from verl.workers.config import FSDPEngineConfig

    return FSDPEngineConfig(
        strategy="fsdp2",
        mixed_precision={"param_dtype": "bf16", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        model_dtype="fp32",
        use_torch_compile=False,
    )


def verl_actor(row: str) -> Any:
    from verl.workers.config import FSDPActorConfig, PolicyLossConfig

    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=GROUP,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(loss_mode=row),
        loss_agg_mode="seq-mean-token-mean",
        fsdp_config=verl_engine_config(),
    )


def verl_row(
    engine: Any, rollout: dict[str, Tensor], actor: Any, args: argparse.Namespace
) -> dict[str, Any]:
    from verl.workers.utils.losses import ppo_loss

    with engine.train_mode(disable_auto_offload=True):

        def update() -> None:
            engine.optimizer_zero_grad()
            engine.forward_backward_batch(
                verl_batch(rollout, args), partial(ppo_loss, config=actor)
            )

        measured = measure(update, args.repeats) | {"engine": type(engine).__name__}
        torch.save(gradients(engine.module), args.work / f"{actor.policy_loss.loss_mode}.pt")
    return measured


def verl_batch(rollout: dict[str, Tensor], args: argparse.Namespace) -> Any:
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import left_right_2_no_padding

    attention = torch.cat([rollout["prompt_mask"], rollout["completion_mask"]], 1)
    data = tu.get_tensordict(
        {
            "input_ids": torch.cat([rollout["prompt_ids"], rollout["completion_ids"]], 1),
            "attention_mask": attention,
            "position_ids": (attention.cumsum(1) - 1).clamp_min(0),
            "prompts": rollout["prompt_ids"],
            "responses": rollout["completion_ids"],
            "response_mask": rollout["completion_mask"],
            "old_log_probs": rollout["old_per_token_logps"],
            "advantages": rollout["advantages"][:, None] * rollout["completion_mask"],
            "uid": [str(row // GROUP) for row in range(len(attention))],
        },
        {
            "temperature": 1.0,
            "use_remove_padding": True,
            "use_dynamic_bsz": True,
            "max_token_len_per_gpu": args.micro_batch_tokens,
            "micro_batch_size_per_gpu": 1,
            "calculate_entropy": False,
            "global_batch_size": len(attention),
        },
    )
    return left_right_2_no_padding(data).to(DEVICE)


def gradients(module: Any) -> dict[str, Tensor]:
    from torch.distributed.tensor import DTensor

    kept = {}
    for name, parameter in module.named_parameters():
        grad = parameter.grad
        if grad is not None:
            kept[name] = (grad.full_tensor() if isinstance(grad, DTensor) else grad).cpu()
    return kept


def run_trl(args: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> None:
    """The same mini-batch through our trainer, and how far its gradient is from verl's."""
    rollout = torch.load(args.work / ROLLOUT, weights_only=True)
    rollout = {name: value.to(DEVICE) for name, value in rollout.items()}
    rollout["num_items_in_batch"] = rollout["completion_mask"].sum()
    rows = {}
    for row in ROWS:
        rows[row] = trl_row(rollout, row, args)
        keep({"rows": rows})
        release()


def trl_row(rollout: dict[str, Tensor], row: str, args: argparse.Namespace) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM
    from update import make_trainer, our_update

    from acpo import ACPOConfig, ACPOTrainer

    path, count = (args.work / MODEL).read_text(), len(rollout["advantages"])
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            ACPOTrainer,
            ACPOConfig,
            AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
            folder,
            {"completions": count, "cap": rollout["completion_ids"].shape[1]},
            method=row,
            per_device_train_batch_size=count,
            max_tokens_per_pack=args.micro_batch_tokens,
            gradient_checkpointing=True,
            bf16=True,
        )

    def update() -> None:
        trainer.model.zero_grad(set_to_none=True)
        our_update(trainer, rollout)

    measured = measure(update, args.repeats)
    ours, theirs = gradients(trainer.model), torch.load(args.work / f"{row}.pt", weights_only=True)
    return measured | agreement(ours, theirs)


def agreement(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, float]:
    """Cosine and relative distance; a tied head has one gradient under either of its names."""
    names = sorted(ours.keys() & theirs.keys())
    a = torch.cat([ours[name].flatten() for name in names]).double()
    b = torch.cat([theirs[name].flatten() for name in names]).double()
    return {
        "parameters_compared": len(a),
        "cosine": cosine(a, b),
        "relative_distance": float((a - b).norm() / b.norm()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=("rollout", "verl", "trl"))
    parser.add_argument("--work", type=Path, required=True, help="shared by the three parts")
    parser.add_argument("--out", type=Path, default=Path("results/verl_gpu.json"))
    parser.add_argument("--model", help="a folder with weights and tokenizer")
    parser.add_argument("--completions", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=512, help="of the longest completion")
    parser.add_argument("--micro-batch-tokens", type=int, default=16_384)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    if args.part == "rollout":
        make_rollout(args)
        return
    packages = ("torch", "transformers", "verl", "trl", "flash-attn")
    known = json.loads(args.out.read_text()) if args.out.exists() else {}
    about = {"environment": environment(*packages)}

    def keep(found: dict[str, Any]) -> None:
        args.out.write_text(json.dumps({**known, args.part: about | found}, indent=1) + "\n")
        print(json.dumps(found["rows"]), flush=True)

    (run_verl if args.part == "verl" else run_trl)(args, keep)


if __name__ == "__main__":
    main()
