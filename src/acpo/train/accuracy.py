"""Accuracy on held-out problems, before and after training, with 95% intervals."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import TrainerCallback
from transformers.utils import logging

from acpo.engines.trl.identity import described_data, read
from acpo.engines.trl.safety import random_states_kept
from acpo.intervals import Estimate, share_interval
from acpo.linefile import write_whole
from acpo.verify.rewards import completion_text

if TYPE_CHECKING:
    from datasets import Dataset


RIGHT = 1.0
"""The least reward of a right answer: a full score, as of a task's grader."""

logger = logging.get_logger(__name__)


class Sample(NamedTuple):
    """One judged completion."""

    prompt: str
    completion: str
    correct: bool


def question(prompt: Any) -> str:
    """What a prompt asks: itself, or the last message of a conversation."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def accuracy(samples: Sequence[Sample]) -> Estimate | None:
    """The share of correct completions, averaged over prompts. None without any."""
    groups: dict[str, list[bool]] = defaultdict(list)
    for sample in samples:
        groups[sample.prompt].append(sample.correct)
    means = [sum(group) / len(group) for group in groups.values()]
    return share_interval(means, draws=len(samples))


class BeforeAndAfter(TrainerCallback):
    """Measures accuracy on the held-out problems at the start and at the end of training.

    What was measured at the start is kept in a file, so that a resumed run can report it, with what
    it was measured on: of other problems, or other numbers of completions, it says nothing.
    """

    def __init__(self, held_out: "Dataset", trainer: Any) -> None:
        self.held_out, self.trainer = held_out, trainer
        self.kept = Path(trainer.args.output_dir) / "before.json"
        self.before: list[Sample] = []
        self.after: list[Sample] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            with random_states_kept(self.trainer.accelerator.device):  # training draws from them
                self.before = self.measure()
        else:
            self.before = self._read(Path(str(args.resume_from_checkpoint)).parent)
        if self.before and state.is_world_process_zero:
            kept = {**self._measured_on(), "samples": self.before}
            write_whole(self.kept, json.dumps(kept))

    def finish(self) -> None:
        """Measure the end, once the model is saved: a reward function that raises loses nothing."""
        self.after = self.measure()

    def _measured_on(self) -> dict[str, Any]:
        group = self.trainer.num_generations_eval
        return {"held_out": described_data(self.held_out), "num_generations_eval": group}

    def _read(self, came_from: Path) -> list[Sample]:
        """What was kept here, or in the folder that the run comes from."""
        now = self._measured_on()
        kept = read(self.kept.parent, self.kept.name) or read(came_from, self.kept.name) or {}
        then = {name: kept.get(name) for name in now}
        if then == now:
            return [Sample(*row) for row in kept["samples"]]
        if self.trainer.accelerator.is_main_process:
            differ = [f"{name}: {then.get(name)} then, {now[name]} now" for name in now]
            logger.warning(
                f"the report will have no accuracy from before training: {self.kept} cannot be "
                f"read, or was measured otherwise ({'; '.join(differ)}), and the model has changed "
                "since; set held_out, held_out_data and num_generations_eval as they were"
            )
        return []

    def measure(self) -> list[Sample]:
        """Completions of the held-out problems by the model as it is now."""
        from accelerate.utils import gather_object

        samples: list[Sample] = []

        def heard(rewards: Sequence[float | None], columns: dict[str, Any]) -> None:
            told = zip(columns["prompts"], columns["completions"], rewards, strict=True)
            for prompt, completion, value in told:
                if value is not None:
                    said = completion_text(completion)
                    samples.append(Sample(question(prompt), said, value >= RIGHT))

        reward = self.trainer.reward_funcs[0]
        reward.heard = heard
        try:
            self.trainer.evaluate(eval_dataset=self.held_out)
        finally:
            reward.heard = None
        found = gather_object(samples)
        if not found and self.trainer.accelerator.is_main_process:
            logger.warning(
                f"the accuracy on {len(self.held_out)} held-out problems is unknown: the reward "
                f"function {self.trainer.reward_func_names[0]!r} gave no completion a number"
            )
        return found
