"""Rows published after the paper, against references written from their formulas by another hand
(against TRL's own code: test_trl.py; against verl's: tests/engines/verl/test_later_rows.py)."""

import pytest
import torch

from acpo.errors import ACPOError
from acpo.objectives import (
    METHODS,
    dense_loss,
    logit_gradient,
    shape_tokens,
    stats_from_logits,
    token_objective,
)
from acpo.objectives.shaping import draw_keys, score_norm
from objectives import next_reference as reference
from objectives.batches import EXTRAS, loss_and_gradient, random_batch, shaped_tokens

NAMES = {
    "entropy_adv": {"epsilon": "low", "epsilon_high": "high", "alpha": "alpha", "kappa": "kappa"},
    "low_prob": {"epsilon": "low", "epsilon_high": "high", "alpha": "alpha"},
    "clip_cov": {"epsilon": "low", "epsilon_high": "high"},
    "kl_cov": {"cov_share": "share", "beta_cov": "beta"},
    "simko": {
        "epsilon": "low",
        "epsilon_high": "high",
        "alpha": "alpha",
        "candidates": "top",
        "mode_scale": "scale",
        "entropy_quantile": "q",
    },
    "aspo": {
        "epsilon": "low_entropy",
        "epsilon_uncertain": "high_entropy",
        "entropy_quantile": "q",
        "ratio_cap": "cap",
    },
    "ce_gppo": {
        "epsilon": "low",
        "epsilon_high": "high",
        "beta_low": "beta1",
        "beta_high": "beta2",
        "ratio_cap": "dual",
    },
    "dcpo": {"epsilon": "low", "epsilon_high": "high", "ratio_cap": "cap"},
    "maspo": {"sigma": "sigma", "alpha": "alpha", "beta_sigma": "beta"},
    "hapo": {
        "epsilon": "low",
        "epsilon_high": "high",
        "entropy_quantile": "pivot",
        "alpha": "alpha",
        "beta_entropy": "beta",
    },
    "dppo_tv": {"epsilon": "low", "epsilon_high": "high", "ratio_cap": "truncate"},
    "dppo_kl": {"epsilon": "low", "epsilon_high": "high", "ratio_cap": "truncate"},
    "dr_grpo": {"epsilon": "low", "epsilon_high": "high", "max_length": "normaliser"},
    "bnpo": {"epsilon": "low", "epsilon_high": "high"},
    "vespo": {name: name for name in ("k_pos", "lambda_pos", "k_neg", "lambda_neg")},
}
"""Our options -> the reference's."""
OTHER_VALUES = {
    "entropy_adv": {"alpha": 0.9, "kappa": 3.0, "delta": 2.0},
    "low_prob": {"alpha": 0.7, "epsilon": 0.4, "delta": 2.0},
    "clip_cov": {"cov_share": 0.5, "cov_low": 0.0, "cov_high": 1.5},
    "kl_cov": {"cov_share": 0.4, "beta_cov": 0.3},
    "simko": {
        **{"alpha": 0.4, "candidates": 2, "mode_scale": 2.0, "entropy_quantile": 0.3, "delta": 2.0},
        "epsilon": 0.4,
    },
    "aspo": {"entropy_quantile": 0.5, "ratio_cap": 1.5, "epsilon_uncertain": 1.0},
    "ce_gppo": {"beta_low": 0.75, "beta_high": 0.3, "ratio_cap": 2.0},
    "dcpo": {"epsilon": 0.1, "epsilon_high": 0.4, "ratio_cap": 1.6},
    "maspo": {"sigma": 0.4, "alpha": 0.8, "beta_sigma": 0.6},
    "hapo": {"alpha": 0.5, "beta_entropy": 0.7, "entropy_quantile": 0.4, "epsilon_high": 0.5},
    "dppo_tv": {"epsilon": 0.05, "epsilon_high": 0.02, "ratio_cap": 1.5},
    "dppo_kl": {"epsilon": 0.05, "epsilon_high": 0.02, "ratio_cap": 1.5},
    "dr_grpo": {"max_length": 20, "delta": 2.0},
    "bnpo": {"epsilon_high": 0.5, "delta": 1.8},
    "vespo": {"k_pos": 1.0, "lambda_neg": 0.5},
}


