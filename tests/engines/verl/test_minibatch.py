"""What a row that looks at a whole mini-batch refuses to look at."""

import pytest
import torch

from acpo.engines.verl.minibatch import RolloutEntropy, _check_groups, _sequence_advantages
from acpo.errors import ACPOError
from acpo.objectives import METHODS
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
    kept = RolloutEntropy.of(data, entropy)
    # The entropy at a position belongs to the token after it.
    assert kept.look_up(data).tolist() == [[2.0, 3.0, 4.0], [8.0, 9.0, 10.0]]
    with pytest.raises(ACPOError, match="was not in the log-probability pass"):
        kept.look_up(batch(3))
