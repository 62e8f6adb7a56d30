"""Accuracy on held-out problems, before and after training, with 95% intervals."""

import functools
import inspect
import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import TrainerCallback

from acpo.verify.rewards import completion_text

if TYPE_CHECKING:
    from datasets import Dataset

Z = 1.959964  # 97.5% point of the normal distribution


class Sample(NamedTuple):
    """One judged completion."""

    prompt: str
    completion: str
    correct: bool


class Interval(NamedTuple):
    """A share and its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1%} [{self.low:.1%}, {self.high:.1%}]"


def accuracy(samples: Sequence[Sample]) -> Interval:
    """The share of correct completions, averaged over prompts.

    With one completion per prompt the interval is Wilson's. With several, completions of one
    prompt are not independent: the interval is the normal one over the prompts' own means.
    """
    groups: dict[str, list[bool]] = defaultdict(list)
    for sample in samples:
        groups[sample.prompt].append(sample.correct)
    means = [sum(group) / len(group) for group in groups.values()]
    n, mean = len(means), sum(means) / len(means)
    if all(len(group) == 1 for group in groups.values()):
        centre = (mean + Z * Z / (2 * n)) / (1 + Z * Z / n)
        half = Z / (1 + Z * Z / n) * math.sqrt(mean * (1 - mean) / n + Z * Z / (4 * n * n))
        # Rounding must not put the share itself outside: at 0 and 1 it is the interval's end.
        return Interval(
            mean, max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))
        )
    spread = sum((value - mean) ** 2 for value in means) / max(1, n - 1)
    half = Z * math.sqrt(spread / n)
    return Interval(mean, max(0.0, mean - half), min(1.0, mean + half))


@dataclass
class Recorder:
    """Listens to the correctness reward while accuracy is being measured."""

    samples: list[Sample] = field(default_factory=list)
    listening: bool = False

    def around(self, reward: Callable[..., Any]) -> Callable[..., Any]:
        """The same reward function, heard by this recorder."""
        if inspect.iscoroutinefunction(reward):

            @functools.wraps(reward)
            async def heard_async(prompts: Any, completions: Any, **columns: Any) -> Any:
                values = await reward(prompts=prompts, completions=completions, **columns)
                self._hear(prompts, completions, values)
                return values

            return heard_async

        @functools.wraps(reward)
        def heard(prompts: Any, completions: Any, **columns: Any) -> Any:
            values = reward(prompts=prompts, completions=completions, **columns)
            self._hear(prompts, completions, values)
            return values

        return heard

    def _hear(self, prompts: Any, completions: Any, values: Any) -> None:
        if not self.listening:
            return
        for prompt, completion, value in zip(prompts, completions, values, strict=True):
            if value is not None:
                text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
                self.samples.append(Sample(text, completion_text(completion), value > 0))


class BeforeAndAfter(TrainerCallback):
    """Measures accuracy on the held-out problems at the start and at the end of training.

    What was measured at the start is kept in a file, so that a resumed run can report it.

    Attributes:
        before: samples of the model as it came.
        after: samples of the trained model.
    """

    def __init__(self, recorder: Recorder, held_out: "Dataset", trainer: Any) -> None:
        self.recorder, self.held_out, self.trainer = recorder, held_out, trainer
        self.kept = Path(trainer.args.output_dir) / "before.json"
        self.before: list[Sample] = []
        self.after: list[Sample] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            self.before = self.measure()
            if state.is_world_process_zero:
                self.kept.write_text(json.dumps(self.before))
        elif self.kept.is_file():
            self.before = [Sample(*row) for row in json.loads(self.kept.read_text())]

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.after = self.measure()

    def measure(self) -> list[Sample]:
        """Completions of the held-out problems by the model as it is now."""
        from accelerate.utils import gather_object

        self.recorder.samples, self.recorder.listening = [], True
        try:
            self.trainer.evaluate(eval_dataset=self.held_out)
        finally:
            self.recorder.listening = False
        return gather_object(self.recorder.samples)
