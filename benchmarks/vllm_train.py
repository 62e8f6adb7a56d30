"""Training on vLLM's rollouts: accuracy of every rollout, and on held-out problems at both ends.

Part `train` of vllm_colocated.py, for any method of the recipe:

    python benchmarks/vllm_colocated.py --parts train --out results --label _acpo --method acpo
    python benchmarks/vllm_colocated.py ... --save_strategy steps --save_steps 4    # kill -9, then
    python benchmarks/vllm_colocated.py ... --save_strategy steps --save_steps 4 --resume

The record is written at every log entry. That of a resumed run has the curve of the whole, and says
from which update it went on.
"""

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback
from vllm_colocated import Colocated

from acpo.train.accuracy import accuracy

KEPT = (
    *("reward", "entropy", "aligned", "ratio", "ratio_max", "update/positive_share"),
    *("completions/mean_length", "completions/clipped_ratio", "step_time"),
    *("sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max"),
    *("sampling/importance_sampling_ratio/mean", "sampling/importance_sampling_ratio/min"),
    *("sampling/mode_exposed", "dynamic_sampling/rounds", "nonfinite/steps"),
)


class Curve(TrainerCallback):
    """Keeps what was logged, and when."""

    def __init__(self, save: Callable[[dict[str, Any]], None], place: Colocated) -> None:
        self.save, self.process_began, self.resumed_at = save, place.began, 0
        self.limit, self.stopped = place.args.stop_after, False
        self.first_update: float | None = None
        self.began = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.resumed_at, self.began = state.global_step, time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.first_update is None:
            self.first_update = round(time.perf_counter() - self.process_began, 2)
        late = self.limit is not None and time.perf_counter() - self.process_began > self.limit
        if late and state.global_step < state.max_steps:
            self.stopped = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.save(self.record(state))

    def record(self, state: Any) -> dict[str, Any]:
        curve = [
            {"update": log["step"], **{k: log[k] for k in KEPT if k in log}}
            for log in state.log_history
            if any(key in log for key in KEPT)
        ]
        return {
            "updates": state.global_step,
            "resumed_at": self.resumed_at,
            "stopped": self.stopped,
            "seconds_to_first_update": self.first_update,
            "train_seconds": round(time.perf_counter() - self.began, 1),
            "curve": curve,
        }


def measure(place: Colocated, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    trainer, probe = place.trainer, place.run.probe
    config = trainer.args
    about = {
        "learning_rate": config.learning_rate,
        "seed": config.seed,
        "completions_per_update": config.per_device_train_batch_size,
        "updates_per_rollout": config.steps_per_generation,
        "correction": trainer.vllm_importance_sampling_correction
        and trainer.vllm_importance_sampling_mode,
        "sleep": config.vllm_enable_sleep_mode,
    }
    curve = Curve(lambda found: save({**about, **found}), place)
    trainer.add_callback(curve)
    trainer.train(resume_from_checkpoint=True if place.args.resume else None)
    if probe:
        probe.finish()
    record = {**about, **curve.record(trainer.state)}
    for name in ("before", "after"):
        samples = getattr(probe, name) if probe else []
        found = accuracy(samples)
        record[name] = None if found is None else {**found._asdict(), "samples": len(samples)}
    return record
