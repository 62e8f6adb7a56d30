"""The reward that is logged is the one that is trained on."""

import statistics

import pytest
from trl import GRPOConfig, GRPOTrainer

from engines.tiny import odd_tokens, recorded


def every_other(completion_ids, **_):
    """A verdict on every other completion alone: 1 or 2."""
    return [None if i % 2 else 1.0 + i % 4 / 2 for i in range(len(completion_ids))]


def length(completion_ids, **_):
    return [float(len(ids)) for ids in completion_ids]


def form(completion_ids, **_):
    return [0.1] * len(completion_ids)


@pytest.mark.parametrize(
    ("rewards", "weights", "added"),
    [
        ([every_other], None, 0.0),
        ([every_other, length], [1.0, 0.0], 0.0),
        ([every_other, form], None, 0.1),
    ],
    ids=["alone", "beside one of weight 0", "beside another"],
)
def test_completions_without_a_verdict_are_not_counted(tmp_path, rewards, weights, added):
    trainer, _ = recorded(tmp_path, rewards=rewards, reward_weights=weights)
    log = trainer.state.log_history[0]
    assert log["rewards/unjudged"] == 0.5
    assert log["reward"] == pytest.approx(1.5 + added)
    assert log["reward_std"] == pytest.approx(statistics.stdev([1.0, 2.0, 1.0, 2.0]))


def test_where_all_are_judged_the_numbers_are_those_of_trl(tmp_path):
    options = {"rewards": [odd_tokens, length, form], "reward_weights": [1.0, 0.3, 0.0]}
    ours, _ = recorded(tmp_path / "ours", method="grpo", **options)
    stock = GRPOTrainer, GRPOConfig
    theirs, _ = recorded(tmp_path / "theirs", kind=stock, loss_type="grpo", **options)
    a, b = ours.state.log_history[0], theirs.state.log_history[0]
    for name in ("reward", "reward_std"):
        assert a[name] == b[name] > 0


def test_verdicts_that_fail_late_do_not_end_a_run(tmp_path):
    def right(completion_ids, trainer_state, **_):
        sound = trainer_state.global_step < 11
        return [1.0 if sound or i % 8 == 0 else None for i in range(len(completion_ids))]

    trainer, _ = recorded(
        tmp_path, rewards=[right, form], num_generations=8, max_steps=24, stop_on_collapse=True
    )
    assert trainer.state.global_step == 24 and not trainer.watch.stopped
