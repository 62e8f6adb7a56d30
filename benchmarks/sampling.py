"""A rollout of a 135M model: the static sampler beside an older one and beside `generate`.

    python benchmarks/sampling.py --out results/sampling.json                    # CUDA, a minute
    python benchmarks/sampling.py --baseline ../before/src --out results/sampling.json

The model has SmolLM2-135M's shape and random weights, float32 under bfloat16 autocast, as it is
trained. Prompts come in groups of eight; all completions have the full length, except in the legs
`tail`, whose lengths follow a log-normal law (median 100, sigma 0.7, cut at the full length).
`--baseline` is the `src` folder of another version of acpo: its sampler runs the same rollout in a
process of its own. Tokens are compared in float32 on a model with preferences, where rounding
seldom decides a draw. `generate` launches its thousand kernels per token from Python and is
measured on fewer tokens. Every leg is printed and written as soon as it is done.
"""

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from environment import environment
from measuring import clock
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


def timed(function) -> float:
    start = clock()
    function()
    return round(clock() - start, 3)


def measured(policy, prompts, args, *, rows=None, limits=None, **options) -> dict:
    """Time of a rollout by the static sampler; the first one captures and compiles."""
    device = policy.device
    sampler = StaticSampler(
        policy,
        rows=rows or len(prompts),
        max_new_tokens=args.tokens,
        eos=[],
        pad=0,
        autocast=torch.bfloat16 if device.type == "cuda" else None,
        **options,
    )
    given = {} if limits is None else {"limits": limits}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = [
        timed(lambda: sampler.sample(prompts, seed=(1,), **given)) for _ in range(args.repeats + 1)
    ]
    tokens = sum(limits) if limits else len(prompts) * args.tokens
    found = {
        "first_seconds": seconds[0],
        "seconds": seconds[1:],
        "tokens": tokens,
        "tokens_per_second": round(tokens / statistics.median(seconds[1:])),
    }
    if device.type == "cuda":
        found["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    return found


def static(policy, prompts, args) -> dict:
    return measured(policy, prompts, args)


def uncompiled(policy, prompts, args) -> dict:
    return measured(policy, prompts, args, compiled=False)


def tail(policy, prompts, args) -> dict:
    """All rows start together, and batches shrink."""
    return measured(policy, prompts, args, limits=lengths(args))


def tail_in_a_quarter(policy, prompts, args) -> dict:
    """A quarter of the rows at a time: who ends makes room."""
    return measured(policy, prompts, args, rows=-(-len(prompts) // 4), limits=lengths(args))


def lengths(args) -> list[int]:
    noise = torch.randn(args.rows, generator=torch.Generator().manual_seed(2))
    return (100 * (0.7 * noise).exp()).round().long().clamp(1, args.tokens).tolist()


def generate(policy, prompts, args) -> dict:
    device = policy.device
    ids = torch.tensor(prompts, device=device)
    half = device.type == "cuda"

    def run(tokens: int) -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half), torch.no_grad():
            policy.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=True,
                top_k=0,
                pad_token_id=0,
            )

    run(min(4, args.generate_tokens))
    seconds = timed(lambda: run(args.generate_tokens))
    tokens = len(prompts) * args.generate_tokens
    return {"seconds": seconds, "tokens": tokens, "tokens_per_second": round(tokens / seconds)}


def drawn(policy, prompts, args) -> dict:
    """Tokens in float32 from a model with preferences."""
    with torch.no_grad():
        policy.lm_head.weight.mul_(10)
    prompts = prompts[: args.check_rows]
    known = inspect.signature(StaticSampler).parameters
    sampler = StaticSampler(
        policy,
        rows=len(prompts),
        max_new_tokens=args.check_tokens,
        eos=[],
        pad=0,
        **({"compiled": False} if "compiled" in known else {}),  # float32 would compile anew
    )
    return {"drawn": sampler.sample(prompts, seed=(2,)).tokens}


def baseline(policy, prompts, args) -> dict:
    """`static` and `drawn` by the other version, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "baseline.json"
        sizes = ("rows", "group", "prompt", "tokens", "layers", "repeats")
        sizes += ("check_rows", "check_tokens")
        command = [sys.executable, __file__, "--out", str(out), "--legs", "static", "drawn"]
        for name in sizes:
            command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
        path = os.pathsep.join([str(args.baseline.resolve()), os.environ.get("PYTHONPATH", "")])
        environ = {**os.environ, "PYTHONPATH": path}
        subprocess.run(command, check=True, env=environ, stdout=subprocess.DEVNULL)
        record = json.loads(out.read_text(encoding="utf-8"))
    return {**record["static"], **record["drawn"]}


LEGS = {
    leg.__name__: leg
    for leg in (static, uncompiled, tail, tail_in_a_quarter, generate, baseline, drawn)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--baseline", type=Path, help="src folder of the version to compare with")
    parser.add_argument("--legs", nargs="+", choices=LEGS, default=list(LEGS))
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=120)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--generate-tokens", type=int, default=48)
    parser.add_argument("--check-rows", type=int, default=32)
    parser.add_argument("--check-tokens", type=int, default=64)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = model(device, args.layers)
    generator = torch.Generator().manual_seed(1)
    shape = (-(-args.rows // args.group), args.prompt)
    different = torch.randint(2, 49_152, shape, generator=generator).tolist()
    prompts = [prompt for prompt in different for _ in range(args.group)][: args.rows]
    setting = {k: v for k, v in vars(args).items() if k not in ("out", "baseline", "legs")}
    record = {
        "environment": environment("torch", "triton", "transformers"),
        "setting": setting,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for name in args.legs:
        if name == "baseline" and args.baseline is None:
            continue
        began = time.perf_counter()
        record[name] = LEGS[name](policy, prompts, args)
        told = {key: value for key, value in record[name].items() if key != "drawn"}
        print(f"{name}, {time.perf_counter() - began:.1f} s: {json.dumps(told)}", flush=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if args.baseline is not None and {"static", "baseline", "drawn"} <= set(args.legs):
        ours, theirs = record.pop("drawn")["drawn"], record["baseline"].pop("drawn")
        same = sum(a == b for a, b in zip(ours, theirs, strict=True))
        rates = [record[name]["tokens_per_second"] for name in ("static", "baseline")]
        record["same_completions"] = f"{same} of {len(ours)}"
        record["speedup"] = round(rates[0] / rates[1], 2)
        print(f"{record['speedup']}x the baseline, {record['same_completions']} the same")
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