def next_batch(seed, *, dtype=torch.float64, per_token=False):
    """A batch with the old policy's whole distribution, which the references read."""
    batch = random_batch(seed, rows=6, length=6, vocab=5, dtype=dtype)
    g = torch.Generator().manual_seed(seed + 100)
    old = batch["logits"] + 0.8 * torch.randn(batch["logits"].shape, generator=g, dtype=dtype)
    log_old = torch.log_softmax(old, -1)
    batch["old_logp"] = log_old.gather(-1, batch["tokens"][..., None])[..., 0]
    batch["old_log_pmax"] = log_old.amax(-1)
    if per_token:
        noise = torch.randn(batch["mask"].shape, generator=g, dtype=dtype)
        batch["advantages"] = batch["advantages"][:, None] + noise
    return batch, old


def reference_loss(row, batch, old_logits, options):
    """The other hand's loss, in its own words."""
    constants = {theirs: options[ours] for ours, theirs in NAMES[row].items() if ours in options}
    if "delta" in options:
        constants["delta"] = options["delta"]
    inputs = [batch["logits"], old_logits, batch["tokens"], batch["advantages"], batch["mask"]]
    if row == "clip_cov":
        options = {**METHODS[row].options, **options}
        bounds = {"bounds": (options["cov_low"], options["cov_high"])}
        places = reference.clip_cov_candidates(*inputs, **bounds, **constants)
        keys = draw_keys(batch["tokens"], batch["mask"])
        count = reference.clip_cov_count(batch["mask"], share=options["cov_share"])
        first = sorted(places, key=lambda place: float(keys[place]))[:count]
        drawn = torch.zeros(batch["mask"].shape, dtype=torch.bool)
        for place in first:
            drawn[place] = True
        assert first, "a draw of nothing shows nothing"
        constants["drawn"] = drawn
    return reference.ROWS[row](*inputs, **constants)


@pytest.mark.parametrize("values", ["published", "other"])
@pytest.mark.parametrize("row", NAMES)
def test_autograd_equals_closed_form_and_the_other_hand(row, values):
    options = EXTRAS.get(row, {}) if values == "published" else OTHER_VALUES[row]
    for seed, per_token in ((0, False), (1, True)):
        batch, old = next_batch(seed, per_token=per_token)
        value, gradient = loss_and_gradient(dense_loss, batch, row, **options)
        assert (gradient != 0).any(), "a test of zeros shows nothing"
        closed = logit_gradient(row, **batch, **options)
        torch.testing.assert_close(closed, gradient, rtol=0, atol=1e-10)
        logits = batch["logits"].clone().requires_grad_()
        theirs = reference_loss(row, {**batch, "logits": logits}, old, options)
        (expected,) = torch.autograd.grad(theirs, logits)
        torch.testing.assert_close(value, theirs.detach(), rtol=0, atol=1e-10)
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("row", OTHER_VALUES)
def test_every_option_reaches_the_maths(row):
    batches = [next_batch(seed)[0] for seed in range(3)]
    base = EXTRAS.get(row, {})

    def gradients(**options):
        return torch.stack([logit_gradient(row, **batch, **options) for batch in batches])

    plain = gradients(**base)
    for name, value in OTHER_VALUES[row].items():
        if row == "clip_cov":
            base = {**OTHER_VALUES[row], name: METHODS[row].options[name]}
            plain = gradients(**base)
        assert (gradients(**{**base, name: value}) - plain).abs().max() > 1e-7, name


