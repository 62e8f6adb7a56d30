"""Rewards and advantages as verl loads and calls them."""

import asyncio
import json
import math
import shutil

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, get_adv_estimator_fn
from verl.trainer.ppo.reward import get_custom_reward_fn

from acpo.engines.verl.rewards import compute_score
from acpo.errors import ACPOError, ACPOWarning
from conftest import require_tool
from engines.tiny import tiny_tokenizer

CONFIG = OmegaConf.create(
    {
        "reward": {
            "custom_reward_function": {
                "path": "pkg://acpo.verl",
                "name": "compute_score",
                "reward_kwargs": {"wrong": -1.0},
            }
        }
    }
)
CODE = {
    "task_id": "double/0",
    "entry_point": "double",
    "prompt": "def double(x):\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


def judged(**row):
    return asyncio.run(compute_score(**row))


def test_math_is_judged():
    row = {"data_source": "aime24", "ground_truth": "\\frac{1}{2}", "extra_info": {"judge": "math"}}
    right = judged(solution_str="So it is \\boxed{0.5}.", **row)
    assert right == {"score": 1.0, "acc": 1.0, "judged": 1.0}
    assert judged(solution_str="\\boxed{0.6}", **row)["score"] == 0.0
    assert judged(solution_str="\\boxed{0.6}", wrong=-1.0, **row)["score"] == -1.0


def test_a_number_in_digits_may_be_asked_for():
    row = {"data_source": "sums", "ground_truth": "1270", "extra_info": {"judge": "digits"}}
    assert judged(solution_str="So it is \\boxed{1270}.", **row)["score"] == 1.0
    assert judged(solution_str="So it is \\boxed{504 + 766}.", **row)["score"] == 0.0


def test_rows_from_elsewhere_are_math():
    row = {"data_source": "DAPO", "solution_str": "Answer: 34", "ground_truth": "34"}
    assert judged(**row)["score"] == judged(extra_info={}, **row)["score"] == 1.0


def test_what_cannot_be_judged_is_no_wrong_answer():
    result = judged(data_source="x", solution_str="\\boxed{1}", ground_truth="")
    assert math.isnan(result["score"])
    assert (result["acc"], result["judged"]) == (0.0, 0.0)


@pytest.mark.sandbox
def test_code_is_run():
    require_tool(shutil.which("bwrap") is not None, "bubblewrap")
    row = {"data_source": "humaneval", "ground_truth": json.dumps(CODE)}
    row["extra_info"] = {"judge": "code"}
    good, bad = (f"```python\ndef double(x):\n    return {x}\n```" for x in ("2 * x", "x + 1"))
    assert judged(solution_str=good, **row)["score"] == 1.0
    assert judged(solution_str=bad, **row)["score"] == 0.0


def test_bad_rows_are_named():
    row = {"data_source": "mine", "solution_str": "", "extra_info": {"judge": "code"}}
    with pytest.raises(ACPOError, match="ground_truth of data_source='mine' is not a code problem"):
        judged(ground_truth="not json", **row)
    with pytest.raises(ACPOError, match=r"is not a code problem as JSON \(not a JSON object\)"):
        judged(ground_truth="[1]", **row)
    with pytest.raises(ACPOError, match="judge='vibes' of data_source='mine' is unknown"):
        judged(ground_truth="1", **row | {"extra_info": {"judge": "vibes"}})


def test_verl_s_reward_manager_calls_it():
    tokenizer = tiny_tokenizer()
    ids = tokenizer("w7 w9")["input_ids"]

    async def score(gold):
        manager = get_reward_manager_cls("naive")(
            config=CONFIG, tokenizer=tokenizer, compute_score=get_custom_reward_fn(CONFIG)
        )
        tensors = {"responses": torch.tensor([ids]), "attention_mask": torch.ones(1, 3).long()}
        columns = {"data_source": "t", "reward_model": {"ground_truth": gold}, "extra_info": {}}
        data = DataProto(
            batch=TensorDict(tensors, batch_size=1),
            non_tensor_batch={k: np.array([v], dtype=object) for k, v in columns.items()},
        )
        return await manager.run_single(data)

    result = asyncio.run(score("3"))
    assert result["reward_score"] == -1.0  # states no answer; reward_kwargs arrive
    assert result["reward_extra_info"]["judged"] == 1.0


def test_advantages_are_verl_s_where_everything_is_judged():
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(12, 5).long()
    rewards = torch.zeros(12, 5)
    rewards[:, -1] = torch.randint(0, 2, (12,), generator=generator).float()
    names = np.array(["a", "b", "c"] * 4, dtype=object)
    for scaled in (True, False):
        config = OmegaConf.create({"norm_adv_by_std_in_grpo": scaled})
        ours, _ = get_adv_estimator_fn("acpo")(
            token_level_rewards=rewards, response_mask=mask, index=names, config=config
        )
        theirs, _ = compute_grpo_outcome_advantage(
            rewards, mask, names, norm_adv_by_std_in_grpo=scaled
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_response_without_verdict_leaves_its_group():
    rewards = torch.tensor([[1.0], [0.0], [float("nan")], [1.0]])
    advantages, _ = get_adv_estimator_fn("acpo")(
        token_level_rewards=rewards, response_mask=torch.ones(4, 1), index=["a"] * 4
    )
    assert advantages[2] == 0
    assert advantages[:2, 0].tolist() == pytest.approx([0.57735, -1.1547], abs=1e-4)


def tokens_estimated(rewards, mask, **more):
    estimate = get_adv_estimator_fn("acpo_tokens")
    names = ["a"] * len(mask)
    return estimate(token_level_rewards=rewards, response_mask=mask, index=names, **more)[0]


def test_tokens_that_were_rejected_may_have_rewards():
    """verl takes them out of the mask before it computes advantages."""
    config = OmegaConf.create({"rollout_correction": {"rollout_rs": "token_k1"}})
    rewards, mask = torch.tensor([[0.5, 0.5, float("nan")]]), torch.tensor([[1, 0, 0]])
    assert tokens_estimated(rewards, mask, config=config).tolist() == [[0.5, 0.0, 0.0]]


def test_arguments_of_the_reward_that_nobody_knows_are_refused():
    known = {"reward_router_address": "here", "reward_model_tokenizer": None}
    result = asyncio.run(compute_score("t", r"\boxed{4}", "3", **known, wrong=-1.0))
    assert result["score"] == -1.0
    with pytest.raises(TypeError, match="wrng"):
        asyncio.run(compute_score("t", r"\boxed{4}", "3", wrng=-1.0))


def test_rewards_per_token_are_advantages_as_they_are():
    nan = float("nan")
    rewards = torch.tensor([[0.5, -1.0, 0.0], [nan, nan, 0.0], [2.0, 0.0, 0.25]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 0, 1]])  # a tool's token in the last
    expected = [[0.5, -1.0, 0.0], [0.0, 0.0, 0.0], [2.0, 0.0, 0.25]]
    assert tokens_estimated(rewards, mask).tolist() == expected


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((0, 1), float("nan"), r"token_level_rewards\[0, 1\]=nan: give one finite number"),
        ((1, 0), float("inf"), r"token_level_rewards\[1, 0\]=inf: give one finite number"),
        ((0, 2), 0.5, r"token_level_rewards\[0, 2\]=0.5: the response has no token there"),
    ],
)
def test_bad_rewards_per_token_are_refused(place, value, message):
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    rewards = 0.1 * mask
    rewards[place] = value
    with pytest.raises(ACPOError, match=message):
        tokens_estimated(rewards, mask)


def test_rewards_of_responses_are_no_rewards_per_token():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    with pytest.warns(ACPOWarning, match="every reward stands at the last token"):
        tokens_estimated(torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]), mask)


class PerToken(NaiveRewardManager):
    """A process reward: each token's place, from a manager of one's own."""

    @classmethod
    def assemble_rm_scores(cls, data, scores):
        mask = data.batch["attention_mask"][:, data.batch["prompts"].shape[1] :]
        return mask * torch.arange(1.0, mask.shape[1] + 1) * torch.tensor(scores)[:, None]


def test_a_reward_manager_gives_rewards_per_token():
    batch = {"prompts": torch.ones(2, 1), "responses": torch.ones(2, 3)}
    batch["attention_mask"] = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    data = DataProto(batch=TensorDict(batch, batch_size=2))
    rewards = PerToken.assemble_rm_scores(data, [1.0, -1.0])
    advantages = tokens_estimated(rewards, batch["attention_mask"][:, 1:])
    assert advantages.tolist() == [[1.0, 2.0, 0.0], [-1.0, -2.0, -3.0]]
