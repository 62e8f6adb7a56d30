"""Every row: autograd, closed form and an independent loop reference agree in float64."""

import itertools
import math

import pytest
import torch

from acpo.objectives import (
    METHODS,
    TokenStats,
    aggregation_weights,
    dense_loss,
    get_method,
    logit_gradient,
    token_objective,
)
from objectives.batches import EXTRAS, ROWS, loss_and_gradient, random_batch
from objectives.loops import loop_loss

TAUS = [(1.0, 1.05), (0.7, 2.0), (3.0, 0.5)]
LOOPED = [*ROWS[: ROWS.index("gmpo") + 1], "acpo_balanced", "global_sg_balanced"]
"""Rows of objectives/loops.py; those after them: test_next.py."""


def options_for(row, tau_pos=1.0, tau_neg=1.05):
    options = dict(EXTRAS.get(row, {}))
    if "tau_pos" in METHODS[row].options:
        options |= {"tau_pos": tau_pos, "tau_neg": tau_neg}
    if "offset" in METHODS[row].options:
        options["offset"] = "auto"
    return options


@pytest.mark.parametrize(
    ("row", "taus"),
    [
        (row, taus)
        for row in LOOPED
        for taus in TAUS[: 3 if "tau_pos" in METHODS[row].options else 1]
    ],
)
def test_autograd_equals_closed_form_and_loops(row, taus):
    options = options_for(row, *taus)
    for seed in range(4):
        temperature = (1.0, 0.7)[(seed + TAUS.index(taus)) % 2]
        batch = random_batch(seed, temperature=temperature)
        if seed == 3:  # old policy = current policy
            batch = random_batch(seed, temperature=temperature, ratios=(1.0, 1.0))
        value, gradient = loss_and_gradient(dense_loss, batch, row, **options)
        assert (gradient != 0).any(), "a test of zeros shows nothing"
        closed = logit_gradient(row, **batch, **options)
        torch.testing.assert_close(closed, gradient, rtol=0, atol=1e-10)
        loops, loop_gradient = loss_and_gradient(loop_loss, batch, row, **options)
        torch.testing.assert_close(value, loops, rtol=0, atol=1e-10)
        torch.testing.assert_close(gradient, loop_gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize("row", ["acpo", "acpo_no_routing", "sapo", "shannon_offset"])
def test_each_ratio_sign_and_alignment(row):
    """One token at a time, so that no case hides in a sum."""
    logits = torch.tensor([[[2.0, 0.5, -1.0, 0.3]]], dtype=torch.float64)
    options = {"entropy_norm": 1.0} if row == "shannon_offset" else {}
    for token, w, sign in itertools.product((0, 1), (0.05, 0.5, 1.0, 2.0, 4.0), (-1.3, 0.8)):
        tokens = torch.tensor([[token]])
        logp = torch.log_softmax(logits, -1)[0, 0, token]
        batch = {
            "logits": logits,
            "tokens": tokens,
            "old_logp": (logp - math.log(w)).view(1, 1),
            "advantages": torch.tensor([sign], dtype=torch.float64),
            "mask": torch.ones(1, 1, dtype=torch.bool),
        }
        _, gradient = loss_and_gradient(dense_loss, batch, row, **options)
        closed = logit_gradient(row, **batch, **options)
        torch.testing.assert_close(closed, gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ("acpo", {"mismatch_scale": "auto"}),
        ("acpo", {"mismatch_scale": 2.5, "align_tol": 0.05}),
        ("shannon", {"entropy_norm": 1.1}),
        ("shannon_offset", {"entropy_norm": 3.8545, "offset": 1.0}),
        ("gtpo_entropy", {"norm": "joint", "alpha2": 0.4}),
        ("gtpo", {"gamma": 0.3, "entropy_limit": 2.0}),
        ("8020", {"top_entropy_quantile": 0.5}),
        ("grpo", {"epsilon": 0.5, "epsilon_high": 1.0}),
    ],
)
def test_options_reach_the_maths(row, options):
    batch = random_batch(11, sharpness=1.0)
    value, gradient = loss_and_gradient(dense_loss, batch, row, **options)
    loops, loop_gradient = loss_and_gradient(loop_loss, batch, row, **options)
    torch.testing.assert_close(value, loops, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradient, loop_gradient, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        logit_gradient(row, **batch, **options), gradient, rtol=0, atol=1e-10
    )
    assert not torch.allclose(value, dense_loss(row, **batch), atol=1e-6)