@pytest.mark.parametrize("row", [row for row in METHODS if row != "gmpo"])
def test_advantages_per_token_mean_what_one_per_sequence_does(row):
    """The same number at every token of a sequence is one number for the sequence."""
    batch = random_batch(4)
    options = EXTRAS.get(row, {})
    once, gradient = loss_and_gradient(dense_loss, batch, row, **options)
    wide = {**batch, "advantages": batch["advantages"][:, None].expand(batch["mask"].shape)}
    again, wide_gradient = loss_and_gradient(dense_loss, wide, row, **options)
    torch.testing.assert_close(again, once, rtol=0, atol=1e-12)
    torch.testing.assert_close(wide_gradient, gradient, rtol=0, atol=1e-12)
    g = torch.Generator().manual_seed(0)
    wide["advantages"] = wide["advantages"] + torch.randn(wide["mask"].shape, generator=g).double()
    _, own = loss_and_gradient(dense_loss, wide, row, **options)
    torch.testing.assert_close(logit_gradient(row, **wide, **options), own, rtol=0, atol=1e-10)
    assert not torch.allclose(own, gradient, atol=1e-6)


def test_gmpo_takes_one_advantage_per_sequence():
    batch = random_batch(4)
    batch["advantages"] = batch["advantages"][:, None].expand(batch["mask"].shape).clone()
    dense_loss("gmpo", **batch)
    batch["advantages"][0, 1] += 1
    with pytest.raises(ACPOError, match="advantages differ within a sequence: method 'gmpo'"):
        dense_loss("gmpo", **batch)


