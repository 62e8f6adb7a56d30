"""What a subclass of the trainer changes is what is trained, or is refused."""

import pytest
import torch
from trl import GRPOConfig, GRPOTrainer

from acpo import ACPOConfig, ACPOTrainer
from acpo.errors import ACPOError
from engines.tiny import odd_tokens, recorded, relative


def negated(trainer_class):
    class Negated(trainer_class):
        def _calculate_rewards(self, *args, **kwargs):
            return super()._calculate_rewards(*args, **kwargs).neg_()

    return Negated


def test_rewards_of_a_subclass_are_trained_on_and_logged(tmp_path):
    runs = {}
    for name, kind in {
        "ours": (negated(ACPOTrainer), ACPOConfig, {"method": "grpo"}),
        "theirs": (negated(GRPOTrainer), GRPOConfig, {"loss_type": "grpo"}),
    }.items():
        trainer, gradients = recorded(tmp_path / name, kind=kind[:2], **kind[2])
        assert "_calculate_rewards" not in vars(trainer)
        runs[name] = trainer.state.log_history[0]["reward"], gradients[0]
    assert runs["ours"][0] == runs["theirs"][0] < 0
    assert relative(runs["ours"][1], runs["theirs"][1]) < 1e-4


def test_a_subclass_need_not_ask_the_reward_functions(tmp_path):
    class Own(ACPOTrainer):
        def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
            return torch.tensor([[x] for x in odd_tokens(completion_ids_list)])

    def unasked(completion_ids, **_):
        raise AssertionError

    own, (a,) = recorded(tmp_path / "own", kind=(Own, ACPOConfig), rewards=unasked)
    plain, (b,) = recorded(tmp_path / "plain")
    assert own.state.log_history[0]["reward"] == plain.state.log_history[0]["reward"]
    assert a.norm() > 1e-4 and torch.equal(a, b)


def test_rewards_per_token_pass_through_a_subclass_unchanged_or_are_refused(tmp_path):
    def per_token(completion_ids, **_):
        return [[0.5] * len(ids) for ids in completion_ids]

    class Passing(ACPOTrainer):
        def _calculate_rewards(self, *args):
            return super()._calculate_rewards(*args)

    _, (gradient,) = recorded(tmp_path / "a", kind=(Passing, ACPOConfig), rewards=per_token)
    assert gradient.norm() > 0
    with pytest.raises(ACPOError, match="changed rewards that were given per token"):
        recorded(tmp_path / "b", kind=(negated(ACPOTrainer), ACPOConfig), rewards=per_token)
