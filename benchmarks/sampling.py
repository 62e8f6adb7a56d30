"""A rollout of a 135M model: the static sampler beside `generate`, same weights, same prompts.

    python benchmarks/sampling.py --out results/sampling.json

The model has SmolLM2-135M's shape and random weights, float32 under bfloat16 autocast, as it is
trained; no completion ends early. Greedy tokens of graphs and of plain steps are compared first.
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
    return LlamaForCausalLM(config).to(device).eval()


def timed(function, device: torch.device, repeats: int) -> list[float]:
    """Seconds of each repetition, after one that is not counted."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return [round(value, 3) for value in seconds[1:]]


def generate(policy, prompts, tokens: int, device: torch.device, half) -> None:
    ids = torch.tensor(prompts, device=device)
    with half, torch.no_grad():
        policy.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=True,
            top_k=0,
            pad_token_id=0,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=120)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else None
    policy = model(device, args.layers)
    different = torch.randint(2, 49_152, (args.rows // args.group, args.prompt)).tolist()
    prompts = [prompt for prompt in different for _ in range(args.group)]
    options = {"rows": args.rows, "max_new_tokens": args.tokens, "eos": [], "pad": 0}
    plain, graphed = (
        StaticSampler(policy, **options, temperature=0.0, autocast=dtype, graphs=graphs)
        for graphs in (False, None)
    )
    agree = plain.sample(prompts, seed=(0,)).tokens == graphed.sample(prompts, seed=(0,)).tokens
    del plain, graphed
    sampler = StaticSampler(policy, **options, autocast=dtype)
    ours = timed(lambda: sampler.sample(prompts, seed=(1,)), device, args.repeats)
    half = torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)
    theirs = timed(lambda: generate(policy, prompts, args.tokens, device, half), device, 1)
    sampled = args.rows * args.tokens
    record = {
        "command": f"python benchmarks/sampling.py {' '.join(sys.argv[1:])}",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "versions": {name: version(name) for name in ("torch", "transformers")},
        "setting": {k: v for k, v in vars(args).items() if k != "out"},
        "graphs_and_plain_steps_agree": agree,
        "static_seconds": ours,
        "generate_seconds": theirs,
        "static_tokens_per_second": round(sampled / statistics.median(ours)),
        "generate_tokens_per_second": round(sampled / statistics.median(theirs)),
    }
    if device.type == "cuda":
        record["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
