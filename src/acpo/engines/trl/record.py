"""Rollouts kept as a trace while training goes on."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor

from acpo.engines.trl.rollout import Tensors, select_rows, trained_mask
from acpo.objectives import METHODS, TokenStats
from acpo.records import RUN_TRACE, TraceWriter
from acpo.scoring.pieces import Pieces
from acpo.scoring.rollouts import SampledCompletion, method_rows, prompt_id

SOURCE = "recorded_source"
"""Column of a rollout that says which recorded input a row came from."""

KEPT_GROUPS = 8
"""Groups of a rollout, on each process, that are scored again before its later updates."""


Traced = tuple[SampledCompletion, float, dict[str, np.ndarray]]
"""A completion, its advantage and its `[T]` statistics, as one process tells them to another."""


class RolloutRecorder:
    """Appends every n-th rollout of a trainer's run to the trace in its output folder."""

    def __init__(self, trainer: Any) -> None:
        args, config = trainer.args, trainer.policy.config
        self.trainer, self.path = trainer, Path(args.output_dir) / RUN_TRACE
        self.header = {
            "source": "train",
            "model": str(config._name_or_path),
            "vocab_size": config.get_text_config().vocab_size,
            "group": trainer.num_generations,
            "temperature": trainer.temperature,
            "max_tokens": trainer.max_completion_length,
            "method": args.method,
            "seed": args.seed,
            "updates_per_rollout": args.steps_per_generation * trainer.num_iterations,
        }
        usual, used = METHODS[args.method].options, args.objective.options
        if own := {name: value for name, value in used.items() if value != usual[name]}:
            self.header["method_options"] = own
        # Some groups of the rollout in use, scored again before each later update on it.
        self.kept: Tensors | None = None
        self._sources: list[tuple[str | None, float | None]] = []
        self._pieces = Pieces(trainer._tokenizer)
        self._listening = False

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: later updates on the rollout in use are recorded too."""
        return {"kept": self.kept, "sources": self._sources}

    def load(self, state: dict[str, Any]) -> None:
        self.kept, self._sources = state["kept"], state["sources"]

    def begin(self, rollout: int) -> bool:
        """Whether the rollout of that number is recorded; if so, `note` starts to listen."""
        self._listening = rollout % self.trainer.args.record_every == 0
        self._sources, self.kept = [], None
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

    def record(self, rollout: Tensors, *, update: int) -> None:
        """Append a rollout of all processes as it is before one of its updates.

        Args:
            rollout: the tensors of this process, from which the column of `note` is taken away;
                before later updates, what was `kept` of them.
            update: how many updates on this rollout the policy is ahead of the one that sampled.
        """
        trainer, self._listening = self.trainer, False
        if not update:
            self.kept = _first_groups(rollout, trainer.num_generations)
        everyone: list[Traced] = gather_object(self._traced(rollout))
        if not update:
            del rollout[SOURCE]
        if not trainer.accelerator.is_main_process:
            return
        rollouts, advantages, statistics = zip(*everyone, strict=True)
        tables = {
            name: torch.from_numpy(np.concatenate([each[name] for each in statistics]))
            for name in statistics[0]
        }
        old_logp = tables.pop("old_logp")
        rows, columns = method_rows(
            rollouts,
            self._pieces,
            trainer.packed.settings.method,
            TokenStats(**tables),
            old_logp,
            advantages=torch.tensor(advantages),
            group_size=trainer.num_generations,
        )
        step = trainer.state.global_step - update
        # Opened each time: a trainer that nobody closes must not keep the trace from others.
        with TraceWriter(self.path, self.header) as writer:
            writer.drop_from(step, update)  # which an earlier run has left, or one resumed since
            writer.append(rows, columns, step=step, update=update)

    def _traced(self, rollout: Tensors) -> list[Traced]:
        trainer = self.trainer
        stats = trainer.rollouts.rollout_statistics(rollout)
        old = rollout.get("old_per_token_logps")
        tables = {**stats._asdict(), "old_logp": stats.logp if old is None else old}
        masks = trained_mask(rollout)
        advantages = rollout["advantages"]
        if advantages.dim() == 2:  # a trace has one per completion
            advantages = (advantages * masks).sum(1) / masks.sum(1).clamp_min(1)
        first = trainer.accelerator.process_index * len(masks)  # groups may span processes
        found = []
        for row, source in enumerate(rollout[SOURCE].tolist()):
            answer, reward = self._sources[source]
            mask = masks[row]
            prompt = rollout["prompt_ids"][row][rollout["prompt_mask"][row].bool()].tolist()
            completion = rollout["completion_ids"][row][mask].tolist()
            sampled = SampledCompletion(
                prompt_id(prompt),
                sample=(first + row) % trainer.num_generations,
                prompt_ids=prompt,
                completion_ids=completion,
                truncated=not completion or completion[-1] not in trainer.eos_token_ids,
                answer=answer,
                reward=reward,
            )
            columns = {k: v[row][mask].cpu().numpy() for k, v in tables.items()}
            found.append((sampled, float(advantages[row]), columns))
        return found


def _first_groups(rollout: Tensors, group_size: int) -> Tensors:
    """Some whole groups; all rows, where groups span processes."""
    rows = len(rollout["advantages"])
    count = rows if rows % group_size else min(rows, KEPT_GROUPS * group_size)
    return select_rows(rollout, range(count))
