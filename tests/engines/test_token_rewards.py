"""Reward functions that answer per token: their numbers are advantages, added to the groups'."""

import pytest
import torch

from acpo.errors import ACPOError
from engines.tiny import odd_tokens, recorded, relative


def constant(completion_ids, **_):
    return [[0.5] * len(ids) for ids in completion_ids]


def rising(completion_ids, **_):
    return [[t / len(ids) - 0.3 for t in range(len(ids))] for ids in completion_ids]


@pytest.mark.parametrize("method", ["acpo", "gspo", "simko", "gtpo_entropy"])
def test_packs_change_nothing(tmp_path, method):
    settings = {"rewards": [odd_tokens, rising], "method": method, "max_steps": 1}
    _, whole = recorded(tmp_path, update_layout="padded", max_tokens_per_pack=4096, **settings)
    _, packed = recorded(tmp_path, update_layout="packed", max_tokens_per_pack=40, **settings)
    assert whole[0].norm() > 1e-5 and relative(packed[0], whole[0]) < 1e-5


def test_they_are_added_as_they_are(tmp_path):
    """A list of one number for all tokens is that number for every token, times its weight."""
    runs = []
    for weight in (1.0, 2.0):
        settings = {"rewards": [constant], "reward_weights": [weight], "method": "dapo"}
        folder = tmp_path / str(weight)
        trainer, gradients = recorded(folder, record_rollouts=True, **settings)
        runs.append(gradients[0])
        inputs = trainer._buffered_inputs[0]
        valid = inputs["completion_mask"].bool()
        expected = torch.where(valid, 0.5 * weight, 0.0)
        torch.testing.assert_close(inputs["advantages"], expected)
    assert runs[0].norm() > 0 and relative(runs[1], 2 * runs[0]) < 1e-5


def test_a_completion_without_a_verdict_is_left_out(tmp_path):
    def some(completion_ids, **_):
        rows = rising(completion_ids)
        return [None, *rows[1:]]

    trainer, gradients = recorded(tmp_path, rewards=[odd_tokens, some])
    assert gradients[0].norm() > 0
    assert trainer.state.log_history[0]["rewards/unjudged"] > 0


def test_a_later_round_without_a_verdict_is_joined(tmp_path):
    rounds = []

    def first_round(completion_ids, **_):
        rounds.append(len(completion_ids))
        if len(rounds) > 1:
            return [None] * len(completion_ids)
        return [[0.5 * (i < 4)] * len(ids) for i, ids in enumerate(completion_ids)]

    sampling = {"dynamic_sampling": True, "max_resample_times": 1}
    trainer, gradients = recorded(tmp_path, rewards=first_round, **sampling)
    assert rounds == [8, 8] and gradients[0].norm() > 0
    assert trainer.state.log_history[0]["update/rows_skipped"] == 0.5


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda ids: [0.0] * (len(ids) + 1), ["completion 0 of", "one number per token"]),
        (lambda ids: [float("nan")] * len(ids), ["nan", "completion 0, token 0"]),
        (lambda ids: [None] * len(ids), ["None", "completion 0"]),
        (lambda ids: ["a"] * len(ids), ["'a'", "completion 0, token 0"]),
    ],
)
def test_refusals(tmp_path, answer, words):
    def broken(completion_ids, **_):
        return [answer(ids) for ids in completion_ids]

    with pytest.raises(ACPOError) as error:
        recorded(tmp_path, rewards=[broken])
    for word in ("'broken'", *words):
        assert word in str(error.value)


def test_numbers_and_lists_do_not_mix(tmp_path):
    def mixed(completion_ids, **_):
        return [0.0, *([0.0] * len(ids) for ids in completion_ids[1:])]

    with pytest.raises(ACPOError, match=r"returned 0\.0 for completion 0 and a list for another"):
        recorded(tmp_path, rewards=[mixed])
