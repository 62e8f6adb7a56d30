"""What a row that looks at a whole mini-batch refuses to look at."""

from types import SimpleNamespace

import pytest
import torch

from acpo.engines.verl import minibatch
from acpo.engines.verl.loss import MicroBatch, policy_loss, scored
from acpo.engines.verl.minibatch import (
    _check_groups,
    _sequence_advantages,
    keep_entropy,
    look_up_entropy,
)
from acpo.errors import ACPOError
from acpo.objectives import METHODS
from acpo.objectives.shaping import Reducer
from engines.verl.batches import verl_batch
from engines.verl.rollouts import Rollouts


def test_torn_groups_are_refused():
    _check_groups(torch.tensor([7, 9, 7, 9]), 2, METHODS["gtpo"])
    for names in ([7, 7, 9], [7, 9]):
        with pytest.raises(ACPOError, match=r"holds only 1 of one: set trainer.use_v1=False"):
            _check_groups(torch.tensor(names), 2, METHODS["gtpo"])


class OneRank:
    def maximum(self, x):
        return x


def test_one_advantage_per_response_unless_they_differ():
    mask = torch.tensor([[False, True, True], [True, False, False], [False] * 3])
    advantages = torch.tensor([[9.0, 2.0, 2.0], [-1.0, 5.0, 5.0], [3.0, 3.0, 3.0]])
    assert _sequence_advantages(advantages, mask, OneRank()).tolist() == [2.0, -1.0, 0.0]
    advantages[0, 2] = 1.0
    found = _sequence_advantages(advantages, mask, OneRank())
    assert found.tolist() == [[0.0, 2.0, 1.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def batch(first):
    ones = torch.ones(2, 3).long()
    tokens = torch.arange(first, first + 6).view(2, 3)
    logp, rewards = torch.zeros(2, 3), torch.tensor([0.0, 1.0])
    rollouts = Rollouts(tokens, ones, tokens + 9, ones, logp, logp, rewards)
    rollouts = Rollouts(*(torch.cat([x, x]) for x in rollouts))
    return verl_batch(rollouts, "acpo", slice(0, 2))


def test_entropies_are_found_by_their_sequence():
    data = batch(2)
    entropy = torch.nested.nested_tensor_from_jagged(
        torch.arange(12.0), data["input_ids"].offsets()
    )
    kept = keep_entropy(data, entropy)
    # The entropy at a position belongs to the token after it.
    assert look_up_entropy(kept, data).tolist() == [[2.0, 3.0, 4.0], [8.0, 9.0, 10.0]]
    with pytest.raises(ACPOError, match="was not in the log-probability pass"):
        look_up_entropy(kept, batch(3))


class Seen(Exception):
    pass


def test_a_mini_batch_joins_the_models_outputs(monkeypatch):
    """verl leaves it on the CPU: "meta" stands for a device that the CPU cannot be mixed with."""
    monkeypatch.setattr(minibatch, "get_device_id", lambda: "meta")
    monkeypatch.setattr(minibatch, "_sequence_advantages", lambda advantages, *_: advantages)
    entropy = torch.zeros(2, 3, device="meta")

    def devices(row, *tensors, **named):
        found = [x for x in (*tensors, *named.values()) if isinstance(x, torch.Tensor)]
        raise Seen({x.device.type for x in found})

    monkeypatch.setattr(minibatch, "sequences", devices)
    monkeypatch.setattr(minibatch, "entropy_maximum", devices)
    with pytest.raises(Seen, match=r"^\{'meta'\}$"):
        minibatch.shape_advantages(
            batch(2), METHODS["8020"], group_size=2, seen={"entropy": entropy}, dp=None
        )
    with pytest.raises(Seen, match=r"^\{'meta'\}$"):
        minibatch.mini_batch_entropy_max(batch(2), METHODS["shannon"], entropy=entropy, dp=None)


def test_responses_without_a_verdict_are_not_shaped(monkeypatch):
    monkeypatch.setattr(minibatch, "Ranks", lambda *_, **__: Reducer())
    row, data = METHODS["entropy_adv"](), batch(2)
    scores = torch.zeros(2, 3)
    scores[1, 2] = torch.nan
    data["token_level_scores"], data["advantages"] = scores, torch.ones(2, 3)
    entropy = torch.rand(2, 3) + 0.1
    minibatch.shape_advantages(data, row, group_size=2, seen={"entropy": entropy}, dp=None)
    assert (data["advantages"][0] != 0).all() and (data["advantages"][1] == 0).all()


def test_a_number_that_is_not_finite_spoils_the_gradient_and_ends_nothing():
    """verl's own step skips a gradient that is not finite; a refusal would end the job."""
    mask, ones = torch.ones(2, 3), torch.ones(2, 3)
    mask[0, 2] = 0
    config = SimpleNamespace(global_batch_info={})
    for row, column in ((0, 0), (1, 2), (0, 2)):
        logp = torch.full((2, 3), -0.5, requires_grad=True)
        old = torch.full((2, 3), -0.5)
        old[row, column] = torch.nan
        with scored(MicroBatch(METHODS["acpo"], torch.zeros(2, 3))):
            loss, _ = policy_loss(old, logp, ones, mask, config=config)
        loss.backward()
        spoiled = bool(mask[row, column])
        assert loss.isfinite() != spoiled and logp.grad.isfinite().all() != spoiled


def test_a_number_that_is_not_finite_ends_a_run_on_megatron():
    """Whose step would put it into the weights."""
    config = SimpleNamespace(global_batch_info={}, strategy="megatron")
    mask, old = torch.ones(1, 3), torch.tensor([[-0.5, -torch.inf, -0.5]])
    logp = torch.full((1, 3), -0.5, requires_grad=True)
    with (
        scored(MicroBatch(METHODS["acpo"], torch.zeros(1, 3))),
        pytest.raises(ACPOError, match=r"1 tokens have log-probabilities .* not finite"),
    ):
        policy_loss(old, logp, mask, mask, config=config)
    mask[0, 1] = 0
    with scored(MicroBatch(METHODS["acpo"], torch.zeros(1, 3))):
        assert policy_loss(old, logp, torch.ones(1, 3), mask, config=config)[0].isfinite()


def test_one_ratio_takes_one_advantage():
    zeros, mask = torch.zeros(1, 4), torch.ones(1, 4)
    given = torch.tensor([[1.0, -1.0, 0.5, 0.0]])
    with (
        scored(MicroBatch(METHODS["gmpo"], zeros)),
        pytest.raises(ACPOError, match="advantages differ within a sequence: method 'gmpo'"),
    ):
        policy_loss(zeros, zeros, given, mask)
