"""Traces made from distributions, written as `acpo trace` writes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from acpo.records import Trace, TraceWriter
from diagnose.distributions import peaked_logits, scalars, trace_columns

HEADER = {"model": "synthetic", "temperature": 1.0, "vocab_size": 40}


def make_trace(
    path: Path,
    *,
    parts: int = 2,
    rollouts: int = 4,
    length: int = 100,
    vocab: int = 40,
    advantages: Sequence[float | None] = (1.0, -1.0),
    choose: str = "sample",
    header: dict[str, Any] | None = None,
    change: dict[str, Any] | None = None,
    drop: Sequence[str] = (),
    step: int = 0,
) -> Trace:
    """A trace of random tokens.

    Args:
        path: where to.
        parts: in the trace.
        rollouts: in each part.
        length: tokens in each rollout.
        vocab: size of the vocabulary.
        advantages: dealt out to the rollouts in turn.
        choose: "sample" draws a token, "mode" takes the mode, "second" the next best.
        header: changes to HEADER.
        change: columns to write instead.
        drop: columns to leave out.
        step: of the parts.
    """
    with TraceWriter(path, {**HEADER, "vocab_size": vocab, **(header or {})}) as writer:
        for part in range(parts):
            n = rollouts * length
            z = peaked_logits(n, vocab, seed=part)
            z = z[torch.randperm(n, generator=torch.Generator().manual_seed(part))]
            columns = {**trace_columns(scalars(z, _choose(z, choose, part))), **(change or {})}
            rows = [
                {
                    "prompt_id": f"q{part}-{i // 2}",
                    "sample": i,
                    "tokens": length,
                    "advantage": advantages[i % len(advantages)],
                }
                for i in range(rollouts)
            ]
            kept = {name: values for name, values in columns.items() if name not in drop}
            writer.append(rows, kept, step=step)
    return Trace.open(path)


def _choose(z: torch.Tensor, how: str, seed: int) -> torch.Tensor:
    if how == "mode":
        return z.argmax(-1)
    if how == "second":
        return z.argsort(-1)[:, -2]
    g = torch.Generator().manual_seed(seed)
    return torch.multinomial(z.softmax(-1), 1, generator=g)[:, 0]
