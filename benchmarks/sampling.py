"""A rollout of a 135M model: the static sampler beside `generate`, same weights, same prompts.

    python benchmarks/sampling.py --out results/sampling.json

The model has SmolLM2-135M's shape and random weights, float32 under bfloat16 autocast, as it is
trained; no completion ends early. The static sampler is timed first, then `generate` (one rollout
after a short one: it launches its thousand kernels per token from Python and takes by far the
longest), and last greedy tokens of graphs and of plain steps, which are as slow, are compared. Each
result is printed and written as soon as it is there.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from acpo.sampling import StaticSampler


def model(device: torch.device, layers: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
        pad_token_id=0,
        eos_token_id=None,
        bos_token_id=None,
    )
    with device:  # 135M random numbers take seconds on a CPU
        return LlamaForCausalLM(config).eval()


def timed(function, device: torch.device) -> float:
    start = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return round(time.perf_counter() - start, 3)


def agreement(policy, prompts, args, dtype) -> dict:
    """Whether graphs, also beyond the cache length of the first, say what plain steps say."""
    prompts = prompts[: args.check_rows]
    plain, graphed = (
        StaticSampler(
            policy,
            rows=len(prompts),
            max_new_tokens=args.check_tokens,
            eos=[],
            pad=0,
            temperature=0.0,
            autocast=dtype,
            graphs=graphs,
        )
        for graphs in (False, None)
    )
    plain.grain = (
        graphed.grain
    )  # other cache lengths round otherwise, and random weights nearly tie
    both = [sampler.sample(prompts, seed=(0,)).tokens for sampler in (plain, graphed)]
    return {"graphs_and_plain_steps_agree": both[0] == both[1]}


def measure_static(policy, prompts, args, dtype) -> dict:
    device = policy.device
    sampler = StaticSampler(
        policy, rows=len(prompts), max_new_tokens=args.tokens, eos=[], pad=0, autocast=dtype
    )
    seconds = [
        timed(lambda: sampler.sample(prompts, seed=(1,)), device) for _ in range(args.repeats + 1)
    ]
    rate = round(len(prompts) * args.tokens / statistics.median(seconds[1:]))
    found = {
        "static_first_seconds": seconds[0],  # captures the graphs
        "static_seconds": seconds[1:],
        "static_tokens_per_second": rate,
    }
    if device.type == "cuda":
        found["static_peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    return found


def measure_generate(policy, prompts, args, dtype) -> dict:
    device = policy.device
    ids = torch.tensor(prompts, device=device)

    def generate(tokens: int) -> None:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None), torch.no_grad():
            policy.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=True,
                top_k=0,
                pad_token_id=0,
            )

    generate(min(4, args.tokens))
    seconds = timed(lambda: generate(args.tokens), device)
    rate = round(len(prompts) * args.tokens / seconds)
    return {"generate_seconds": seconds, "generate_tokens_per_second": rate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=120)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--check-rows", type=int, default=32)
    parser.add_argument("--check-tokens", type=int, default=136)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else None
    policy = model(device, args.layers)
    different = torch.randint(2, 49_152, (-(-args.rows // args.group), args.prompt)).tolist()
    prompts = [prompt for prompt in different for _ in range(args.group)][: args.rows]
    record = {
        "command": f"python benchmarks/sampling.py {' '.join(sys.argv[1:])}",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "versions": {name: version(name) for name in ("torch", "transformers")},
        "setting": {k: v for k, v in vars(args).items() if k != "out"},
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for leg in (measure_static, measure_generate, agreement):
        began = time.perf_counter()
        found = leg(policy, prompts, args, dtype)
        print(
            f"{leg.__name__}, {time.perf_counter() - began:.1f} s: {json.dumps(found)}", flush=True
        )
        record |= found
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
