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
import math
import time
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from datasets import IterableDataset
from torch import Tensor
from transformers import ProcessorMixin
from transformers.utils import logging
from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

from acpo.engines.trl import checks, memory
from acpo.engines.trl.attention import HALF, choose_attention
from acpo.engines.trl.config import ACPOConfig
from acpo.engines.trl.forward import add_policy_forward
from acpo.engines.trl.guard import NonFiniteGuard, is_finite
from acpo.engines.trl.minibatch import MiniBatch
from acpo.engines.trl.ranks import Ranks
from acpo.engines.trl.recording import RolloutRecorder
from acpo.engines.trl.refusals import refuse_model
from acpo.engines.trl.resume import ResumableTrainer
from acpo.engines.trl.rewards import check_signature, checked_reward
from acpo.engines.trl.rollouts import EpochSampler, PromptStream
from acpo.engines.trl.sampler import refuse_sampler
from acpo.engines.trl.update import PackedUpdate, Report, UpdateSettings
from acpo.errors import ACPOError

logger = logging.get_logger(__name__)


class ACPOTrainer(ResumableTrainer):
    """Trains a causal language model with any method of the table.

    Takes what `trl.GRPOTrainer` takes, with an `ACPOConfig`.

    Args:
        model: a hub id, a folder, or a loaded model; PEFT models train their adapters.
        reward_funcs: one reward function or several; `None` from a function means no verdict.
        args: the options.
        train_dataset: rows with a "prompt", as text or as a conversation.
        eval_dataset: likewise.
        processing_class: the tokenizer; needed if `model` is a loaded model.
        **kwargs: anything else `GRPOTrainer` takes.
    """

    _tag_names = ["trl", "acpo"]  # noqa: RUF012
    _paper = {  # noqa: RUF012
        "title": "ACPO: Asymmetric Credit Policy Optimization via Mode-Local Entropy Surrogate"
    }

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: ACPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        args = ACPOConfig(output_dir="acpo-output") if args is None else args
        if not isinstance(args, ACPOConfig):
            raise ACPOError(f"args is a {type(args).__name__}; pass an ACPOConfig")
        if processing_class is None and not isinstance(model, str):
            raise ACPOError("processing_class is missing: a loaded model needs its tokenizer")
        if isinstance(processing_class, ProcessorMixin):
            raise ACPOError("images are not supported; pass the tokenizer as processing_class")
        environment = kwargs.get("environment_factory") is not None
        if args.process_index == 0:
            checks.check_output_folder(str(args.output_dir))
        checks.check_dataset(train_dataset, args, has_environment=environment)
        self._name = args.objective.title
        super().__init__(
            model=model,
            reward_funcs=self._checked_rewards(
                reward_funcs,
                # Rollout functions and environments bring columns of their own.
                None if environment or kwargs.get("rollout_func") else train_dataset,
            ),
            args=args.per_optimizer_step(),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            **kwargs,
        )
        self._prepare_update()
        if not isinstance(train_dataset, IterableDataset):
            template = self.chat_template
            checks.check_prompts(
                train_dataset, self._tokenizer, room=self.prompt_room, template=template
            )

    @staticmethod
    def _checked_rewards(reward_funcs: Any, dataset: Any) -> Any:
        if reward_funcs is None:
            return None
        columns = getattr(dataset, "column_names", None)
        functions = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        checked = []
        for function in functions:
            plain = callable(function) and not isinstance(function, torch.nn.Module)
            if plain and columns is not None:
                check_signature(function, columns)
            checked.append(checked_reward(function) if plain else function)
        return checked

    def _prepare_update(self) -> None:
        args = self.args
        self.policy = self.model.get_base_model() if is_peft_model(self.model) else self.model
        policy = self.policy
        refuse_model(self.model, args)
        add_policy_forward(policy)
        if self.ref_model is not None:
            add_policy_forward(self.accelerator.unwrap_model(self.ref_model))
        device = self.accelerator.device
        half = self.accelerator.mixed_precision in ("bf16", "fp16") or policy.dtype in HALF
        attention = choose_attention(
            policy, device=device, half_precision=half, wanted=args.update_layout
        )
        logger.info(f"update layout: {attention.layout} ({attention.reason})")
        self.ranks = Ranks(device)
        self.prompt_room = checks.prompt_room(policy.config, args)
        settings = UpdateSettings(
            method=args.objective,
            temperature=self.temperature,
            budget=args.max_tokens_per_pack or 0,
            beta=self.beta,
            corrects_kl=args.use_bias_correction_kl,
            entropy_coef=args.entropy_coef,
            off_policy_threshold=args.off_policy_mask_threshold,
            float32_head=args.cast_lm_head_to_fp32,
            logits_bytes=args.logits_bytes,
        )
        self.packed = PackedUpdate(
            settings, ranks=self.ranks, attention=attention, autocast=self.accelerator.autocast
        )
        self._decide_memory(policy, itemsize=2 if half else 4)
        refuse_sampler(self)
        self.guard = NonFiniteGuard(args.max_nonfinite_steps)
        self.add_callback(self.guard)
        size = 1 if isinstance(self.train_dataset, IterableDataset) else len(self.train_dataset)
        self.fresh_prompts = PromptStream(size, args.seed)
        if args.record_rollouts:
            self.recorder = self._make_recorder()

    def _make_recorder(self) -> RolloutRecorder:
        args = self.args
        header = {
            "source": "train",
            "model": str(self.policy.config._name_or_path),
            "vocab_size": self.policy.config.get_text_config().vocab_size,
            "group": self.num_generations,
            "temperature": self.temperature,
            "max_tokens": self.max_completion_length,
            "method": args.method,
            "seed": args.seed,
        }
        path = Path(args.output_dir) / "trace"
        return RolloutRecorder(path, header, every=args.record_every, tokenizer=self._tokenizer)

    def _decide_memory(self, policy: Any, itemsize: int) -> None:
        """The token budget of a pack, and whether to recompute activations."""
        args, device = self.args, self.accelerator.device
        config = policy.config.get_text_config()
        free = memory.free_bytes(
            policy, device, logits_bytes=args.logits_bytes, optimizer_started=False
        )
        per_token = functools.partial(memory.activation_bytes, config, itemsize=itemsize)
        if args.gradient_checkpointing is None:
            longest = 2 * args.max_completion_length
            fitting = memory.pack_budget(free, per_token(checkpointing=False), device)
            args.gradient_checkpointing = device.type == "cuda" and fitting < longest
            if args.gradient_checkpointing and is_peft_model(self.model):
                self.model.enable_input_require_grads()
        if not self.packed.settings.budget:
            checkpointing = bool(args.gradient_checkpointing)
            self.packed.settings.budget = memory.pack_budget(
                free, per_token(checkpointing=checkpointing), device
            )
        logger.info(
            f"packs of {self.packed.settings.budget} tokens, gradient checkpointing "
            f"{'on' if args.gradient_checkpointing else 'off'}"
        )

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

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """The mini-batch of this step, from a new rollout when the last is used up."""
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        steps = self.args.steps_per_generation
        if self._step % (steps * self.num_iterations) == 0 or self._buffered_inputs is None:
            number = self._step // (steps * self.num_iterations)
            recorder = self.recorder if self.recorder and self.recorder.begin(number) else None
            rollout: Any = self._rollout(generation_batch)
            if recorder is not None:
                self._record(recorder, rollout)
            rollout = shuffle_sequence_dict(rollout)
            self._buffered_inputs = split_tensor_dict(rollout, steps)
        return self._buffered_inputs[self._step % steps]

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One optimizer step's forward and backward passes."""
        began = time.perf_counter()
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        inputs = self._prepare_inputs(inputs)
        updating = time.perf_counter()
        batch = MiniBatch.read(inputs, share=1 / self.args.steps_per_generation)
        each_pack = self.accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False)
        no_sync = functools.partial(self.accelerator.no_sync, model)
        with self.packed.attention.installed(self.policy):
            report = self.packed.run(
                model,
                batch,
                backward=self.accelerator.backward,
                **({} if each_pack else {"no_sync": no_sync}),
            )
        loss = self._log_update(report, len(batch), updating, mode="train")
        every = self.args.torch_empty_cache_steps
        if every is not None and self.state.global_step % every == 0 and loss.is_cuda:
            torch.cuda.empty_cache()
        self._step += 1
        self._metrics["train"]["step_time"].append(time.perf_counter() - began)
        return loss

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        """Evaluation: the same loss, without gradients."""
        began = time.perf_counter()
        batch = MiniBatch.read(inputs, share=1.0)
        with self.packed.attention.installed(self.policy):
            report = self.packed.run(model, batch)
        return self._log_update(report, len(batch), began, mode="eval")

    def _log_update(self, report: Report, rows: int, began: float, *, mode: str) -> Tensor:
        means = report.tallies.means(self.ranks)
        loss, nonfinite = means.pop("loss"), means.pop("nonfinite_tokens")
        seconds = time.perf_counter() - began
        local = torch.tensor(
            [report.rows_skipped, rows, report.tokens_skipped, report.tokens, report.capacity],
            dtype=torch.float64,
            device=self.ranks.device if self.ranks.device.type != "mps" else "cpu",
        )
        skipped, rows_all, tokens_skipped, tokens, capacity = self.ranks.sum(local).tolist()
        metrics = self._metrics[mode]
        for name, value in means.items():
            if not math.isnan(value):
                metrics[name].append(value)
        metrics["update/rows_skipped"].append(skipped / max(rows_all, 1))
        metrics["update/tokens_skipped"].append(tokens_skipped / max(tokens + tokens_skipped, 1))
        metrics["update/pack_fill"].append(tokens / max(capacity, 1))
        metrics["update/packs"].append(float(report.packs))
        metrics["update/tokens_per_second"].append(tokens / max(seconds, 1e-9))
        if mode == "train":
            self.guard.loss_is_finite = is_finite(loss, nonfinite)
            metrics["nonfinite/tokens"].append(nonfinite)
            metrics["nonfinite/steps"].append(float(self.guard.total))
        return torch.tensor(loss, device=self.accelerator.device)
