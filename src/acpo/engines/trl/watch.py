"""Says in words when a run leaves the range of runs that learn, and stops a collapsed one.

The limits come from the recorded studies (docs/results.md): no run of SAPO or GRPO that learnt at
its best rate passes one, and collapsed runs do. ACPO's pass `POSITIVE_SHARE` and learn as well.
`UNDONE` comes from no study: those that logged it have a judge that refuses such answers.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from transformers import TrainerCallback
from transformers.utils import logging

from acpo.engines.trl.runlog import RunLog

logger = logging.get_logger(__name__)

LOGS, UPDATES = 5, 10
"""A value is its mean over the last so many log entries, and at least so many updates."""

POSITIVE_SHARE = 0.05
ENTROPY_FALL, ENTROPY_RISE = 0.1, 2.0
"""Times the first logged entropy."""

RATIO, RATIO_MAX = (0.8, 1.25), 50.0
SILENT = 0.99
UNDONE = 0.1
REWARD_FALL, REWARD_COLLAPSE = 0.5, 0.25
"""Times the best reward so far."""


class Sign(NamedTuple):
    """Something to be told about a run, once.

    Attributes:
        key: the logged value it is about.
        shown: whether its mean lies outside its range, given the first value and the best mean.
        words: what it means and what to try; `{value}`, `{first}` and `{best}` are filled in.
    """

    key: str
    shown: Callable[[float, float, float], bool]
    words: str


COLLAPSED = Sign(
    "reward",
    lambda value, first, best: best > 0 and value < REWARD_COLLAPSE * best,
    "the run has collapsed: reward {value:.3g}, under a quarter of its best ({best:.3g}). It "
    "seldom comes back. Start again from the model at a third of learning_rate (on "
    "Qwen2.5-Coder-0.5B and GSM8K, ACPO collapses at 3e-6 and learns at 1e-6), or with "
    "method='acpo_balanced' if update/positive_share was low; stop_on_collapse=True ends such runs",
)
SIGNS = (
    Sign(
        "update/positive_share",
        lambda value, first, best: value < POSITIVE_SHARE,
        "update/positive_share is {value:.1%}: nearly all of the update lowers tokens of bad "
        "answers and little raises those of good ones. With ACPO that is usual, and most such runs "
        "go on learning; where the reward falls as well, try a third of learning_rate, or "
        "method='acpo_balanced', which gives both branches their share",
    ),
    Sign(
        "entropy",
        lambda value, first, best: value < ENTROPY_FALL * first,
        "entropy fell from {first:.3g} to {value:.3g}: completions of a prompt become the same, "
        "and groups stop differing. Where nearly all are right, that is the end of learning; else "
        "try a lower learning_rate, beta=0.001, entropy_coef=0.001 or a higher temperature",
    ),
    Sign(
        "entropy",
        lambda value, first, best: value > ENTROPY_RISE * first,
        "entropy rose from {first:.3g} to {value:.3g}: the policy is being unlearnt. Try a third "
        "of learning_rate, and look at update/positive_share",
    ),
    Sign(
        "ratio",
        lambda value, first, best: not RATIO[0] <= value <= RATIO[1],
        "the mean importance ratio is {value:.3g}, and should be near 1: updates are too far from "
        "the rollout. Try fewer updates per rollout (steps_per_generation, num_iterations) or a "
        "lower learning_rate",
    ),
    Sign(
        "ratio_max",
        lambda value, first, best: value > RATIO_MAX,
        "ratio_max is {value:.3g}: single tokens have moved far from the rollout. Try a lower "
        "learning_rate, max_grad_norm=0.2, or fewer updates per rollout",
    ),
    Sign(
        "frac_reward_zero_std",
        lambda value, first, best: value > SILENT,
        "the rewards of {value:.1%} of the groups are all equal, so that they train nothing. If "
        "answers are all wrong, look at some (acpo doctor, log_completions=True), at "
        "max_completion_length and at the reward; if all right, take harder problems. "
        "dynamic_sampling=True replaces such groups",
    ),
    Sign(
        "verify/left_undone",
        lambda value, first, best: value > UNDONE,
        "{value:.1%} of the completions are right and leave the arithmetic to the judge, which "
        "takes 10 + 2 for 12. Look at some (log_completions=True); where a problem can be copied "
        "as its own answer, task=arithmetic takes numbers in digits only",
    ),
    Sign(
        "reward",
        lambda value, first, best: best > 0 and value < REWARD_FALL * best,
        "reward fell to {value:.3g}, under half of its best ({best:.3g}). Try a third of "
        "learning_rate; a checkpoint from before the fall may be the better model",
    ),
    COLLAPSED,
)


class Watch(TrainerCallback):
    """Reads the logs of a run. Its memory is the log history, which a resumed run brings along.

    Where it `stops` a collapsed run, the best checkpoint is kept.
    """

    def __init__(self, *, stops: bool = False) -> None:
        self.stops = stops
        self.finished = False  # whether the run had no step left to take when it began
        self.stopped = False  # whether it was stopped
        self._log = RunLog()
        self._forget()

    def _forget(self) -> None:
        self._late: dict[str, list[tuple[int, float]]] = {}
        self._first: dict[str, float] = {}
        self._best: dict[str, float] = {}
        self._said: set[Sign] = set()
        self._shown: dict[Sign, str] = {}
        self._blind = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._forget()
        self.stopped = False
        if args is not None and (best := state.best_model_checkpoint):
            moved = Path(args.output_dir) / Path(best).name
            if not Path(best).exists() and moved.exists():
                state.best_model_checkpoint = str(moved)
        history = []
        for logs in state.log_history:
            history.append({**logs, "warnings": self._news(logs, logs.get("step", 0))})
        self.finished = state.global_step >= state.max_steps
        if args is not None and state.is_world_process_zero and not self.finished:
            self._log.begin(args, history)
        if self.finished and state.is_world_process_zero:
            logger.warning(
                f"finished: the checkpoint is at step {state.global_step} of {state.max_steps}, "
                "and nothing is trained; raise max_steps or num_train_epochs to go on"
            )

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs = {**(kwargs.get("logs") or {}), "step": state.global_step}
        news = self._news(logs, state.global_step)
        if state.is_world_process_zero:
            for words in news:
                logger.warning(f"step {state.global_step}: {words}")
            self._log.add({**logs, "warnings": news})
        self._tell_blind(state)
        if self.stops and COLLAPSED in self._shown:
            self.stopped = control.should_training_stop = True
            best = state.best_model_checkpoint
            if state.is_world_process_zero:
                kept = f"the weights are those of {best}" if best else "no checkpoint was saved"
                logger.warning(f"stop_on_collapse: stopped at step {state.global_step}; {kept}")

    def _tell_blind(self, state: Any) -> None:
        """Say once that rewards below 0 have no collapse that could be told."""
        value = self.mean("reward")
        if not self.stops or self._blind or value is None or self._best["reward"] >= 0:
            return
        self._blind = True
        if state.is_world_process_zero:
            logger.warning(
                f"stop_on_collapse: rewards are below 0 ({value:.3g}), where no collapse can be "
                "told. A constant added to them changes no advantage, and makes them positive"
            )

    def _news(self, logs: dict[str, Any], step: int) -> list[str]:
        """What a log entry shows that was not said before."""
        self._shown = self._read(logs, step)
        news = [words for sign, words in self._shown.items() if sign not in self._said]
        self._said |= set(self._shown)
        return news

    def _read(self, logs: dict[str, Any], step: int) -> dict[Sign, str]:
        """The signs a log entry shows, with their words."""
        for key in {sign.key for sign in SIGNS} & logs.keys():
            value = logs[key]
            if isinstance(value, int | float) and math.isfinite(value):
                self._first.setdefault(key, float(value))
                late = self._late.setdefault(key, [])
                late.append((step, float(value)))
                del late[: -max(LOGS, UPDATES)]
        found = {}
        for sign in SIGNS:
            value = self.mean(sign.key)
            if value is None or sign.key not in logs:
                continue
            best = self._best[sign.key] = max(value, self._best.get(sign.key, value))
            first = self._first[sign.key]
            if sign.shown(value, first, best):
                found[sign] = sign.words.format(value=value, first=first, best=best)
        return found

    def mean(self, key: str) -> float | None:
        """The mean of a logged value of late; None if there is too little to say."""
        late = self._late.get(key, [])
        if len(late) < LOGS or late[-1][0] < UPDATES:
            return None
        recent = [value for step, value in late if step > late[-1][0] - UPDATES]
        values = recent if len(recent) > LOGS else [value for _, value in late[-LOGS:]]
        return sum(values) / len(values)

    def is_best(self, args: Any, state: Any) -> bool:
        """Whether a checkpoint saved now is the one to keep if the run collapses later.

        The reward of the rollouts decides, unless evaluations do (`metric_for_best_model`).
        """
        reward = self.mean("reward")
        if not self.stops or args.metric_for_best_model is not None or reward is None:
            return False
        if state.best_metric is not None and reward <= state.best_metric:
            return False
        state.best_metric = reward
        return True
