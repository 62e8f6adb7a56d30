"""Memory and communication per GPU of the verl recipe, on paper: arithmetic on shapes, no run.

    python benchmarks/verl_scaling.py --output results/verl_scaling.json

Counts what FSDP2 with full sharding keeps and sends for one update of the paper's mini-batch, and
what our rows add to it. Bytes are decimal (1 GB = 1e9 bytes). Left out: CUDA context,
fragmentation, vLLM's cache, and buffers below 100 MB.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BF16, FP32 = 2, 4


@dataclass(frozen=True)
class Model:
    """Qwen3-8B."""

    layers: int = 36
    hidden: int = 4096
    intermediate: int = 12288
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocabulary: int = 151_936

    @property
    def layer(self) -> int:
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * query + 2 * key) + 2 * self.head_dim
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer + 2 * self.embedding + self.hidden


@dataclass(frozen=True)
class Recipe:
    """recipes/verl/common.sh, every response at its longest."""

    responses: int = 128
    tokens_each: int = 10_240
    micro_batch_tokens: int = 20_480


def estimate(model: Model, recipe: Recipe, gpus: int) -> dict[str, Any]:
    """Gigabytes per GPU; communication is what one GPU receives in one update."""
    sequence_parallel = max(1, gpus // recipe.responses)
    ranks = gpus // sequence_parallel  # data-parallel: each needs at least one response
    tokens = recipe.responses // ranks * recipe.tokens_each
    micro_batches = -(-tokens // (recipe.micro_batch_tokens * sequence_parallel))
    live = min(tokens // sequence_parallel, recipe.micro_batch_tokens)  # on one GPU at a time
    share = (gpus - 1) / gpus
    memory = {
        "weights, gradients, Adam (fp32, sharded)": 4 * FP32 * model.parameters / gpus,
        "weights in use (bf16: two layers, embedding, head)": BF16
        * (2 * model.layer + 2 * model.embedding),
        "activations (a bf16 state per layer and token)": BF16 * model.layers * live * model.hidden,
        "logits and their gradient (bf16)": 2 * BF16 * live * model.vocabulary,
    }
    gather = BF16 * model.parameters * share
    traffic = {
        "all-gather of weights, forward and backward": 2 * gather * micro_batches,
        "reduce-scatter of gradients (fp32)": FP32 * model.parameters * share * micro_batches,
    }
    margin = FP32 * live
    added = {
        "margin, memory (acpo, global_sg*)": margin,
        "margin's gradient, memory (acpo_no_routing, positive_only, nonpositive_only)": BF16
        * live
        * model.vocabulary,
        "margin, traffic, FSDP": margin * micro_batches if sequence_parallel > 1 else 0,
        "margin, traffic, Megatron with tensor parallelism": 2 * margin * micro_batches,
        "look-ahead pass, traffic (8020, gtpo, shannon*)": gather * micro_batches,
    }
    return {
        "gpus": gpus,
        "ulysses_sequence_parallel_size": sequence_parallel,
        "micro_batches_per_update": micro_batches,
        "memory_gb": {k: round(v / 1e9, 3) for k, v in memory.items()},
        "memory_total_gb": round(sum(memory.values()) / 1e9, 2),
        "received_per_update_gb": {k: round(v / 1e9, 2) for k, v in traffic.items()},
        "received_total_gb": round(sum(traffic.values()) / 1e9, 1),
        "added_by_rows_gb": {k: round(v / 1e9, 6) for k, v in added.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("results/verl_scaling.json"))
    output = parser.parse_args().output
    model, recipe = Model(), Recipe()
    report = {
        "command": "python benchmarks/verl_scaling.py",
        "measured": False,
        "model": {"name": "Qwen3-8B", "parameters": model.parameters, **asdict(model)},
        "recipe": asdict(recipe),
        "estimates": [estimate(model, recipe, gpus) for gpus in (8, 64, 512)],
    }
    output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["estimates"], indent=1))


if __name__ == "__main__":
    main()