@pytest.mark.parametrize("row", ["acpo", "grpo", "gspo", "8020", "shannon"])
def test_kl_penalty(row):
    batch = random_batch(5)
    batch["ref_logp"] = batch["old_logp"] + 0.3 * torch.randn_like(batch["old_logp"])
    value, gradient = loss_and_gradient(dense_loss, batch, row, beta=0.04)
    loops, loop_gradient = loss_and_gradient(loop_loss, batch, row, beta=0.04)
    torch.testing.assert_close(value, loops, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradient, loop_gradient, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        logit_gradient(row, **batch, beta=0.04), gradient, rtol=0, atol=1e-10
    )


def hand_made_stats(batch):
    """Statistics by another road than the package's: probabilities first, then logs."""
    p = torch.softmax(batch["logits"] / batch["temperature"], -1)
    p_y = p.gather(-1, batch["tokens"][..., None])[..., 0]
    top = p.detach().topk(1, -1).indices
    p_max = p.gather(-1, top)[..., 0]
    is_mode = (p_max - p_y).detach() <= 1e-6
    return TokenStats(
        p_y.log(), torch.where(is_mode, p_y, p_max).log(), is_mode, torch.special.entr(p).sum(-1)
    )


@pytest.mark.parametrize("row", ROWS)
def test_token_objective_agrees_with_dense_loss(row):
    batch = random_batch(7, temperature=1.3)
    options = options_for(row)
    dense, dense_gradient = loss_and_gradient(dense_loss, batch, row, **options)
    logits = batch["logits"].clone().requires_grad_()
    fields = {k: v for k, v in batch.items() if k not in ("logits", "temperature")}
    if METHODS[row].candidates:
        top = torch.log_softmax(logits / 1.3, -1).sort(-1, descending=True).values
        fields["top_logp"] = top[..., : METHODS[row].candidates].mean(-1)
    objective = token_objective(
        row, stats=hand_made_stats({**batch, "logits": logits}), **fields, **options
    )
    weights = aggregation_weights(METHODS[row](**options), batch["mask"], dtype=torch.float64)
    loss = -(weights * objective.value).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(loss.detach(), dense, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradient, dense_gradient, rtol=0, atol=1e-10)


def test_ties_count_as_aligned_and_move_the_sampled_token():
    logits = torch.tensor([[[1.0, 1.0, 0.0]]], dtype=torch.float64)
    for token in (0, 1):
        batch = {
            "logits": logits,
            "tokens": torch.tensor([[token]]),
            "old_logp": torch.log_softmax(logits, -1)[..., 0],
            "advantages": torch.tensor([-1.0], dtype=torch.float64),
            "mask": torch.ones(1, 1),
        }
        p = torch.softmax(logits, -1)[0, 0, 0]
        for row in ("acpo", "acpo_no_routing"):
            _, gradient = loss_and_gradient(dense_loss, batch, row)
            # Aligned non-positive at w = 1: M- = (1 + 2/tau) p, on the sampled token only.
            expected = (1 + 2 / 1.05) * p * (1 - p)
            torch.testing.assert_close(gradient[0, 0, token], expected)


@pytest.mark.parametrize("row", ROWS)
def test_an_impossible_vocabulary_entry_is_harmless(row):
    batch = random_batch(2)
    batch["tokens"] = batch["tokens"].clamp(max=9)
    batch["logits"][..., 10] = -torch.inf
    options = options_for(row)
    _, gradient = loss_and_gradient(dense_loss, batch, row, **options)
    assert torch.isfinite(gradient).all()
    torch.testing.assert_close(
        logit_gradient(row, **batch, **options), gradient, rtol=0, atol=1e-10
    )


def test_extreme_ratios_stay_finite():
    for row in ROWS:
        batch = random_batch(1, ratios=(1e-30, 1e30))
        value, gradient = loss_and_gradient(dense_loss, batch, row, **options_for(row))
        assert torch.isfinite(value) and torch.isfinite(gradient).all(), row
        torch.testing.assert_close(
            logit_gradient(row, **batch, **options_for(row)), gradient, rtol=1e-9, atol=1e-10
        )


def test_methods_table_is_complete():
    assert set(ROWS) == {
        *("grpo", "dapo", "gspo", "sapo", "8020", "gtpo", "gtpo_entropy", "acpo"),
        *("acpo_no_routing", "fixed", "positive_only", "nonpositive_only", "shannon"),
        *("shannon_offset", "global_sg", "global_sg_offset", "global_sg_x3", "cispo", "gmpo"),
        *("entropy_adv", "low_prob", "clip_cov", "kl_cov", "simko", "aspo", "ce_gppo"),
        *("dcpo", "maspo", "hapo", "dppo_tv", "dppo_kl", "dr_grpo", "bnpo", "vespo"),
        *("acpo_balanced", "global_sg_balanced", "score_normalised", "score_baseline"),
    }
    assert get_method("acpo").credit.routed
