"""Rollouts: TRL's samples, scored, shaped by group, and filled up with informative groups."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.utils import gather
from torch import Tensor
from trl.trainer.utils import nanstd

from acpo.engines.trl.config import changed_draws
from acpo.engines.trl.packing import GROUP_COLUMN, JUDGED, find_rows
from acpo.engines.trl.prompts import PromptStream
from acpo.engines.trl.rewards import (
    TokenRewards,
    combined_rewards,
    scaled_advantages,
    separately_scaled_advantages,
    soft_overlong,
    without_verdict,
)
from acpo.errors import ACPOError
from acpo.objectives import TokenStats
from acpo.objectives.metrics import mode_exposed
from acpo.objectives.shaping import Sequences, score_norm, score_variation, spread
from acpo.sampling import Samples, StaticSampler

LEFT_PADDED = ("prompt_ids", "prompt_mask")

Tensors = dict[str, Any]
"""A rollout as TRL hands it over: tensors by name, rows of a group consecutive."""


class Rollouts:
    """What becomes of a trainer's samples before the first update."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        data = trainer.train_dataset
        size = len(data) if hasattr(data, "__len__") else 1
        self.fresh_prompts = PromptStream(size, trainer.args.seed)  # for dynamic sampling
        self.per_function: Tensor  # `[N, K]` rewards of the last rollout, of all processes
        self.said: Tensor | None = None  # the same, before a subclass changed them
        self.token_rewards: TokenRewards | None = None  # what they gave per token, if any did
        self.lengths: Tensor  # `[N]` tokens of its completions
        # What TRL's first pass over it found: the rollout policy's, where it has old
        # log-probabilities.
        self.stats: TokenStats | None = None
        self.measured: dict[str, float] = {}  # options of the method that the first one decided
        self._sampler: StaticSampler | None = None
        self._drawn: dict[bool, tuple[int, int]] = {}

    def statistics(self, model: Any, ids: Tensor, attended: Tensor, width: int) -> TokenStats:
        """Statistics of the last `width` columns under `model`, `[B, width]` each."""
        packed, trainer = self.trainer.packed, self.trainer
        rows = find_rows(attended=attended.bool(), targets=attended[:, -width:].bool())
        with packed.ready(trainer.policy, trainer.ref_model):
            return packed.statistics(model, ids=ids, rows=rows, first=ids.shape[1] - width)

    def rollout_statistics(self, rollout: Tensors) -> TokenStats:
        """Statistics of the completions under the rollout policy."""
        ids = torch.cat([rollout["prompt_ids"], rollout["completion_ids"]], 1)
        attended = torch.cat([rollout["prompt_mask"], rollout["completion_mask"]], 1)
        width = rollout["completion_ids"].shape[1]
        return self.statistics(self.trainer.model, ids, attended, width)

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """A rollout begins: what `_calculate_rewards` of the trainer returns is trained on.

        TRL logs what the outermost of a subclass's methods returns, so that one is listened to.
        """
        self.stats = None
        own, name = vars(self.trainer), "_calculate_rewards"
        before = own.get(name)
        calculate = getattr(self.trainer, name)

        def heard(inputs: Any, prompts: Any, completions: Any, completion_ids: Any) -> Tensor:
            self.said = self.token_rewards = None
            rewards = calculate(inputs, prompts, completions, completion_ids)
            self._keep_rewards(rewards, completion_ids)
            return rewards

        own[name] = heard
        try:
            yield
        finally:
            del own[name]
            if before is not None:
                own[name] = before

    def note_said(self, per_function: Tensor, completion_ids: Any) -> None:
        """Remember what the reward functions themselves said, per token too."""
        self.said = per_function.clone()
        self.token_rewards = TokenRewards.read(self.trainer, completion_ids)

    def _keep_rewards(self, per_function: Tensor, completion_ids: Any) -> None:
        """Remember the rewards, before TRL sums them up.

        A function of weight 0 is only logged: it says nothing here, and so decides no verdict.
        """
        if self.token_rewards is not None and self.said is not None:
            columns = self.token_rewards.columns.to(per_function.device)
            kept, said = (x[:, columns].nan_to_num(torch.inf) for x in (per_function, self.said))
            if not torch.equal(kept, said):
                raise ACPOError(
                    f"{type(self.trainer).__name__}._calculate_rewards changed rewards that were "
                    "given per token, which are trained on as they are; change them in the reward "
                    "function"
                )
        unweighted = self.trainer.reward_weights.to(per_function.device) == 0
        self.per_function = per_function.masked_fill(unweighted, torch.nan)
        lengths = [float(len(ids)) for ids in completion_ids]
        self.lengths = gather(torch.tensor(lengths, device=self.trainer.accelerator.device))

    def score(self, rollout: Tensors, inputs: list[dict[str, Any]]) -> Tensors:
        """Advantages, verdicts and group columns of this process's completions."""
        trainer, count = self.trainer, len(inputs)
        training = trainer.model.training
        size = trainer.num_generations if training else trainer.num_generations_eval
        mine = slice(trainer.accelerator.process_index * count, None)
        advantages = self._advantages(size, "train" if training else "eval")
        rollout["advantages"] = advantages[mine][:count]
        if self.token_rewards is not None:
            width = rollout["completion_ids"].shape[1]
            added = self.token_rewards.padded(width).to(advantages)
            rollout["advantages"] = rollout["advantages"][:, None] + added
        rollout[JUDGED] = ~without_verdict(self.per_function, size)[mine][:count]
        _replace_last(trainer._logs["advantages"], advantages.tolist())
        metrics = trainer._metrics["train" if training else "eval"]
        # TRL's number knows neither penalties nor our advantages.
        moved = gather((rollout["advantages"] != 0).view(count, -1).any(1).float())
        informative = len(informative_groups(moved, size)) * size / len(moved)
        metrics["frac_reward_zero_std"][-1] = 1 - informative
        weights = trainer.reward_weights.to(self.per_function.device)
        rewards = combined_rewards(self.per_function, weights, None, size)
        # TRL counts what some functions said of completions that others could not judge.
        metrics["reward"][-1] = rewards.nanmean().item()
        metrics["reward_std"][-1] = nanstd(rewards).item()
        self._shape(rollout, size)
        if "old_per_token_logps" in rollout and self.stats is not None:
            self._watch(rollout, self.stats, size, metrics)
        if trainer.recorder is not None and training:
            trainer.recorder.note(rollout, inputs, rewards[mine][:count])
        return rollout

    def _advantages(self, group_size: int, mode: str) -> Tensor:
        """Advantages of every process's completions."""
        trainer, args = self.trainer, self.trainer.args
        metrics = trainer._metrics[mode]
        weights = trainer.reward_weights.to(self.per_function.device)
        penalties = None
        if args.soft_overlong_cache is not None:
            penalties = soft_overlong(
                self.lengths,
                limit=trainer.max_completion_length,
                cache=args.soft_overlong_cache,
                penalty=args.soft_overlong_penalty,
            )
            metrics["rewards/soft_overlong"].append(penalties.mean().item())
        per_function = self.per_function
        if self.token_rewards is not None:  # those are advantages already
            per_function = per_function.where(per_function.isnan() | ~self.token_rewards.columns, 0)
        rewards = combined_rewards(per_function, weights, penalties, group_size)
        metrics["rewards/unjudged"].append(rewards.isnan().float().mean().item())
        if trainer.multi_objective_aggregation == "sum_then_normalize":
            return scaled_advantages(rewards, group_size, trainer.scale_rewards)
        return separately_scaled_advantages(per_function, weights, group_size)

    def _shape(self, rollout: Tensors, group_size: int) -> None:
        """What the method needs to know of whole groups, before they are shuffled apart."""
        settings = self.trainer.packed.settings
        shaping = settings.method.shaping
        if not (shaping.group_needs or shaping.measured):
            return
        mask = trained_mask(rollout)
        unknown = [n for n in shaping.measured if n not in self.measured and not self._is_set(n)]
        if unknown and self.trainer.model.training:  # other prompts have other entropies
            entropy = self._old_statistics(rollout).entropy
            self.set_measured(shaping.measure(entropy, mask, self.trainer.ranks))
        if not shaping.group_needs:
            return
        known = {"tokens": rollout["completion_ids"]}
        if set(shaping.group_needs) - known.keys():
            old = self._old_statistics(rollout)._asdict()
            known |= {f"old_{name}": column for name, column in old.items()}
        columns = {name: known[name] for name in shaping.group_needs}
        columns |= {"advantages": rollout["advantages"], "mask": mask}
        ranks = self.trainer.ranks
        whole = {name: ranks.rows(x) for name, x in columns.items()}  # groups may span processes
        found = shaping.of_group(
            Sequences(group_size=group_size, options=settings.method.options, **whole)
        )
        rollout[GROUP_COLUMN] = found[ranks.place * len(mask) :][: len(mask), : mask.shape[1]]

    def _watch(self, rollout: Tensors, stats: TokenStats, group_size: int, metrics: Any) -> None:
        """Log what the rollout policy's statistics say of the groups and of the sampler."""
        mask = trained_mask(rollout)
        if group_size > 1:
            norms = gather(score_norm(stats.logp, stats.log_pmax, mask))
            metrics["score_variation"].append(score_variation(norms, group_size).item())
        sampled = rollout.get("sampling_per_token_logps")
        if sampled is not None:
            share = mode_exposed(sampling_logp=sampled, stats=stats, mask=mask)
            mean = self.trainer.ranks.sum(share) / self.trainer.ranks.count
            metrics["sampling/mode_exposed"].append(mean.item())

    def _is_set(self, option: str) -> bool:
        """Whether the user gave an option of the method."""
        args = self.trainer.args
        return getattr(args, option, None) is not None or option in (args.method_options or {})

    def set_measured(self, values: dict[str, float]) -> None:
        """Fix options that were measured on the first rollout, unless given, for the whole run."""
        settings = self.trainer.packed.settings
        self.measured |= values
        unset = {name: x for name, x in self.measured.items() if not self._is_set(name)}
        settings.method = settings.method(**unset)

    def _old_statistics(self, rollout: Tensors) -> TokenStats:
        """Statistics under the rollout policy, from TRL's own pass if it made one."""
        known = self.stats if "old_per_token_logps" in rollout else None
        return known or self.rollout_statistics(rollout)

    def make(self, generation_batch: list[dict[str, Any]]) -> Tensors:
        """A rollout, filled up with informative groups if asked for."""
        trainer, args = self.trainer, self.trainer.args
        rollout = trainer._generate_and_score_completions(generation_batch)
        if not args.dynamic_sampling:
            return rollout
        size, wanted = trainer.num_generations, len(generation_batch) // trainer.num_generations
        kept = training_groups(rollout, size)[:wanted]
        chosen = [select_rows(rollout, group_rows(kept, size))]
        missing = wanted - len(kept)
        rounds = 0
        while rounds < args.max_resample_times and trainer.ranks.most(missing):
            rounds += 1
            more = trainer._generate_and_score_completions(self._fresh_batch(wanted))
            found = training_groups(more, size)[:missing]
            chosen.append(select_rows(more, group_rows(found, size)))
            missing -= len(found)
        silent = [g for g in range(wanted) if g not in kept][:missing]
        chosen.append(select_rows(rollout, group_rows(silent, size)))
        joined = join_rollouts(chosen, pad_token_id=trainer._tokenizer.pad_token_id)
        joined["num_items_in_batch"] = trainer.ranks.sum(trained_mask(joined).sum())
        lacking = trainer.ranks.sum(torch.tensor(float(missing), device=trainer.ranks.device))
        trainer._metrics["train"]["dynamic_sampling/rounds"].append(float(rounds))
        trainer._metrics["train"]["dynamic_sampling/groups_missing"].append(lacking.item())
        return joined

    def _fresh_batch(self, groups: int) -> list[dict[str, Any]]:
        """This process's share of new prompts, each repeated for its group."""
        trainer = self.trainer
        indices = self.fresh_prompts.take(groups * trainer.ranks.count)
        start = trainer.accelerator.process_index * groups
        mine = indices[start : start + groups]
        # As the first round's: those of `remove_unused_columns` are gone.
        data = trainer._remove_unused_columns(trainer.train_dataset, "training")
        return [data[i] for i in mine for _ in range(trainer.num_generations)]

    def sample_static(self, prompt_ids: Any) -> Samples:
        """Completions by `acpo.sampling`, in place of TRL's generation.

        Random numbers depend on the seed, the update and the process alone: runs that differ in
        the method share them, and a resumed run draws what it would have drawn.
        """
        trainer, args = self.trainer, self.trainer.args
        step = trainer.state.global_step
        training = bool(trainer.model.training)
        last, calls = self._drawn.get(training, (-1, 0))
        calls = calls + 1 if last == step else 0
        self._drawn[training] = (step, calls)
        seed = (args.seed, step, calls, int(training), trainer.accelerator.process_index)
        if self._sampler is None:
            half = trainer.accelerator.mixed_precision == "bf16"
            self._sampler = StaticSampler(
                trainer.policy,
                rows=args.sampler_rows
                or args.per_device_train_batch_size * args.steps_per_generation,
                max_new_tokens=trainer.max_completion_length,
                eos=trainer.eos_token_ids,
                pad=trainer._tokenizer.pad_token_id,
                temperature=trainer.packed.settings.temperature,
                autocast=torch.bfloat16 if half else None,
            )
        return self._sampler.sample(prompt_ids, seed=seed)


