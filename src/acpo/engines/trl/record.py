"""Rollouts kept as a trace while training goes on."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers.utils import logging

from acpo.engines.trl.rollout import Tensors, trained_mask
from acpo.objectives import Method, TokenStats
from acpo.records import TraceWriter
from acpo.scoring.credit import token_credit
from acpo.scoring.pieces import Pieces
from acpo.scoring.rollouts import Rollout, placed_rows, prompt_id, statistic_columns

logger = logging.get_logger(__name__)

SOURCE = "recorded_source"
"""Column of a rollout that says which recorded input a row came from."""


class Scored(NamedTuple):
    """A completion with its `[T]` statistics, as one process tells it to another."""

    prompt_ids: list[int]
    completion_ids: list[int]
    answer: str | None
    reward: float | None
    advantage: float
    columns: dict[str, np.ndarray]


class RolloutRecorder:
    """Appends every n-th rollout of a run to a trace.

    Args:
        path: folder of the trace.
        header: what the trace says of itself.
        every: of so many rollouts, one is recorded.
        tokenizer: the policy's.
    """

    def __init__(self, path: Path, header: dict[str, Any], *, every: int, tokenizer: Any) -> None:
        self.path, self.header, self.every = path, header, every
        self._pieces = Pieces(tokenizer)
        self._listening = False
        self._sources: list[tuple[str | None, float | None]] = []
        self._resumed = False

    @classmethod
    def of(cls, trainer: Any) -> "RolloutRecorder":
        """The recorder of a trainer's run."""
        args, config = trainer.args, trainer.policy.config
        header = {
            "source": "train",
            "model": str(config._name_or_path),
            "vocab_size": config.get_text_config().vocab_size,
            "group": trainer.num_generations,
            "temperature": trainer.temperature,
            "max_tokens": trainer.max_completion_length,
            "method": args.method,
            "seed": args.seed,
        }
        path = Path(args.output_dir) / "trace"
        return cls(path, header, every=args.record_every, tokenizer=trainer._tokenizer)

    def begin(self, rollout: int) -> bool:
        """Whether the rollout of that number is recorded; if so, `note` starts to listen."""
        self._listening = rollout % self.every == 0
        self._sources = []
        return self._listening

    def note(self, rollout: Tensors, inputs: list[dict[str, Any]], rewards: Tensor) -> None:
        """Remember what the tensors of a rollout do not say."""
        if not self._listening:
            return
        first = len(self._sources)
        for row, reward in zip(inputs, rewards.tolist(), strict=True):
            answer = row.get("answer")
            verdict = None if reward != reward else reward
            self._sources.append((None if answer is None else str(answer), verdict))
        device = rollout["advantages"].device
        rollout[SOURCE] = torch.arange(first, len(self._sources), device=device)

    def write(
        self,
        rollout: Tensors,
        stats: TokenStats,
        *,
        method: Method,
        group_size: int,
        ends: list[int],
        step: int,
        is_main: bool,
    ) -> None:
        """Append this rollout of all processes; the main one writes.

        Args:
            rollout: the tensors of this process; the column `note` added is taken away.
            stats: `[B, C]` statistics of its completion tokens.
            method: whose credit is recorded.
            group_size: completions per prompt.
            ends: tokens that end a completion.
            step: optimizer steps the policy has made.
            is_main: whether this process writes.
        """
        self._listening = False
        mine = self._scored(rollout, stats, rollout.pop(SOURCE).tolist())
        everyone: list[Scored] = gather_object(mine)
        if not is_main:
            return
        if not all(np.isfinite(x).all() for row in everyone for x in row.columns.values()):
            logger.warning(f"the rollout of step {step} is not recorded: it is not finite")
            return
        rows, columns = _rows(everyone, self._pieces, method, group_size, ends)
        # Opened each time: a trainer that nobody closes must not keep the trace from others.
        with TraceWriter(self.path, self.header) as writer:
            if not self._resumed:
                writer.drop_from(step)
                self._resumed = True
            writer.append(rows, columns, step=step)

    def _scored(self, rollout: Tensors, stats: TokenStats, sources: list[int]) -> list[Scored]:
        old = rollout.get("old_per_token_logps")
        tables = {**stats._asdict(), "old_logp": stats.logp if old is None else old}
        masks = trained_mask(rollout)
        found = []
        for row, source in enumerate(sources):
            answer, reward = self._sources[source]
            mask = masks[row]
            prompt = rollout["prompt_ids"][row][rollout["prompt_mask"][row].bool()]
            columns = {k: v[row][mask].cpu().numpy() for k, v in tables.items()}
            found.append(
                Scored(
                    prompt.tolist(),
                    rollout["completion_ids"][row][mask].tolist(),
                    answer,
                    reward,
                    float(rollout["advantages"][row]),
                    columns,
                )
            )
        return found


def _rows(
    scored: list[Scored], pieces: Pieces, method: Method, group_size: int, ends: list[int]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What `TraceWriter.append` takes."""
    rollouts = [
        Rollout(
            prompt_id=prompt_id(row.prompt_ids),
            sample=number % group_size,
            prompt_ids=row.prompt_ids,
            completion_ids=row.completion_ids,
            truncated=not row.completion_ids or row.completion_ids[-1] not in ends,
            answer=row.answer,
            reward=row.reward,
        )
        for number, row in enumerate(scored)
    ]
    tables = {
        name: torch.from_numpy(np.concatenate([row.columns[name] for row in scored]))
        for name in scored[0].columns
    }
    old_logp = tables.pop("old_logp")
    stats = TokenStats(**tables)
    advantages = [row.advantage for row in scored]
    rows, columns = placed_rows(rollouts, advantages, pieces)
    credit, token_advantage = token_credit(
        method,
        stats=stats,
        old_logp=old_logp,
        tokens=torch.from_numpy(columns["token_id"]),
        lengths=np.array([len(row.completion_ids) for row in scored]),
        advantages=torch.tensor(advantages),
        group_size=group_size,
    )
    columns |= statistic_columns(stats)
    columns |= {
        "old_logp": old_logp.numpy(),
        "credit": credit.numpy(),
        "advantage": token_advantage.numpy(),
    }
    return rows, columns
