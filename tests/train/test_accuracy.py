import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from acpo.engines.trl.rewards import checked_reward
from acpo.train.accuracy import BeforeAndAfter, Sample, accuracy


def samples(*groups):
    return [
        Sample(f"p{number}", "", bool(value))
        for number, group in enumerate(groups)
        for value in group
    ]


def test_interval_by_hand():
    # 8 of 10: where (0.8 - x)² = t² x (1 - x) / 9, with Student's t of 9 degrees, 2.262
    found = accuracy(samples(*[[1]] * 8, *[[0]] * 2))
    assert found == pytest.approx((0.8, 0.427012, 0.955495), abs=1e-5)
    assert str(found) == "80.0% [42.7%, 95.5%]"
    assert accuracy([]) is None


def test_the_share_is_never_outside_its_interval():
    for right in range(8):
        found = accuracy(samples(*[[1]] * right, *[[0]] * (7 - right)))
        assert found.low <= found.value <= found.high
    assert accuracy(samples([0], [0], [0])).low == 0.0
    assert accuracy(samples([1], [1], [1])).high == 1.0


def test_several_completions_of_a_prompt_are_one_observation():
    found = accuracy(samples([1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0]))
    # Worth 0.25 / (variance 1/6 over 4 prompts) = 6 draws; Student's t of 3 degrees is 3.182.
    half = 3.182446 * (0.25 / 6 + 3.182446**2 / 144) ** 0.5 / (1 + 3.182446**2 / 6)
    assert found == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-6)


def test_completions_that_agree_are_not_certain():
    assert accuracy(samples([1, 1], [1, 1], [1, 1])).low < 0.5


def probe_of(reward, calls, tmp_path):
    """What measures accuracy, of a trainer whose evaluation calls its reward function so."""
    trainer = SimpleNamespace(
        args=SimpleNamespace(output_dir=tmp_path),
        accelerator=SimpleNamespace(is_main_process=True),
        reward_func_names=["mine"],
        reward_funcs=[checked_reward(reward)],
    )

    def evaluate(eval_dataset):
        for columns in calls:
            values = trainer.reward_funcs[0](**columns)
            if asyncio.iscoroutine(values):
                asyncio.run(values)

    trainer.evaluate = evaluate
    return BeforeAndAfter(["p"] * 7, trainer)


def test_rewards_are_heard_while_accuracy_is_measured_alone(tmp_path):
    def reward(prompts, completions, answer, **columns):
        return [1.0, 0.0, None]

    columns = {"prompts": ["a", "b", "c"], "completions": ["x", "y", "z"], "answer": ["1"] * 3}
    probe = probe_of(reward, [columns], tmp_path)
    found = [("a", "x", True), ("b", "y", False)]  # the unjudged one is left out
    assert probe.measure() == found
    wrapped = probe.trainer.reward_funcs[0]
    assert wrapped.__name__ == "reward"
    assert wrapped(**columns) == [1.0, 0.0, None]
    assert probe.measure() == found


def test_coroutines_and_chats_are_heard(tmp_path):
    async def reward(prompts, completions, **columns):
        return [-1.0]

    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    completion = [{"role": "assistant", "content": "a"}]
    call = {"prompts": [prompt], "completions": [completion]}
    probe = probe_of(reward, [call], tmp_path)
    assert asyncio.iscoroutinefunction(probe.trainer.reward_funcs[0])
    assert probe.measure() == [("q", "a", False)]


@pytest.mark.parametrize(
    "kind", [list, tuple, iter, np.array, torch.tensor, lambda v: [np.float32(x) for x in v]]
)
def test_a_full_reward_is_right_in_whatever_form_it_comes(kind, tmp_path):
    call = {"prompts": list("abcd"), "completions": ["x"] * 4}
    probe = probe_of(lambda completions, **_: kind([0.1, 0.0, 1.0, 1.5]), [call], tmp_path)
    assert probe.trainer.reward_funcs[0](**call) == pytest.approx([0.1, 0, 1, 1.5])
    assert [sample.correct for sample in probe.measure()] == [False, False, True, True]


def test_an_accuracy_of_which_nothing_was_heard_is_told(tmp_path, caplog):
    assert probe_of(lambda completions, **_: [], [], tmp_path).measure() == []
    assert "7 held-out problems is unknown: the reward function 'mine' gave no" in caplog.text


@pytest.mark.parametrize("left", [None, '{"samples": [["a", "x"', "[1]"])
def test_a_run_that_goes_on_elsewhere_finds_what_was_measured_at_its_start(tmp_path, caplog, left):
    there, here = tmp_path / "there", tmp_path / "here"
    call = {"prompts": ["a"], "completions": ["x"]}
    for folder in (there, here):
        folder.mkdir()
        probe = probe_of(lambda completions, **_: [1.0], [call], folder)
        probe.trainer.num_generations_eval = 1
        probe.trainer.accelerator.device = torch.device("cpu")
        step = 0 if folder == there else 2
        state = SimpleNamespace(global_step=step, is_world_process_zero=True)
        args = SimpleNamespace(resume_from_checkpoint=str(there / "checkpoint-2"))
        probe.on_train_begin(args, state, None)
        if step == 0 and left is not None:
            (there / "before.json").write_text(left)
    if left is None:
        assert probe.before == [("a", "x", True)]
        assert (here / "before.json").read_bytes() == (there / "before.json").read_bytes()
    else:
        assert not probe.before and "before.json cannot be" in caplog.text
