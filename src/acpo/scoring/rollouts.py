"""From sampled completions to the rows and columns of a trace."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.head import TokenDistribution, distribution_stats, language_model_head
from acpo.head.probe import probe_head
from acpo.objectives import Method, TokenStats, group_advantages
from acpo.scoring.credit import token_credit
from acpo.scoring.pieces import Pieces

Part = tuple[list[dict[str, Any]], dict[str, Any]]
"""Completions of a trace, and the columns of their tokens."""

TOKENS_PER_PASS = 16_384
"""Tokens, padding included, that go through the model together."""


@dataclass(frozen=True)
class SampledCompletion:
    """One completion as it was sampled."""

    prompt_id: str  # shared by the completions of a prompt, see `prompt_id`
    sample: int  # its number among them
    prompt_ids: Sequence[int]  # what the model read
    completion_ids: Sequence[int]  # what it wrote, the token that ended it included
    truncated: bool  # cut off at the length limit
    answer: str | None = None  # gold
    reward: float | None = None  # None where there is no verdict
    verdict: str | None = None


def prompt_id(prompt_ids: Sequence[int]) -> str:
    """A name for a prompt that is the same wherever it is sampled from."""
    return hashlib.sha256(np.asarray(prompt_ids, dtype=np.int32).tobytes()).hexdigest()[:12]


class Scorer:
    """Scores completions under one model, a method's credit included.

    Raises:
        ACPOError: for a model whose logits are not its output head's.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        method: Method,
        *,
        temperature: float,
        top_k: int,
        batch_size: int,
    ) -> None:
        probe_head(model)
        language_model_head(model).projection(temperature)  # refuses one that is no number
        self._model, self._pieces, self._method = model, Pieces(tokenizer), method
        self._options: dict[str, Any] = {
            "temperature": temperature,
            "top_k": top_k,
            "align_tol": float(method.options["align_tol"]),
            "batch_size": batch_size,
        }

    def part(
        self,
        rollouts: Sequence[SampledCompletion],
        *,
        group_size: int,
        sampled_by_scorer: bool = True,
    ) -> Part:
        """What `TraceWriter.append` takes, of groups of `group_size` consecutive completions.

        Where the model is not what sampled them, old log-probabilities are unknown and left out.
        """
        scored = score(self._model, rollouts, **self._options)
        advantages = group_advantages(
            torch.tensor([torch.nan if r.reward is None else r.reward for r in rollouts]).double(),
            group_size,
            scale=self._method.advantage_scale,
        )
        rows, columns = method_rows(
            rollouts,
            self._pieces,
            self._method,
            TokenStats(scored.logp, scored.log_pmax, scored.is_mode, scored.entropy),
            scored.logp,
            advantages=advantages,
            group_size=group_size,
        )
        if not sampled_by_scorer:
            del columns["old_logp"]
        columns |= {
            "mode_id": scored.mode.numpy(),
            "tail_p2": scored.tail_p2.numpy(),
            "tail_p2_logp": scored.tail_p2_logp.numpy(),
            "tail_p2_logp2": scored.tail_p2_logp2.numpy(),
        }
        if scored.top_ids.shape[1]:
            top = scored.top_ids.numpy()
            columns |= {"top_ids": top, "top_logps": scored.top_logps.float().numpy()}
            columns["top_pieces"] = self._pieces.of(top)
        return rows, columns


def score(
    model: Any,
    rollouts: Sequence[SampledCompletion],
    *,
    temperature: float,
    top_k: int,
    align_tol: float = 1e-6,
    batch_size: int = 32,
) -> TokenDistribution:
    """The policy at every completion token, on the CPU, in the order of the rollouts.

    The model, a transformers causal LM in evaluation mode, gets `batch_size` sequences at most;
    `top_k` of the likeliest tokens are named, and `align_tol` is the mode's tolerance of ties.
    """
    _require_fit(model, rollouts)
    parts: dict[int, TokenDistribution] = {}
    for chosen in _batches(rollouts, batch_size):
        batch = [rollouts[number] for number in chosen]
        hidden, tokens = _states(model, batch)
        head = language_model_head(model)
        found = distribution_stats(
            hidden, head, tokens, temperature=temperature, align_tol=align_tol, top_k=top_k
        )
        columns = [x.cpu().split([len(r.completion_ids) for r in batch]) for x in found]
        for number, *values in zip(chosen, *columns, strict=True):
            parts[number] = TokenDistribution(*values)
            _require_finite(rollouts[number], parts[number])
    return TokenDistribution.join([parts[number] for number in range(len(rollouts))])