@contextmanager
def collector_paused() -> Iterator[None]:
    """No passes of Python's garbage collector inside.

    vLLM makes objects by the hundred thousand, which its own references free, and every few of them
    would start another pass over all that the compiler has left behind.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def refuse_sampler(trainer: Any) -> None:
    """Raise at construction for what the static sampler would have to ignore.

    And, without it, for what a checkpoint's own generation options would do to the draws.
    """
    args = trainer.args
    if args.sampler != "static":
        _refuse_own_options(trainer)
        return
    if trainer.tools or trainer.rollout_func is not None:
        raise ACPOError("sampler='static' samples plain completions; use sampler='generate'")
    if trainer.is_fsdp_enabled:
        raise ACPOError(
            "sampler='static' reads whole weights, which FSDP shards; use sampler='generate'"
        )


def _refuse_own_options(trainer: Any) -> None:
    args = trainer.args
    if args.use_vllm or args.use_transformers_continuous_batching or trainer.rollout_func:
        return
    given = {k: x for k, x in trainer.generation_kwargs.items() if x is not None}
    own = changed_draws({**vars(trainer.policy.generation_config), **given})
    for name in (name for name in own if name not in given):
        raise ACPOError(
            f"the model's own generation_config sets {name}={own[name]!r}, after which tokens are "
            "no draws of softmax(logits / temperature) and every ratio is biased; set "
            f"model.generation_config.{name} = None, or take it out of generation_config.json"
        )


def trained_mask(rollout: Tensors) -> Tensor:
    """`[B, C]`, the completion tokens the policy itself wrote."""
    mask = rollout["completion_mask"].bool()
    return mask & rollout["tool_mask"].bool() if "tool_mask" in rollout else mask


def _replace_last(logged: Any, values: Sequence[Any]) -> None:
    """The completions table shows the advantages that are trained on."""
    for _ in range(min(len(logged), len(values))):
        logged.pop()
    logged.extend(values)


def select_rows(rollout: Tensors, rows: Sequence[int]) -> Tensors:
    """The same rollout with only some of its rows, in the given order."""
    index = list(rows)
    return {
        name: value[index] if isinstance(value, Tensor) and value.dim() else value
        for name, value in rollout.items()
    }


def join_rollouts(parts: Sequence[Tensors], *, pad_token_id: int) -> Tensors:
    """Rows of several rollouts under one another, padded to a common width."""
    joined: Tensors = {}
    for name, first in parts[0].items():
        if not isinstance(first, Tensor) or first.dim() == 0:
            joined[name] = first
            continue
        tensors = [part[name] for part in parts]
        if len({x.dim() for x in tensors}) > 1:  # advantages, per token in some rounds alone
            masks = [part["completion_mask"].bool() for part in parts]
            tensors = [spread(x, mask) for x, mask in zip(tensors, masks, strict=True)]
        if tensors[0].dim() == 2:
            width = max(x.shape[1] for x in tensors)
            value = pad_token_id if name.endswith("_ids") else 0
            for index, x in enumerate(tensors):
                missing = width - x.shape[1]
                sides = (missing, 0) if name in LEFT_PADDED else (0, missing)
                tensors[index] = F.pad(x, sides, value=value)
        joined[name] = torch.cat(tensors)
    return joined


def informative_groups(advantages: Tensor, group_size: int) -> list[int]:
    """Indices of the groups with any non-zero advantage."""
    return (advantages.view(len(advantages) // group_size, -1) != 0).any(1).nonzero()[:, 0].tolist()


def training_groups(rollout: Tensors, group_size: int) -> list[int]:
    """Indices of the groups with any token that is trained on and has an advantage."""
    return informative_groups(spread(rollout["advantages"], trained_mask(rollout)), group_size)


def group_rows(groups: Sequence[int], group_size: int) -> list[int]:
    """Row indices of whole groups."""
    return [g * group_size + i for g in groups for i in range(group_size)]
