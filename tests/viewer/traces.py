"""Traces for the pages: real distributions over a small vocabulary of chosen pieces."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from acpo.objectives import group_advantages, stats_from_logits
from acpo.records import TraceWriter

WORDS = (
    b"the", b" sum", b" of", b" x", b" and", b" y", b" is", b" 12", b",", b".", b"\n", b" so",
    b" we", b" have", b" 3", b" +", b" 4", b" =", b" 7", b" therefore",
)  # fmt: skip

HOSTILE = (
    b"<script>window.pwned=1;alert(1)</script>",
    b"</script><script>window.pwned=2</script>",
    b"<!--<script>",
    b"-->",
    b'<img src=x onerror="window.pwned=3">',
    b'" onmouseover="window.pwned=4" x="',
    b"javascript:window.pwned=5//",
    b'<a href="javascript:window.pwned=6">click</a>',
    b'<iframe src="http://127.0.0.1:9/">',
    b"{{7*7}}{% raw %}",
    b"\\u003cscript\\u003e&lt;b&gt;&amp;",
    b"__proto__",
    b"\xf0\x9f", b"\x98\x80",  # a split emoji
    b"\xe2\x9d\xa4\xef\xb8\x8f",  # an emoji with its selector
    b"\xff", b"\xc3(", b"\xed\xa0\x80",  # bytes that are no text
    b"\x00", b"\x1b[31m", b"\x7f",
    "\u202egnp.exe\u202c".encode(), "\u2066x\u2069".encode(),
    "שלום".encode(), "مرحبا 123".encode(), b" 456",
    "a\u200bb\u200d\ufeff".encode(), "\u00a0\u3000".encode(), "\u2028\u2029".encode(),
    "\u0301acute".encode(), ("Z" + "\u0321" * 40).encode(),
    b"A" * 100_000,
    b"\t", b"\r\n", b"\n\n", b"", b" ",
)  # fmt: skip


def write_trace(
    path: Path,
    *,
    pieces: tuple[bytes, ...] = WORDS,
    prompts: int = 2,
    group: int = 4,
    length: int = 60,
    steps: int = 1,
    start: int = 0,
    drift: float = 0.3,
    in_order: bool = False,
    drop: tuple[str, ...] = (),
    header: dict[str, Any] | None = None,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Write a trace, and return the logits, tokens and old log-probabilities of its last part.

    Args:
        path: Its folder.
        pieces: The vocabulary.
        prompts, group, length, steps: How much; completions differ in length.
        start: The first step.
        drift: How far the scored policy is from the one that sampled.
        in_order: Tokens are the vocabulary in its order, not sampled.
        drop: Token columns to leave out.
        header: To change it.
        seed: Of everything.
    """
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, torch.Tensor] = {}
    first = {"model": "tiny", "temperature": 1.0, "vocab_size": len(pieces), "method": "acpo"}
    with TraceWriter(path, first | (header or {})) as writer:
        for step in range(steps):
            for prompt in range(prompts):
                rows, columns, made = _group(
                    generator, pieces, prompt, group, length, drift, in_order
                )
                kept = {name: values for name, values in columns.items() if name not in drop}
                writer.append(rows, kept, step=start + 10 * step)
    return made


def _group(
    generator: torch.Generator,
    pieces: tuple[bytes, ...],
    prompt: int,
    group: int,
    length: int,
    drift: float,
    in_order: bool,
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, torch.Tensor]]:
    lengths = [max(1, length - 7 * i) for i in range(group)]
    total, vocabulary = sum(lengths), len(pieces)
    logits = 2.5 * torch.randn(total, vocabulary, generator=generator, dtype=torch.float64)
    old = logits + drift * torch.randn(logits.shape, generator=generator, dtype=torch.float64)
    tokens = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    if in_order:
        tokens = torch.arange(total) % vocabulary
    stats = stats_from_logits(logits=logits, tokens=tokens)
    old_logp = old.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    log_p = logits.log_softmax(-1)
    mode = torch.where(stats.is_mode, tokens, log_p.argmax(-1))
    top = log_p.topk(min(5, vocabulary))
    tail = log_p.scatter(-1, mode[:, None], -torch.inf)
    p2 = (2 * tail).exp()
    finite = tail.masked_fill(tail == -torch.inf, 0.0)
    rewards = [float(i % 2) for i in range(group)]
    advantages = group_advantages(rewards, group)
    ends = np.cumsum(lengths)
    texts = [
        b"".join(pieces[t] for t in tokens[end - n : end].tolist()).decode("utf-8", "replace")
        for n, end in zip(lengths, ends, strict=True)
    ]
    rows = [
        {
            "prompt_id": f"q{prompt}",
            "sample": i,
            "prompt": f"Problem {prompt}: what is 3 + {prompt}?",
            "completion": texts[i],
            "answer": str(3 + prompt),
            "reward": rewards[i],
            "verdict": "correct" if rewards[i] else "incorrect",
            "advantage": float(advantages[i]),
            "truncated": False,
            "tokens": lengths[i],
        }
        for i in range(group)
    ]
    columns = {
        "token_id": tokens.numpy(),
        "piece": [pieces[t] for t in tokens.tolist()],
        "logp": stats.logp.numpy(),
        "old_logp": old_logp.numpy(),
        "log_pmax": stats.log_pmax.numpy(),
        "mode_id": mode.numpy(),
        "is_mode": stats.is_mode.numpy(),
        "entropy": stats.entropy.numpy(),
        "delta": -np.expm1(stats.log_pmax.numpy()),
        "credit": np.ones(total),
        "advantage": np.repeat(advantages.numpy(), lengths),
        "top_ids": top.indices.numpy(),
        "top_logps": top.values.numpy(),
        "top_pieces": [[pieces[t] for t in row] for row in top.indices.tolist()],
        "tail_p2": p2.sum(-1).numpy(),
        "tail_p2_logp": (p2 * finite).sum(-1).numpy(),
    }
    return rows, columns, {"logits": logits, "tokens": tokens, "old_logp": old_logp}