def method_rows(
    rollouts: Sequence[SampledCompletion],
    pieces: Pieces,
    method: Method,
    stats: TokenStats,
    old_logp: Tensor,
    *,
    advantages: Tensor,
    group_size: int,
) -> Part:
    """The rows, and the columns that every source of traces has, for `TraceWriter.append`.

    A trainer appends them before the first update on a rollout with its `step`, and before the
    k-th further one once more, with the same `step` and `update=k`; some groups are enough there.

    Args:
        rollouts: whole groups of `group_size`, consecutive.
        stats: `[N]` under the policy about to be updated, completions one after another.
        old_logp: `[N]` under the policy that sampled.
        advantages: of each completion.
    """
    rows, columns = placed_rows(rollouts, advantages.tolist(), pieces)
    credit, token_advantage, _ = token_credit(
        method,
        stats=stats,
        old_logp=old_logp,
        tokens=torch.from_numpy(columns["token_id"]),
        lengths=np.array([len(rollout.completion_ids) for rollout in rollouts]),
        advantages=advantages,
        group_size=group_size,
    )
    return rows, columns | {
        "logp": stats.logp.numpy(),
        "log_pmax": stats.log_pmax.numpy(),
        "is_mode": stats.is_mode.numpy(),
        "entropy": stats.entropy.numpy(),
        "delta": -torch.expm1(stats.log_pmax).numpy(),
        "old_logp": old_logp.numpy(),
        "credit": credit.numpy(),
        "advantage": token_advantage.numpy(),
    }


def placed_rows(
    rollouts: Sequence[SampledCompletion], advantages: Sequence[float], pieces: Pieces
) -> Part:
    """The rollouts as rows, and the columns that say which token stands where."""
    rows = []
    placed = []
    prompts: dict[str, str] = {}
    for rollout, advantage in zip(rollouts, advantages, strict=True):
        if rollout.prompt_id not in prompts:
            prompts[rollout.prompt_id] = pieces.read(rollout.prompt_ids)
        placed.append(pieces.place(rollout.completion_ids))
        rows.append(
            {
                "prompt_id": rollout.prompt_id,
                "sample": rollout.sample,
                "prompt": prompts[rollout.prompt_id],
                "completion": placed[-1].text,
                "answer": rollout.answer,
                "reward": rollout.reward,
                "verdict": rollout.verdict,
                "advantage": advantage,
                "truncated": rollout.truncated,
                "tokens": len(rollout.completion_ids),
            }
        )
    ids = np.concatenate([np.asarray(r.completion_ids, dtype=np.int64) for r in rollouts])
    columns = {
        "token_id": ids,
        "piece": pieces.of(ids),
        "start": np.concatenate([p.starts for p in placed]),
        "end": np.concatenate([p.ends for p in placed]),
    }
    return rows, columns


def _batches(rollouts: Sequence[SampledCompletion], batch_size: int) -> list[list[int]]:
    """Rollouts that go together: of similar length, so that they pad little."""

    def length(number: int) -> int:
        return len(rollouts[number].prompt_ids) + len(rollouts[number].completion_ids)

    batches: list[list[int]] = []
    for number in sorted(range(len(rollouts)), key=length):
        full = not batches or len(batches[-1]) == batch_size
        if full or (len(batches[-1]) + 1) * length(number) > TOKENS_PER_PASS:
            batches.append([])
        batches[-1].append(number)
    return batches


@torch.inference_mode()
def _states(model: Any, rollouts: Sequence[SampledCompletion]) -> tuple[torch.Tensor, torch.Tensor]:
    """`[N, H]` states that predict the completion tokens, and those tokens."""
    sequences = [[*r.prompt_ids, *r.completion_ids] for r in rollouts]
    width = max(map(len, sequences))
    ids = torch.tensor([s + [0] * (width - len(s)) for s in sequences], device=model.device)
    mask = torch.tensor([[1] * len(s) + [0] * (width - len(s)) for s in sequences])
    hidden = model.base_model(
        input_ids=ids, attention_mask=mask.to(model.device), use_cache=False
    ).last_hidden_state
    spans = [(len(r.prompt_ids), len(r.completion_ids)) for r in rollouts]
    states = [row[n - 1 : n - 1 + m] for row, (n, m) in zip(hidden, spans, strict=True)]
    tokens = [row[n : n + m] for row, (n, m) in zip(ids, spans, strict=True)]
    return torch.cat(states), torch.cat(tokens)


def _require_fit(model: Any, rollouts: Sequence[SampledCompletion]) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    room = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for rollout in rollouts:
        where = f"prompt {rollout.prompt_id}, sample {rollout.sample}"
        if not rollout.prompt_ids:
            raise ACPOError(f"{where}: the prompt has no tokens to predict a completion from")
        outside = [i for i in (*rollout.prompt_ids, *rollout.completion_ids) if not 0 <= i < rows]
        if outside:
            raise ACPOError(
                f"{where}: token id {outside[0]} is not among the model's {rows}: it was sampled "
                "from another model"
            )
        length = len(rollout.prompt_ids) + len(rollout.completion_ids)
        if room is not None and length > room:
            raise ACPOError(
                f"{where}: {length} tokens are more than the model's {room} positions: it was "
                "sampled from another model"
            )


def _require_finite(rollout: SampledCompletion, scored: TokenDistribution) -> None:
    bad = ~(torch.isfinite(scored.logp) & torch.isfinite(scored.entropy))
    if not bad.any():
        return
    place = int(bad.nonzero()[0])
    impossible = torch.isfinite(scored.entropy[place])
    raise ACPOError(
        f"prompt {rollout.prompt_id}, sample {rollout.sample}, token {place} "
        f"(id {rollout.completion_ids[place]}): "
        + (
            "the model gives it probability 0: it is not of this model's vocabulary"
            if impossible
            else "its logits are not finite: the weights are damaged, or overflow in this dtype"
        )
    )
