"""A progress bar that shows what is learnt: the accuracy of the latest rollout."""

import sys
from typing import Any

from tqdm.auto import tqdm
from transformers import TrainerCallback


class LiveProgress(TrainerCallback):
    """One line for the whole run; where there is no terminal, a line now and then.

    Args:
        reward: name of the reward function whose mean is shown.
        is_accuracy: whether that mean is the share of right answers.
        lines: how many lines to print when the output is not a terminal.
    """

    def __init__(self, reward: str, *, is_accuracy: bool, lines: int = 10) -> None:
        self.is_accuracy = is_accuracy
        self.key, self.lines = f"rewards/{reward}/mean", lines
        self.bar: tqdm | None = None
        self.shown = ""
        self.next_line = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            terminal = sys.stderr.isatty()
            self.bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc="training",
                unit="update",
                disable=not terminal,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs = kwargs.get("logs") or {}
        if self.bar is None or logs.get(self.key) is None:
            return
        mean = logs[self.key]
        self.shown = f"accuracy {mean:.1%}" if self.is_accuracy else f"reward {mean:.3f}"
        self.bar.set_postfix_str(self.shown)
        if self.bar.disable and state.global_step >= self.next_line:
            self.next_line = state.global_step + state.max_steps / self.lines
            print(f"update {state.global_step}/{state.max_steps}  {self.shown}", flush=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.close()
