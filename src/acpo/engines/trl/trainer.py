"""`ACPOTrainer`: TRL's GRPOTrainer with a packed update and any row of the table.

How it hooks in. The Trainer loop of transformers calls `training_step` once per micro-batch and
steps the optimizer after `gradient_accumulation_steps` of them. Packing needs all of an optimizer
step's sequences at once, so the loop is configured with one micro-batch per step that holds what
the user's `per_device_train_batch_size` and `gradient_accumulation_steps` describe
(`ACPOConfig.per_optimizer_step`). `training_step` then lays the sequences into packs by itself.
Nothing in the loop is copied or patched: schedules, callbacks, clipping, logging and checkpoints
see ordinary steps. Rollouts, rewards and logging stay TRL's.
"""

import functools
import inspect
import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, is_peft_model
from torch import Tensor
from transformers import ProcessorMixin
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging
from trl import GRPOTrainer
from trl.extras.profiling import profiling_decorator
from trl.trainer.utils import get_config_model_id, shuffle_sequence_dict, split_tensor_dict

from acpo.engines.attention import HALF
from acpo.engines.ranks import Ranks
from acpo.engines.trl import checkpoint, guard, identity, overrides, packing, refusals, safety
from acpo.engines.trl.config import ACPOConfig
from acpo.engines.trl.forward import (
    Attention,
    CompiledLayers,
    HeadOptions,
    add_policy_forward,
    choose_attention,
)
from acpo.engines.trl.packing import MiniBatch
from acpo.engines.trl.prompts import EpochSampler
from acpo.engines.trl.record import RolloutRecorder
from acpo.engines.trl.rewards import check_added, checked_rewards
from acpo.engines.trl.rollout import Rollouts, collector_paused, refuse_sampler
from acpo.engines.trl.update import PackedUpdate, UpdateReport
from acpo.engines.trl.watch import Watch
from acpo.errors import ACPOError
from acpo.vllm_version import require_vllm

logger = logging.get_logger(__name__)


