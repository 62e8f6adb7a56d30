"""What becomes of a step whose loss or gradient is not finite."""

from typing import Any

import torch
from torch.nn.utils import get_total_norm
from transformers import TrainerCallback

from acpo.errors import NonFiniteError


class NonFiniteGuard(TrainerCallback):
    """Drops the gradient of a non-finite step, counts it, and stops a run that stays broken."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.in_a_row = 0  # consecutive steps skipped
        self.total = 0  # steps skipped since the run began
        self.loss_is_finite = True  # set by the trainer before each optimizer step

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Called between gradient clipping and the optimizer."""
        trained = [p for p in model.parameters() if p.grad is not None]
        norm = get_total_norm([p.grad for p in trained])
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        finite = bool(torch.isfinite(norm))
        if finite and self.loss_is_finite:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        self.total += 1
        for parameter in trained:
            parameter.grad = None
        if self.in_a_row >= self.most:
            raise NonFiniteError(self._advice(state.global_step, float(norm)))

    def _advice(self, step: int, norm: float) -> str:
        what = "loss" if not self.loss_is_finite else f"gradient norm ({norm})"
        return (
            f"max_nonfinite_steps={self.most}: the {what} was not finite for {self.in_a_row} "
            f"steps in a row, the last at step {step}. Look at grad_norm and ratio_max before the "
            "first of them: if they grew, lower learning_rate or max_grad_norm; if not, check the "
            "weights of the model and, with vLLM, sampling/sampling_logp_difference"
        )

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps."""
        return {"in_a_row": self.in_a_row, "total": self.total}

    def load(self, state: dict[str, int]) -> None:
        self.in_a_row, self.total = state["in_a_row"], state["total"]
