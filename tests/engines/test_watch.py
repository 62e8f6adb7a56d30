"""What a run is told about itself: nothing while it learns, once and in words when it does not."""

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import TrainerControl, TrainerState

from acpo.engines.trl import checkpoint
from acpo.engines.trl.watch import COLLAPSED, SIGNS, Watch
from engines.tiny import recorded

STUDIES = Path(__file__).parents[2] / "results" / "compare"
LOGGED = {
    "accuracy": "reward",
    "entropy": "entropy",
    "positive_share": "update/positive_share",
    "ratio_max": "ratio_max",
    "silent_groups": "frac_reward_zero_std",
}
HEALTHY = {
    "verify/left_undone": 0.05,
    "reward": 0.5,
    "entropy": 0.3,
    "ratio": 1.0,
    "ratio_max": 2.0,
    "frac_reward_zero_std": 0.2,
}


def told(watch, caplog, entries, state=None, control=None):
    """The warnings at log entries four updates apart."""
    caplog.clear()
    state = state or TrainerState(max_steps=10_000)
    for logs in entries:
        state.global_step += 4
        state.log_history.append({**logs, "step": state.global_step})
        watch.on_log(None, state, control or TrainerControl(), logs=logs)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("update/positive_share", 0.03, "positive_share is 3.0%.*acpo_balanced"),
        ("entropy", 0.01, "entropy fell from 0.3 to 0.01.*beta"),
        ("entropy", 0.9, "entropy rose from 0.3 to 0.66.*learning_rate"),
        ("ratio", 1.5, "mean importance ratio is 1.3,.*steps_per_generation"),
        ("ratio_max", 80.0, "ratio_max is 64.4"),
        ("frac_reward_zero_std", 1.0, "rewards of 100.0% of the groups.*dynamic_sampling"),
        ("verify/left_undone", 0.4, "12.0% of the completions.*task=arithmetic"),
        ("reward", 0.2, "reward fell to 0.2, under half of its best"),
    ],
)
def test_a_value_out_of_range_is_told_once_with_what_to_try(caplog, key, value, words):
    watch = Watch()
    assert told(watch, caplog, [HEALTHY] * 6) == []
    state = TrainerState(max_steps=100, global_step=24)
    first = told(watch, caplog, [{**HEALTHY, key: value}] * 6, state)
    assert len(first) == 1
    assert re.search(words, first[0])
    assert told(watch, caplog, [{**HEALTHY, key: value}] * 6, state) == []


def test_a_spike_and_a_start_are_not_told(caplog):
    watch = Watch()
    entries = [{**HEALTHY, "update/positive_share": 0.2}] * 5
    entries += [{**HEALTHY, "update/positive_share": 0.01, "ratio_max": 60.0, "reward": 0.0}]
    assert told(watch, caplog, entries + [HEALTHY] * 5) == []
    assert told(Watch(), caplog, [{**HEALTHY, "update/positive_share": 0.01}] * 2) == []


def test_a_collapse_is_told_and_stops_only_if_asked(caplog):
    falling = [HEALTHY] * 6 + [{**HEALTHY, "reward": 0.01}] * 8
    for stops in (False, True):
        watch, control = Watch(stops=stops), TrainerControl()
        words = told(watch, caplog, falling, control=control)
        assert sum("the run has collapsed: reward" in text for text in words) == 1
        assert control.should_training_stop is watch.stopped is stops


def test_that_rewards_below_0_show_no_collapse_is_told_once(caplog):
    falling = [{**HEALTHY, "reward": reward} for reward in (-0.1, -10.0) for _ in range(6)]
    assert told(Watch(), caplog, falling) == []
    (words,) = told(Watch(stops=True), caplog, falling)
    assert "rewards are below 0 (-0.1), where no collapse can be told" in words
    assert told(Watch(stops=True), caplog, [{**HEALTHY, "reward": 0.0}] * 6) == []


