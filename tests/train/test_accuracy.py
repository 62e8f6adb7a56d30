import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from acpo.engines.trl.rewards import checked_reward
from acpo.train.accuracy import BeforeAndAfter, Recorder, Sample, accuracy


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


def heard(recorder):
    return [(sample.prompt, sample.completion, sample.correct) for sample in recorder.samples]


def test_recorder_listens_only_when_told():
    recorder = Recorder()

    def reward(prompts, completions, answer, **columns):
        return [1.0, 0.0, None]

    wrapped = checked_reward(recorder.around(reward))
    columns = {"prompts": ["a", "b", "c"], "completions": ["x", "y", "z"], "answer": ["1"] * 3}
    assert wrapped(**columns) == [1.0, 0.0, None]
    assert recorder.samples == []
    assert wrapped.__name__ == "reward"
    recorder.listening = True
    wrapped(**columns)
    assert heard(recorder) == [("a", "x", True), ("b", "y", False)]  # the unjudged one is left out


def test_recorder_around_a_coroutine_and_chats():
    recorder = Recorder(listening=True)

    async def reward(prompts, completions, **columns):
        return [-1.0]

    wrapped = checked_reward(recorder.around(reward))
    assert asyncio.iscoroutinefunction(wrapped)
    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    completion = [{"role": "assistant", "content": "a"}]
    assert asyncio.run(wrapped(prompts=[prompt], completions=[completion])) == [-1.0]
    assert heard(recorder) == [("q", "a", False)]


@pytest.mark.parametrize(
    "kind", [list, tuple, iter, np.array, torch.tensor, lambda v: [np.float32(x) for x in v]]
)
def test_a_full_reward_is_right_in_whatever_form_it_comes(kind):
    recorder = Recorder(listening=True)
    reward = checked_reward(recorder.around(lambda completions, **_: kind([0.1, 0.0, 1.0, 1.5])))
    assert reward(prompts=list("abcd"), completions=["x"] * 4) == pytest.approx([0.1, 0, 1, 1.5])
    assert [sample.correct for sample in recorder.samples] == [False, False, True, True]


def test_an_accuracy_of_which_nothing_was_heard_is_told(tmp_path, caplog):
    trainer = SimpleNamespace(
        args=SimpleNamespace(output_dir=tmp_path),
        accelerator=SimpleNamespace(is_main_process=True),
        reward_func_names=["mine"],
        evaluate=lambda eval_dataset: None,
    )
    probe = BeforeAndAfter(Recorder(), ["p"] * 7, trainer)
    assert probe.measure() == []
    assert "7 held-out problems is unknown: the reward function 'mine' gave no" in caplog.text
