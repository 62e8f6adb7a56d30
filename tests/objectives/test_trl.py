"""Every row that TRL has against TRL's own loss code, called on our tensors."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from acpo.objectives import dense_loss, stats_from_logits
from objectives.batches import random_batch

trl = pytest.importorskip("trl.trainer.grpo_trainer")

SETTINGS = {
    "grpo": {"loss_type": "grpo"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "sapo": {"loss_type": "sapo"},
    "gspo": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon_low": 3e-4,
        "epsilon_high": 4e-4,
    },
    "8020": {"loss_type": "dapo", "epsilon_high": 0.28, "top_entropy_quantile": 0.2},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "max_completion_length": 9},
    "vespo": {"loss_type": "vespo"},
}
BOUNDED = {
    "grpo": {"delta": 1.7},
    "dapo": {"delta": 1.7},
    "gspo": {"epsilon": 0.1, "epsilon_high": 0.1, "delta": 1.3},
    "bnpo": {"epsilon_high": 0.28, "delta": 1.5},
    "dr_grpo": {"epsilon_high": 0.28, "delta": 1.5},
}
"""Our options for TRL's two-sided clipping."""


def trl_loss(batch, logits, *, ref_logp=None, beta=0.0, delta=None, **settings):
    """`GRPOTrainer._compute_loss` with the model's forward pass replaced by given logits."""
    stats = stats_from_logits(
        logits=logits, tokens=batch["tokens"], temperature=batch["temperature"]
    )
    accelerator = SimpleNamespace(
        num_processes=1,
        sync_gradients=True,
        pad_across_processes=lambda x, **_: x,
        gather=lambda x: x,
        reduce=lambda x, **_: x,
    )
    defaults = {
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "use_vllm": False,
        "_entropy_bonus_enabled": False,
        "current_gradient_accumulation_steps": 1,
        "accelerator": accelerator,
        "model": SimpleNamespace(training=True),
        "args": SimpleNamespace(
            delta=delta,
            **{"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0},
            **{"vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0},
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
            use_bias_correction_kl=False,
            steps_per_generation=1,
        ),
        "_metrics": {"train": defaultdict(list)},
        "get_gamma_weights": trl.GRPOTrainer.get_gamma_weights,
        "_get_per_token_logps_and_entropies": lambda *_, **__: (stats.logp, stats.entropy, None),
    }
    trainer = SimpleNamespace(**{**defaults, "beta": beta, **settings})
    trainer.get_high_entropy_mask = lambda *a: trl.GRPOTrainer.get_high_entropy_mask(trainer, *a)
    mask = batch["mask"].long()
    empty = mask[:, :0]
    inputs = {
        "prompt_ids": empty,
        "prompt_mask": empty,
        "completion_ids": batch["tokens"],
        "completion_mask": mask,
        "advantages": batch["advantages"],
        "old_per_token_logps": batch["old_logp"],
        "ref_per_token_logps": ref_logp,
        "num_items_in_batch": mask.sum(),
    }
    return trl.GRPOTrainer._compute_loss(trainer, None, inputs)


@pytest.mark.parametrize(("row", "options"), [*((row, {}) for row in SETTINGS), *BOUNDED.items()])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_same_loss_and_gradient_as_trl(row, options, beta):
    settings = SETTINGS[row] | options
    settings["epsilon_low"] = settings.pop("epsilon", settings.get("epsilon_low", 0.2))
    length = {"max_length": 9} if row == "dr_grpo" else {}
    bounded = False
    for seed in range(5):
        ratios = (0.999, 1.001) if row == "gspo" and not options else (0.3, 3.0)
        batch = random_batch(seed, ratios=ratios, temperature=0.8)
        ref = batch["old_logp"] + 0.1 if beta else None
        kl = {"ref_logp": ref, "beta": beta}
        logits = batch["logits"].clone().requires_grad_()
        ours = dense_loss(row, **{**batch, "logits": logits}, **kl, **length, **options)
        theirs = trl_loss(batch, logits, **kl, **settings)
        assert ours.item() != 0
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
        gradients = [torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (ours, theirs)]
        torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)
        if "delta" in options:
            free = dense_loss(row, **batch, **kl, **length, **{**options, "delta": None})
            bounded |= abs(free - ours.detach()) > 1e-6
    assert bounded == ("delta" in options), "a bound that is never reached shows nothing"
