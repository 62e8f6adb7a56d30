"""TRL's rollouts, scored: advantages, old log-probabilities, and what methods need of a group."""

from typing import Any

import torch
from accelerate.utils import gather
from torch import Tensor
from trl import GRPOTrainer
from trl.extras.profiling import profiling_decorator

from acpo.engines.trl.checks import check_tokens
from acpo.engines.trl.minibatch import rows_of
from acpo.engines.trl.ranks import Ranks
from acpo.engines.trl.recording import RolloutRecorder
from acpo.engines.trl.rewards import (
    combined_rewards,
    scaled_advantages,
    soft_overlong,
    without_constant_groups,
)
from acpo.engines.trl.rollouts import (
    PromptStream,
    Rollout,
    group_rows,
    informative_groups,
    join_rollouts,
    select_rows,
    trained_tokens,
)
from acpo.engines.trl.update import PackedUpdate
from acpo.errors import ACPOError
from acpo.objectives import TokenStats, token_advantages
from acpo.objectives.shaping import conflict_hits


class ScoringTrainer(GRPOTrainer):
    """Generation as in TRL; advantages, statistics passes and dynamic sampling are ours."""

    # TRL's own declarations are of what may also be absent; here these are always there.
    args: Any
    model: Any
    optimizer: Any
    train_dataset: Any
    num_generations: Any
    num_generations_eval: Any
    max_completion_length: Any
    _logs: Any
    _buffered_inputs: Any
    policy: Any
    packed: PackedUpdate
    ranks: Ranks
    fresh_prompts: PromptStream
    prompt_room: int | None
    _rewards: Tensor
    _lengths: Tensor
    _rollout_entropy: Tensor | None = None
    recorder: RolloutRecorder | None = None

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        result = super()._tokenize_prompts(prompts)
        check_tokens(result[0], self.prompt_room)
        return result

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Tensor:
        self._rewards = super()._calculate_rewards(
            inputs, prompts, completions, completion_ids_list
        )
        lengths = torch.tensor(
            [float(len(ids)) for ids in completion_ids_list], device=self.accelerator.device
        )
        self._lengths = gather(lengths)
        return self._rewards

    @profiling_decorator
    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **vision: Any,
    ) -> tuple[Tensor, Tensor, None]:
        """Old and reference log-probabilities, packed like the update."""
        if any(value is not None for value in vision.values()):
            raise ACPOError("images are not supported; use a text-only model and data set")
        stats = self._statistics(model, input_ids, attention_mask, logits_to_keep)
        if self._rollout_entropy is None:
            self._rollout_entropy = stats.entropy
        return stats.logp, stats.entropy, None

    def _statistics(self, model: Any, ids: Tensor, attended: Tensor, width: int) -> TokenStats:
        """Statistics of the last `width` columns, `[B, width]` each."""
        rows = rows_of(attended.bool(), attended[:, -width:].bool())
        with self.packed.attention.installed(self.policy, self.ref_model):
            return self.packed.statistics(model, ids=ids, rows=rows, first=ids.shape[1] - width)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Rollout:
        self._rollout_entropy = None
        rollout = super()._generate_and_score_completions(inputs)
        training = self.model.training
        group_size = self.num_generations if training else self.num_generations_eval
        advantages = self._group_advantages(rollout, group_size, len(inputs))
        start = self.accelerator.process_index * len(inputs)
        rollout["advantages"] = advantages[start : start + len(inputs)]
        self._log_advantages(advantages)
        self._shape(rollout, group_size)
        if self.recorder is not None and training:
            weights = self.reward_weights.to(self._rewards.device)
            rewards = combined_rewards(self._rewards, weights, None)
            self.recorder.note(rollout, inputs, rewards[start : start + len(inputs)])
        return rollout

    def _group_advantages(self, rollout: Rollout, group_size: int, local: int) -> Tensor:
        """Advantages of every process's completions."""
        mode = "train" if self.model.training else "eval"
        if self.multi_objective_aggregation != "sum_then_normalize":
            theirs = gather(rollout["advantages"])
            return without_constant_groups(theirs, self._rewards, group_size)
        penalties = None
        if self.args.soft_overlong_cache is not None:
            penalties = soft_overlong(
                self._lengths,
                limit=self.max_completion_length,
                cache=self.args.soft_overlong_cache,
                penalty=self.args.soft_overlong_penalty,
            )
            self._metrics[mode]["rewards/soft_overlong"].append(penalties.mean().item())
        weights = self.reward_weights.to(self._rewards.device)
        rewards = combined_rewards(self._rewards, weights, penalties)
        unjudged = rewards.isnan().float().mean().item()
        self._metrics[mode]["rewards/unjudged"].append(unjudged)
        return scaled_advantages(rewards, group_size, self.scale_rewards)

    def _log_advantages(self, advantages: Tensor) -> None:
        """The completions table shows the advantages that are trained on."""
        logged = self._logs["advantages"]
        for _ in range(min(len(logged), advantages.numel())):
            logged.pop()
        logged.extend(advantages.tolist())

    def _shape(self, rollout: Rollout, group_size: int) -> None:
        """What a method needs to know of the whole group, before groups are shuffled apart."""
        shaping = self.packed.settings.method.shaping
        if shaping not in ("conflict", "entropy_reward"):
            return
        mask = rollout["completion_mask"].bool()
        if "tool_mask" in rollout:
            mask = mask & rollout["tool_mask"].bool()
        if shaping == "conflict":
            rollout["conflict_hits"] = conflict_hits(
                advantages=rollout["advantages"],
                tokens=rollout["completion_ids"],
                mask=mask,
                group_size=group_size,
            )
            self._measure_initial_entropy(rollout, mask)
            return
        rollout["token_advantages"] = token_advantages(
            self.packed.settings.method,
            advantages=rollout["advantages"],
            mask=mask,
            old_entropy=self._entropy_of(rollout),
            group_size=group_size,
        )

    def _measure_initial_entropy(self, rollout: Rollout, mask: Tensor) -> None:
        """GTPO's filter compares with the entropy of the policy training started from."""
        if self.args.initial_entropy is not None:
            return
        entropy = self._entropy_of(rollout)
        sums = torch.stack([entropy[mask].sum(), mask.sum().float()])
        total, count = self.ranks.sum(sums).tolist()
        self.set_initial_entropy(total / max(count, 1.0))

    def set_initial_entropy(self, value: float) -> None:
        """Fix GTPO's reference entropy for the rest of the run."""
        self.args.initial_entropy = value
        settings = self.packed.settings
        settings.method = settings.method(initial_entropy=value)

    def _entropy_of(self, rollout: Rollout) -> Tensor:
        """Entropies under the rollout policy, from TRL's own pass if it made one."""
        made = self.args.steps_per_generation * self.num_iterations > 1 or (
            self.use_vllm and self.vllm_importance_sampling_correction
        )
        if made and self._rollout_entropy is not None:
            return self._rollout_entropy
        return self._rollout_statistics(rollout).entropy

    def _rollout_statistics(self, rollout: Rollout) -> TokenStats:
        """Statistics of the completions under the rollout policy."""
        ids = torch.cat([rollout["prompt_ids"], rollout["completion_ids"]], 1)
        attended = torch.cat([rollout["prompt_mask"], rollout["completion_mask"]], 1)
        return self._statistics(self.model, ids, attended, rollout["completion_ids"].shape[1])

    def _record(self, recorder: RolloutRecorder, rollout: Rollout) -> None:
        recorder.write(
            rollout,
            self._rollout_statistics(rollout),
            method=self.packed.settings.method,
            group_size=self.num_generations,
            ends=self.eos_token_ids,
            step=self.state.global_step,
            is_main=self.accelerator.is_main_process,
        )

    def _rollout(self, generation_batch: list[dict[str, Any]]) -> Rollout:
        """A generation batch, filled up with informative groups if asked for."""
        rollout = self._generate_and_score_completions(generation_batch)
        if not self.args.dynamic_sampling:
            return rollout
        size, wanted = self.num_generations, len(generation_batch) // self.num_generations
        parts = [rollout]
        kept = informative_groups(rollout["advantages"], size)[:wanted]
        chosen = [select_rows(rollout, group_rows(kept, size))]
        missing = wanted - len(kept)
        rounds = 0
        while rounds < self.args.max_resample_times and self.ranks.most(missing):
            rounds += 1
            more = self._generate_and_score_completions(self._fresh_batch(wanted))
            found = informative_groups(more["advantages"], size)[:missing]
            chosen.append(select_rows(more, group_rows(found, size)))
            parts.append(more)
            missing -= len(found)
        silent = [g for g in range(wanted) if g not in kept][:missing]
        chosen.append(select_rows(rollout, group_rows(silent, size)))
        joined = join_rollouts(chosen, pad_token_id=self._tokenizer.pad_token_id)
        joined["num_items_in_batch"] = self.ranks.sum(trained_tokens(joined))
        lacking = self.ranks.sum(torch.tensor(float(missing), device=self.accelerator.device))
        self._metrics["train"]["dynamic_sampling/rounds"].append(float(rounds))
        self._metrics["train"]["dynamic_sampling/groups_missing"].append(lacking.item())
        return joined

    def _fresh_batch(self, groups: int) -> list[dict[str, Any]]:
        """This process's share of new prompts, each repeated for its group."""
        indices = self.fresh_prompts.take(groups * self.ranks.count)
        start = self.accelerator.process_index * groups
        mine = indices[start : start + groups]
        return [self.train_dataset[i] for i in mine for _ in range(self.num_generations)]