class ACPOTrainer(GRPOTrainer):
    """Trains a causal language model with any method of the table.

    Takes what `trl.GRPOTrainer` takes, with an `ACPOConfig`. `None` from a reward function means no
    verdict, and that the completion is not trained on.
    """

    _tag_names = ["trl", "acpo"]  # noqa: RUF012
    _paper = {  # noqa: RUF012
        "title": "ACPO: Asymmetric Credit Policy Optimization via Mode-Local Entropy Surrogate"
    }

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
    recorder: RolloutRecorder | None = None
    under_way: tuple[int, int, int] = (-1, 0, 0)  # where the last step began

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: ACPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        *more: Any,
        **kwargs: Any,
    ) -> None:
        overrides.refuse_overrides(type(self), ACPOTrainer)
        args = ACPOConfig(output_dir="acpo-output") if args is None else args
        if not isinstance(args, ACPOConfig):
            raise ACPOError(f"args is a {type(args).__name__}; pass an ACPOConfig")
        named = isinstance(model, str) or get_config_model_id(model.config)
        if processing_class is None and not named:
            raise ACPOError("processing_class is missing: this model does not say where it is from")
        if isinstance(processing_class, ProcessorMixin):
            raise ACPOError("images are not supported; pass the tokenizer as processing_class")
        if args.use_vllm:
            require_vllm("use_vllm")
        refusals.refuse_several_gpus(args)
        first = (model, reward_funcs, args, train_dataset, eval_dataset, processing_class)
        given = inspect.signature(GRPOTrainer).bind(*first, *more, **kwargs).arguments
        environment = given.get("environment_factory") is not None
        if args.process_index == 0:
            safety.check_output_folder(str(args.output_dir))
        data = safety.data_sets(train_dataset, eval_dataset)
        safety.check_data(data, args, has_environment=environment)
        self._name = args.objective.title
        given["reward_funcs"] = checked_rewards(
            reward_funcs,
            data,
            removes=args.remove_unused_columns,
            adds=environment or given.get("rollout_func") is not None,
        )
        self.given_args = args
        super().__init__(**{**given, "args": args.per_optimizer_step()})
        refusals.refuse_built(self)
        self._prepare_update()
        check_added(self)
        safety.check_prompts(data, self, may_be_empty=environment)

    def _prepare_update(self) -> None:
        args = self.args
        self.policy = self.model.get_base_model() if is_peft_model(self.model) else self.model
        refusals.refuse_model(self.model, args)
        head = HeadOptions(args.cast_lm_head_to_fp32, args.logits_bytes, args.sparse_head)
        add_policy_forward(self.policy, head)
        if self.ref_model is not None:
            add_policy_forward(self.accelerator.unwrap_model(self.ref_model), head)
        self.ranks = Ranks(self.accelerator.device)
        self.prompt_room = safety.prompt_room(self.policy.config, args)
        self.packed = self._make_update()
        self._decide_checkpointing()
        refuse_sampler(self)
        self.guard = guard.NonFiniteGuard(args.max_nonfinite_steps)
        self.add_callback(self.guard)
        self.watch = Watch(stops=args.stop_on_collapse)
        self.add_callback(self.watch)
        self.rollouts = Rollouts(self)
        self.identity = identity.identity(self)
        self._staging = checkpoint.Staging()
        if args.record_rollouts:
            self.recorder = RolloutRecorder(self)

    def _make_update(self) -> PackedUpdate:
        """The update this policy can have, after a look at its logits."""
        args, policy, device = self.args, self.policy, self.accelerator.device
        half = self.accelerator.mixed_precision == "bf16" or policy.dtype in HALF
        self._itemsize = 2 if half else 4
        exchanges = self.accelerator.gradient_state.plugin_kwargs
        self._exchanges_each_pack = bool(exchanges.get("sync_each_batch", False))
        attention = choose_attention(
            policy, device=device, half_precision=half, wanted=args.update_layout
        )
        self._unprobed = attention.layout == "packed" and policy.device.type != device.type
        if self.accelerator.is_main_process:  # elsewhere weights may not be loaded yet
            safety.probe_head(policy)
            if attention.layout == "packed" and not self._unprobed:
                attention = safety.probed_attention(self, attention)
        attention = Attention(*broadcast_object_list(list(attention)))
        logger.info(str(attention))
        compiles = args.compile_layers
        if compiles is None:
            compiles = device.type == "cuda" and attention.layout == "packed"
        self._followed = overrides.Followed(self)
        return PackedUpdate(
            self._followed.settings,
            ranks=self.ranks,
            attention=attention,
            autocast=self.accelerator.autocast,
            compiled=CompiledLayers(policy) if compiles else None,
            measure_budget=self._measure_budget,
        )

    def _decide_checkpointing(self) -> None:
        """Whether to recompute activations: only if a longest sequence would not fit without."""
        args, device = self.args, self.accelerator.device
        if args.gradient_checkpointing is not None:
            return
        shards = self.accelerator.num_processes if self.is_fsdp_enabled else 1
        fitting = self._budget(shards=shards, started=False, checkpointing=False)
        short = device.type == "cuda" and fitting < 2 * args.max_completion_length
        args.gradient_checkpointing = bool(self.ranks.most(int(short)))  # all processes, or none
        if args.gradient_checkpointing and is_peft_model(self.model):
            self.model.enable_input_require_grads()

    def _measure_budget(self) -> int:
        """Tokens per pack, from the memory that is free once the weights are in place."""
        started = bool(self.optimizer is not None and self.optimizer.state)
        checkpointing = bool(self.args.gradient_checkpointing)
        budget = self._budget(shards=1, started=started, checkpointing=checkpointing)
        recomputing = "with" if checkpointing else "without"
        logger.info(f"packs of {budget} tokens, {recomputing} gradient checkpointing")
        return budget

    def _budget(self, *, shards: int, started: bool, checkpointing: bool) -> int:
        device, policy = self.accelerator.device, self.policy
        free = packing.free_bytes(
            policy,
            device,
            logits_bytes=self.args.logits_bytes,
            optimizer_started=started,
            shards=shards,
            whole_gradients=self.is_fsdp_enabled and not self._exchanges_each_pack,
        )
        per_token = packing.activation_bytes(
            policy.config.get_text_config(), itemsize=self._itemsize, checkpointing=checkpointing
        )
        return packing.pack_budget(free, per_token, device)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return EpochSampler(
            data_source=self.train_dataset if dataset is None else dataset,
            mini_repeat_count=self.num_generations,
            batch_size=self.args.generation_batch_size // self.num_generations,
            repeat_count=self.num_iterations * self.args.steps_per_generation,
            shuffle=self.shuffle_dataset,
            seed=self.args.seed,
            trainer=self,
        )

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        optimizer = super().create_optimizer(*args, **kwargs)
        refusals.refuse_optimizer(optimizer)
        return optimizer

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        result = super()._tokenize_prompts(prompts)
        safety.check_tokens(result[0], self.prompt_room)
        return result

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        if self.args.sampler != "static":
            training = self.model.training
            with collector_paused():
                turn = super()._generate_single_turn(prompt_ids, *args, **kwargs)
            self.model.train(training)  # continuous batching leaves it on
            return turn
        return self.rollouts.sample_static(prompt_ids).tokens, None

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Tensor:
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self.rollouts.note_said(rewards, completion_ids_list)
        return rewards

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
        stats = self.rollouts.statistics(model, input_ids, attention_mask, logits_to_keep)
        if self.rollouts.stats is None:
            self.rollouts.stats = stats
        return stats.logp, stats.entropy, None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        with self.rollouts.hearing():
            rollout = super()._generate_and_score_completions(inputs)
        return self.rollouts.score(rollout, inputs)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """The mini-batch of this step, from a new rollout when the last is used up."""
        self._followed.follow()
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        steps = self.args.steps_per_generation
        number, update = divmod(self._step, steps * self.num_iterations)
        if update == 0 or self._buffered_inputs is None:
            recorder = self.recorder if self.recorder and self.recorder.begin(number) else None
            rollout: Any = self.rollouts.make(generation_batch)
            if recorder is not None:
                recorder.record(rollout, update=0)
            rollout = shuffle_sequence_dict(rollout)
            self._buffered_inputs = split_tensor_dict(rollout, steps)
        elif self.recorder is not None and self.recorder.kept is not None:
            self.recorder.record(self.recorder.kept, update=update)
        return self._buffered_inputs[self._step % steps]

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One optimizer step's forward and backward passes."""
        began = time.perf_counter()
        self.under_way = self.state.global_step, self._step, self.rollouts.fresh_prompts.position
        if self._unprobed:  # sharded weights were not in place before
            safety.require_packing(self)
            self._unprobed = False
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        inputs = self._prepare_inputs(inputs)
        updating = time.perf_counter()
        batch = MiniBatch.read(inputs, share=1 / self.args.steps_per_generation)
        no_sync = functools.partial(self.accelerator.no_sync, model)
        alone = nullcontext if self._exchanges_each_pack else no_sync
        with self.packed.ready(self.policy):
            report = self.packed.run(model, batch, self.accelerator.backward, alone)
        loss = self._log_update(report, len(batch), updating, mode="train")
        every = self.args.torch_empty_cache_steps
        if every and self.state.global_step % every == 0 and loss.is_cuda:
            torch.cuda.empty_cache()
        self._step += 1
        self._metrics["train"]["step_time"].append(time.perf_counter() - began)
        return loss

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        """Evaluation: the same loss, without gradients, and the entropy of all tokens, as TRL's."""
        batch = MiniBatch.read(inputs, share=1.0)
        with self.packed.ready(self.policy):
            entropy = self.packed.mean_entropy(model, batch)
            began = time.perf_counter()
            report = self.packed.run(model, batch)
        return self._log_update(report, len(batch), began, mode="eval", entropy=entropy)

    def _log_update(
        self, report: UpdateReport, rows: int, began: float, *, mode: str, **more: float
    ) -> Tensor:
        means = report.tallies.means(self.ranks) | more
        loss, nonfinite = means.pop("loss"), means.pop("nonfinite_tokens")
        means |= report.shares(self.ranks, rows=rows, seconds=time.perf_counter() - began)
        metrics = self._metrics[mode]
        for name, value in means.items():
            if not math.isnan(value):
                metrics[name].append(value)
        if self.packed.compiled is not None:
            metrics["update/compiled_graphs"].append(float(self.packed.compiled.graphs))
        if mode == "train":
            self.guard.loss_is_finite = math.isfinite(loss) and not nonfinite
            metrics["nonfinite/tokens"].append(nonfinite)
            metrics["nonfinite/steps"].append(float(self.guard.total))
        return torch.tensor(loss, device=self.accelerator.device)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train; `resume_from_checkpoint=True` continues from the latest whole checkpoint."""
        found = checkpoint.begin(self, resume_from_checkpoint)
        return super().train(found, *args, **kwargs)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if not self.watch.finished:
            super()._run_epoch(*args, **kwargs)

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluation on the way: it changes no weight."""
        with safety.random_states_kept(self.accelerator.device):
            return super()._evaluate(*args, **kwargs)

    def _determine_best_metric(self, *args: Any, **kwargs: Any) -> bool:
        try:
            return super()._determine_best_metric(*args, **kwargs)
        except KeyError as error:  # known once there are metrics
            raise ACPOError(error.args[0]) from error

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        if self.watch.stopped and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        return super()._finalize_training(*args, **kwargs)

    def _get_output_dir(self, trial: Any = None) -> str:
        return str(self._staging.folder or super()._get_output_dir(trial))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial))
        final = folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with checkpoint.saving(folder, final.name), self._staging.of(self, final):
            super()._save_checkpoint(model, trial)
        if self._staging.unpushed:
            self._staging.unpushed = False
            self._push_from_checkpoint(str(final))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Uploads run in the background, so they wait until the folder has its final name."""
        if self._staging.folder is not None:
            self._staging.unpushed = True
            return
        super()._push_from_checkpoint(checkpoint_folder)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        checkpoint.save_trainer(self, output_dir)

    def _load_from_checkpoint(self, folder: str, model: Any = None) -> None:
        super()._load_from_checkpoint(folder, model)
        if not self.is_fsdp_enabled:  # whose own file holds the trained one
            checkpoint.load_trained_adapter(self.model if model is None else model, folder)

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint_folder)
        if checkpoint_folder is not None:
            checkpoint.load_trainer(self, checkpoint_folder)