@pytest.mark.parametrize("row", ["acpo", "dapo", "kl_cov", "gtpo", "shannon"])
def test_sign_weights_scale_each_branch(row):
    batch = random_batch(9)
    options = EXTRAS.get(row, {})
    stats = stats_from_logits(logits=batch["logits"], tokens=batch["tokens"])
    plain = shaped_tokens(row, batch, stats, **options).advantages
    weights = {"positive_weight": 0.25, "nonpositive_weight": 3.0}
    got = shaped_tokens(row, batch, stats, **weights, **options).advantages
    expected = reference.sign_weights(plain, positive=0.25, nonpositive=3.0)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    _, gradient = loss_and_gradient(dense_loss, batch, row, **options, positive_weight=0.0)
    if row != "kl_cov":
        assert (gradient[plain > 0] == 0).all() and (gradient[plain < 0] != 0).any()
    closed = logit_gradient(row, **batch, **options, positive_weight=0.0)
    torch.testing.assert_close(closed, gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize("row", ["sapo", "dapo", "acpo", "shannon", "8020"])
def test_positive_share(row):
    batch = random_batch(9, ratios=(1.0, 1.0))
    stats = stats_from_logits(logits=batch["logits"], tokens=batch["tokens"])
    method = METHODS[row](positive_share=0.3)
    plain = shaped_tokens(row, batch, stats).advantages
    got = shaped_tokens(method, batch, stats).advantages
    mask, mean = batch["mask"], METHODS[row].aggregation
    if METHODS[row].credit.signal == "none":
        expected = reference.positive_share(plain, mask, share=0.3, aggregate=mean)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    signal = -torch.expm1(stats.log_pmax)
    if METHODS[row].credit.signal == "entropy":
        signal = stats.entropy / stats.entropy[mask].max()
    credit = METHODS[row].credit.first_order(signal, plain > 0, METHODS[row].options)
    weight = torch.zeros(mask.shape, dtype=torch.float64)
    for place, number in reference.weights(mask, mean).items():
        weight[place] = number
    update = weight * got.abs() * credit
    torch.testing.assert_close(update[got > 0].sum() / update.sum(), torch.tensor(0.3).double())
    torch.testing.assert_close(update.sum(), (weight * plain.abs()).sum())


def test_balanced_rows_are_a_share():
    batch = random_batch(2)
    for row, base in (("acpo_balanced", "acpo"), ("global_sg_balanced", "global_sg")):
        named = dense_loss(row, **batch)
        assert named == dense_loss(base, **batch, positive_share="advantages")
    centred = {**batch, "advantages": batch["advantages"] - batch["advantages"].mean()}
    half = dense_loss("acpo", **centred, positive_share=0.5)
    torch.testing.assert_close(dense_loss("acpo_balanced", **centred), half)


def test_simko_where_fewer_tokens_are_possible():
    """What is missing of the K likeliest stays with the sampled token."""
    batch, _ = next_batch(0)
    batch["logits"][..., 2:] = -torch.inf
    batch["tokens"] = batch["tokens"] % 2
    options = {"alpha": 0.5, "entropy_quantile": 1e-9}
    _, gradient = loss_and_gradient(dense_loss, batch, "simko", **options)
    closed = logit_gradient("simko", **batch, **options)
    torch.testing.assert_close(gradient, closed, rtol=0, atol=1e-10)
    assert (gradient[..., 2:] == 0).all() and (gradient != 0).any()


def test_statistics_without_the_likeliest_are_refused():
    batch, _ = next_batch(0)
    logits = batch["logits"].clone().requires_grad_()
    stats = stats_from_logits(logits=logits, tokens=batch["tokens"])
    inputs = {name: batch[name] for name in ("old_logp", "advantages", "mask")}
    with pytest.raises(ACPOError, match="top_logp is missing or detached: method 'simko'"):
        token_objective("simko", stats=stats, **inputs)


def test_a_share_of_one_branch_alone_is_its_own():
    batch = random_batch(2)
    batch["advantages"] = batch["advantages"].abs()
    shared = dense_loss("sapo", **batch, positive_share=0.3)
    torch.testing.assert_close(shared, dense_loss("sapo", **batch))


def test_score_rows_by_hand():
    """Two completions of one token: p_y = 0.9 at the mode, and 0.1 beside a mode of 0.9."""
    logp = torch.tensor([[0.9], [0.1]], dtype=torch.float64).log()
    top = torch.full((2, 1), 0.9, dtype=torch.float64).log()
    advantages = torch.tensor([1.0, -1.0], dtype=torch.float64)
    mask = torch.ones(2, 1, dtype=torch.bool)
    norms = torch.tensor([0.01, 0.81 + 0.81], dtype=torch.float64)
    inputs = {"advantages": advantages, "mask": mask}
    got = shape_tokens("score_normalised", logp=logp, log_pmax=top, **inputs).advantages
    expected = advantages * (norms.mean() / norms).sqrt()
    torch.testing.assert_close(got[:, 0], expected)
    got = shape_tokens(
        "score_baseline", old_logp=logp, old_log_pmax=top, group_size=2, **inputs
    ).advantages
    baseline = (norms * advantages).sum() / norms.sum()
    torch.testing.assert_close(got[:, 0], advantages - baseline)


def test_the_two_term_score_norm_is_close_to_the_whole():
    batch = random_batch(3, sharpness=4.0)
    p = torch.softmax(batch["logits"], -1)
    one_hot = torch.nn.functional.one_hot(batch["tokens"], p.shape[-1])
    exact = torch.where(batch["mask"], (one_hot - p).square().sum(-1), 0.0).sum(1)
    stats = stats_from_logits(logits=batch["logits"], tokens=batch["tokens"])
    ours = score_norm(stats.logp, stats.log_pmax, batch["mask"])
    assert (ours <= exact + 1e-12).all() and (ours > 0.7 * exact).all()


@pytest.mark.parametrize(
    ("row", "options", "words"),
    [
        ("grpo", {"delta": 1.1}, ["delta=1.1", "1 + epsilon_high=1.2"]),
        ("sapo", {"delta": 4.0}, ["delta=4.0", "'sapo'"]),
        ("acpo", {"positive_share": 1.5}, ["positive_share=1.5", "(0, 1]"]),
        ("acpo", {"positive_share": "half"}, ["positive_share='half'", "'advantages'"]),
        ("sapo", {"nonpositive_weight": -1.0}, ["nonpositive_weight=-1.0", "negative"]),
        ("dr_grpo", {}, ["max_length is missing", "dr_grpo"]),
        ("clip_cov", {"cov_share": 0.0}, ["cov_share=0.0", "(0, 1]"]),
        ("simko", {"candidates": 0}, ["candidates=0", "the authors use 3"]),
        ("simko", {"candidates": 2.5}, ["candidates=2.5", "whole number"]),
    ],
)
def test_refusals(row, options, words):
    with pytest.raises(ACPOError) as error:
        dense_loss(row, **random_batch(0), **options)
    for word in words:
        assert word in str(error.value)