def test_a_resumed_run_remembers_what_was_said_and_its_best(caplog):
    state = TrainerState(max_steps=1000)
    told(Watch(), caplog, [HEALTHY] * 6 + [{**HEALTHY, "update/positive_share": 0.01}] * 6, state)
    watch = Watch()
    watch.on_train_begin(None, state, None)
    assert told(watch, caplog, [{**HEALTHY, "update/positive_share": 0.01}], state) == []
    fallen = told(watch, caplog, [{**HEALTHY, "reward": 0.0}] * 5, state)
    assert any("collapsed" in text for text in fallen)


def signs(study, phase="study"):
    """Of every row's runs, the signs they show and the update of each."""
    shown: dict[str, list[dict]] = {}
    for line in (STUDIES / study / "runs.jsonl").read_text().splitlines():
        run = json.loads(line)
        if run["spec"]["phase"] == phase:
            watch, first = Watch(), {}
            for entry in run["curve"]:
                logs = {LOGGED[k]: v for k, v in entry.items() if k in LOGGED and v is not None}
                for sign in watch._read(logs, entry["step"]):
                    first.setdefault(sign, entry["step"])
            shown.setdefault(run["spec"]["row"], []).append(first)
    return shown


SHARE, ENTROPY_FELL = SIGNS[:2]


def test_recorded_runs_that_learnt_show_nothing_and_collapsed_ones_were_forewarned():
    shown = signs("tiny")
    for row in ("sapo", "grpo", "dapo", "gspo", "cispo", "gmpo", "acpo_balanced"):
        assert shown[row] and not any(shown[row]), row
    assert len(shown["acpo"]) == 8 and all(SHARE in first for first in shown["acpo"])
    collapsed = [first for first in shown["acpo"] if COLLAPSED in first]
    assert collapsed and all(first[SHARE] < first[COLLAPSED] for first in collapsed)
    assert all(COLLAPSED in first or len(first) for first in shown["shannon"])


@pytest.mark.parametrize(
    ("study", "learnt", "warned", "collapsed"),
    [
        ("qwen2.5-0.5b-gsm8k", [True] * 6 + [False] * 2, 68, 112),
        ("qwen2.5-0.5b-arithmetic", [True] * 4, 24, 96),
    ],
)
def test_what_runs_of_a_real_model_show_is_what_the_page_says(study, learnt, warned, collapsed):
    shown = signs(study)
    assert not any(shown["sapo"] + shown["grpo"])
    assert sorted((SHARE in first for first in shown["acpo"]), reverse=True) == learnt
    assert not any(COLLAPSED in first for first in shown["acpo"])
    if study.endswith("arithmetic"):
        assert all(ENTROPY_FELL in first for first in shown["acpo"] + shown["score_normalised"])
    high = [first for first in signs(study, "sweep")["acpo"] if SHARE in first]
    assert {(first[SHARE], first[COLLAPSED]) for first in high if COLLAPSED in first} == {
        (warned, collapsed)
    }


def test_a_collapsed_run_stops_with_its_best_weights_and_keeps_that_checkpoint(tmp_path):
    calls = 0

    def reward(completion_ids, **_):
        nonlocal calls
        calls += 1
        low = 0.0 if calls > 12 else 1.0
        return [low * (1 + len(ids) % 2) for ids in completion_ids]

    trainer, _ = recorded(
        tmp_path,
        rewards=reward,
        max_steps=60,
        save_strategy="steps",
        save_steps=4,
        save_total_limit=1,
        stop_on_collapse=True,
    )
    assert trainer.watch.stopped and trainer.state.global_step < 30
    (best,) = checkpoint.numbered(tmp_path)
    step = int(best.name.split("-")[1])
    assert str(best) == trainer.state.best_model_checkpoint and 10 <= step <= 16
    kept = load_file(best / "model.safetensors")
    for name, value in trainer.model.state_dict().items():
        assert name not in kept or (value == kept[name]).all(), name
