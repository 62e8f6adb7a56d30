"""Exact resume: a checkpoint holds everything the next step depends on."""

import shutil
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging

from acpo.engines.trl import checkpoint as checkpoints
from acpo.engines.trl.guard import NonFiniteGuard
from acpo.engines.trl.sampler import SamplingTrainer

logger = logging.get_logger(__name__)


class ResumableTrainer(SamplingTrainer):
    """Adds to each checkpoint the rollout in use and the place in it, and writes it atomically."""

    guard: NonFiniteGuard
    _staging: Path | None = None
    _unpushed: bool = False

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train; `resume_from_checkpoint=True` continues from the latest whole checkpoint.

        A run killed before its first checkpoint starts over. A checkpoint that was cut short is
        passed over with a warning.
        """
        if resume_from_checkpoint is True:
            usable, broken = checkpoints.whole_checkpoints(Path(self.args.output_dir))
            for path, wrong in broken.items():
                logger.warning(f"{path} is not used: {wrong}")
            if not usable:
                logger.warning(f"no checkpoint in {self.args.output_dir}; starting from the model")
            resume_from_checkpoint = str(usable[-1]) if usable else None
        elif resume_from_checkpoint:
            checkpoints.require_whole(Path(resume_from_checkpoint))
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _get_output_dir(self, trial: Any = None) -> str:
        return str(self._staging) if self._staging is not None else super()._get_output_dir(trial)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial))
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        staging = folder / checkpoints.STAGING
        writes = self._writes_folder()
        if writes:
            shutil.rmtree(staging, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._staging = staging
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._staging = None
        self.accelerator.wait_for_everyone()
        best = self.state.best_model_checkpoint
        if best is not None and Path(best).parent == staging:
            self.state.best_model_checkpoint = str(folder / name)
            if self.args.should_save:
                self.state.save_to_json(str(staging / name / TRAINER_STATE_NAME))
        if writes:
            checkpoints.publish(staging / name, folder / name)
            checkpoints.forget_old(
                folder, self.args.save_total_limit, keep=self.state.best_model_checkpoint
            )
        self.accelerator.wait_for_everyone()
        if self._unpushed:
            self._unpushed = False
            self._push_from_checkpoint(str(folder / name))

    def _writes_folder(self) -> bool:
        if self.args.save_on_each_node:
            return self.accelerator.is_local_main_process
        return self.accelerator.is_main_process

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Uploads run in the background, so they wait until the folder has its final name."""
        if self._staging is not None:
            self._unpushed = True
            return
        super()._push_from_checkpoint(checkpoint_folder)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        state = {
            "step": self._step,
            "rollout": self._buffered_inputs,
            "fresh_prompts": self.fresh_prompts.position,
            "initial_entropy": self.args.initial_entropy,
            "budget": self.packed.settings.budget,
            "guard": self.guard.state(),
        }
        checkpoints.save_state(state, output_dir, self.accelerator.process_index)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        state = checkpoints.load_state(checkpoint, self.accelerator.process_index)
        self._step = state["step"]
        self._buffered_inputs = self._on_device(state["rollout"])
        self.fresh_prompts.position = state["fresh_prompts"]
        self.packed.settings.budget = state["budget"]
        self.guard.load(state["guard"])
        if state["initial_entropy"] is not None and self.args.method == "gtpo":
            self.set_initial_entropy(state["initial_entropy"])

    def _on_device(self, rollout: Any) -> Any:
        if rollout is None:
            return None
        device = self.accelerator.device
        return [
            {k: v.to(device) if hasattr(v, "to") else v for k, v in part.items()}
            for part in rollout
        ]
