"""Clip-Cov, KL-Cov and DPPO against verl's own losses, called on our tensors."""

from types import SimpleNamespace

import pytest
import torch
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

from acpo.objectives import dense_loss, stats_from_logits
from objectives.batches import random_batch

VERL = {
    "dppo_tv": ({"epsilon": 0.1, "epsilon_high": 0.05, "ratio_cap": 3.0}, {}),
    "dppo_kl": ({"epsilon": 0.1, "epsilon_high": 0.05, "ratio_cap": 3.0}, {}),
    "clip_cov": (
        {"epsilon": 0.1, "epsilon_high": 0.05, "cov_share": 1.0, "cov_low": 0.2, "cov_high": 4.0},
        {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.2, "clip_cov_ub": 4.0},
    ),
    "kl_cov": (
        {"cov_share": 0.2, "beta_cov": 0.7},
        {"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.7},
    ),
}


@pytest.mark.parametrize("row", VERL)
def test_same_loss_and_gradient_as_verl(row):
    """With a share of 1, Clip-Cov draws every candidate, and there is no chance in it."""
    options, section = VERL[row]
    names = ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef")
    config = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.05, "clip_ratio": 0.2}
    config["clip_ratio_c"] = 3.0
    actor = SimpleNamespace(
        **config,
        get=config.get,
        global_batch_info={},
        policy_loss=SimpleNamespace(**{**dict.fromkeys(names), **section}),
    )
    for seed in range(4):
        batch = random_batch(seed, ratios=(0.3, 3.0))
        batch["old_logp"] = batch["old_logp"].clamp(max=-1e-3)  # verl's KL is NaN beyond 1
        logits = batch["logits"].clone().requires_grad_()
        ours = dense_loss(row, **{**batch, "logits": logits}, **options)
        mask = batch["mask"].double()
        theirs, _ = POLICY_LOSS_REGISTRY[row](
            old_log_prob=batch["old_logp"],
            log_prob=stats_from_logits(logits=logits, tokens=batch["tokens"]).logp,
            advantages=batch["advantages"][:, None] * mask,
            response_mask=mask,
            loss_agg_mode="token-mean",
            config=actor,
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
        gradients = [torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (ours, theirs)]
        torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)
