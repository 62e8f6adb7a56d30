"""The later rows against numbers worked by hand, as their references in loops are not."""

import math

import numpy as np
import pytest
import torch

from acpo.objectives import dense_loss

LN2 = math.log(2)


def loss_and_slope(row, p, p_old, advantages, tokens=None, **options):
    """The loss of a row on probabilities [B, T, V] or, over two ids, [B, T] of the first; its
    gradient to the first id's logits. The first id is sampled unless said."""
    p, p_old = (np.array(x, dtype=float) for x in (p, p_old))
    if p.ndim == 2:
        p, p_old = (np.stack([x, 1 - x], -1) for x in (p, p_old))
    logits = torch.tensor(p).log().requires_grad_()
    tokens = torch.zeros(p.shape[:2], dtype=torch.long) if tokens is None else torch.tensor(tokens)
    loss = dense_loss(
        row,
        logits=logits,
        tokens=tokens,
        old_logp=torch.tensor(p_old).log().gather(-1, tokens[..., None])[..., 0],
        advantages=torch.tensor(advantages, dtype=torch.float64),
        mask=torch.ones(tokens.shape, dtype=torch.bool),
        **options,
    )
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.item(), gradient.numpy()[..., 0]


# row, p, p_old, A, constants, g, value of the loss (all of one token)
HAND = [
    ("bnpo", 0.55, 0.5, 2, {}, 1.1, -2.2),
    ("bnpo", 0.7, 0.5, 2, {}, 0, -2.4),
    ("bnpo", 0.7, 0.5, -2, {}, 1.4, 2.8),
    ("bnpo", 0.3, 0.5, -1, {}, 0, 0.8),
    ("bnpo", 0.3, 0.5, 1, {}, 0.6, -0.6),
    ("bnpo", 0.7, 0.5, -1, {"delta": 1.5}, 1.4, 1.4),
    ("bnpo", 0.9, 0.5, -1, {"delta": 1.5}, 0, 1.5),
    ("bnpo", 0.9, 0.5, 1, {"delta": 1.5}, 0, -1.2),
    ("dr_grpo", 0.55, 0.5, 2, {"max_length": 4}, 1.1 / 4, -2.2 / 4),
    ("vespo", 0.6, 0.5, 1, {}, 1.44 * math.exp(-0.6), -1.44 * math.exp(-0.6) * math.log(0.6)),
    ("vespo", 0.6, 0.5, -1, {}, 1.728 * math.exp(-0.4), 1.728 * math.exp(-0.4) * math.log(0.6)),
    ("entropy_adv", 0.5, 0.5, 2, {}, 1 + 0.2 * LN2, -2 - 0.4 * LN2),
    ("entropy_adv", 0.5, 0.5, -0.2, {}, 0.5, 0.1),
    ("entropy_adv", 0.5, 0.5, -2, {}, 1 - 0.2 * LN2, 2 - 0.4 * LN2),
    ("entropy_adv", 0.65, 0.5, 0.1, {}, 0, -0.15 * 1.28),
    ("low_prob", 0.55, 0.5, 2, {}, 0.99, -1.98),
    ("low_prob", 0.55, 0.5, -2, {"alpha": 0.3}, 0.935, 1.87),
    ("aspo", 0.25, 0.5, 1, {}, 2, -2),
    ("aspo", 0.1, 0.5, 1, {}, 3, -3),
    ("aspo", 0.55, 0.5, 1, {}, 1 / 1.1, -1 / 1.1),
    ("aspo", 0.65, 0.5, 1, {}, 0, -1 / 1.2),
    ("aspo", 0.8, 0.2, -1, {}, 3, 3),
    ("aspo", 0.35, 0.5, -1, {}, 0, 0.8),
    ("ce_gppo", 0.25, 0.5, -1, {}, 0.4, 0.4),
    ("ce_gppo", 0.25, 0.5, -1, {"beta_low": 0.75}, 0.6, 0.6),
    ("ce_gppo", 0.25, 0.5, 1, {}, 0.5, -0.5),
    ("ce_gppo", 0.75, 0.5, 1, {}, 1.2, -1.2),
    ("ce_gppo", 0.75, 0.5, -1, {}, 1.5, 1.5),
    ("ce_gppo", 0.6, 0.05, -1, {}, 0, 10),
    ("dcpo", 0.68, 0.5, 1, {}, 1.36, -1.36),
    ("dcpo", 0.72, 0.5, 1, {}, 0, -1.4),
    ("dcpo", 0.3, 0.5, -1, {}, 0.6, 0.6),
    ("dcpo", 0.2, 0.5, -1, {}, 0, 0.5),
    ("dcpo", 0.63, 0.9, -1, {}, 0.7, 0.7),
    ("dcpo", 0.54, 0.9, -1, {}, 0, 2 / 3),
    ("dcpo", 0.006, 0.0005, 1, {}, 0, -10),
    ("maspo", 0.5, 0.25, 1, {"alpha": 0.5}, 2 * math.exp(-1 / (8 * 1.03**2)), None),
    ("maspo", 0.125, 0.25, -1, {"alpha": 0.5}, 0.5 * math.exp(-(1.03**2) / 32), None),
    ("maspo", 0.5, 0.25, -1, {}, 2, 2),
    ("maspo", 0.125, 0.25, 1, {}, 0.5, -0.5),
    ("maspo", 0.02, 0.01, 1, {"alpha": 1.0, "beta_sigma": 0}, 2 * math.exp(-1 / 200), None),
    ("maspo", 0.5, 0.25, 1000, {"alpha": 0.5}, 2 * math.exp(-1 / 800), None),
    ("dppo_tv", 0.68, 0.5, 1, {}, 1.36, -1.36 * math.log(0.68)),
    ("dppo_tv", 0.72, 0.5, 1, {}, 0, 0),
    ("dppo_tv", 0.72, 0.5, -1, {}, 1.44, 1.44 * math.log(0.72)),
    ("dppo_tv", 0.32, 0.5, -1, {}, 0.64, 0.64 * math.log(0.32)),
    ("dppo_tv", 0.28, 0.5, -1, {}, 0, 0),
    ("dppo_tv", 0.205, 0.01, 1, {}, 20, -20 * math.log(0.205)),
    # KL > 0.2 from p_old = 1/2 means 4 p (1 - p) < e^-0.4, so p outside (0.2129, 0.7871).
    ("dppo_kl", 0.78, 0.5, 1, {}, 1.56, -1.56 * math.log(0.78)),
    ("dppo_kl", 0.79, 0.5, 1, {}, 0, 0),
    ("dppo_kl", 0.22, 0.5, -1, {}, 0.44, 0.44 * math.log(0.22)),
    ("dppo_kl", 0.21, 0.5, -1, {}, 0, 0),
    ("dppo_kl", 0.21, 0.5, 1, {}, 0.42, -0.42 * math.log(0.21)),
]


@pytest.mark.parametrize(("row", "p", "p_old", "advantage", "options", "g", "value"), HAND)
def test_one_token_by_hand(row, p, p_old, advantage, options, g, value):
    loss, slope = loss_and_slope(row, [[p]], [[p_old]], [advantage], **options)
    assert slope.item() == pytest.approx(-advantage * g * (1 - p), abs=1e-12)
    assert loss == pytest.approx(-advantage * g if value is None else value, abs=1e-12)


def test_vespo_takes_the_ratio_of_the_whole_completion():
    phi = math.exp(3) * 2.4**2 * math.exp(-3 * 2.4)
    loss, _ = loss_and_slope("vespo", [[0.6, 0.5]], [[0.5, 0.25]], [1.0])
    assert loss == pytest.approx(-phi * (math.log(0.6) + math.log(0.5)) / 2)


# log2 p = -1, -2; -1, -3 under A = 1, -1: covariances ln 2 times 3/4, -1/4; -3/4, 5/4.
COVARIANCES = [[0.5, 0.25], [0.5, 0.125]], [[0.5, 0.25], [0.5, 0.25]], [1.0, -1.0]


def test_clip_cov_by_hand():
    band = {"cov_share": 1.0, "cov_low": 0.5, "cov_high": 1.0}
    # The last token is in the band too, but clipped: w = 1/2 with A < 0.
    loss, slope = loss_and_slope("clip_cov", *COVARIANCES, **band)
    assert loss == pytest.approx(-(0 + 1 - 1 - 0.8) / 4)
    np.testing.assert_allclose(slope, [[0, -0.75 / 4], [0.5 / 4, 0]], atol=1e-15)
    loss, slope = loss_and_slope("clip_cov", *COVARIANCES, **band, epsilon=0.6)
    assert loss == pytest.approx(-(0 + 1 - 1 - 0) / 4) and slope[1, 1] == 0


def test_kl_cov_by_hand():
    loss, slope = loss_and_slope("kl_cov", *COVARIANCES)
    assert loss == pytest.approx(-(1 + 1 - 1 - 0.5 - LN2) / 4)
    # Last token: -(w A) pushes p down, |log w| with w < 1 pushes it up.
    expected = [[-0.5 / 4, -0.75 / 4], [0.5 / 4, (0.5 - 1) * 0.875 / 4]]
    np.testing.assert_allclose(slope, expected, atol=1e-15)
    two, _ = loss_and_slope("kl_cov", *COVARIANCES, cov_share=0.5, beta_cov=0.1)
    assert two == pytest.approx(-(1 + 1 - 1 - 0.5 - 0.1 * LN2) / 4)


def test_simko_scales_only_the_mode_of_bad_answers():
    p = [[[0.5, 0.3, 0.2], [0.98, 0.01, 0.01]]]
    for tokens, loss in (([[1, 0]], 1.0), ([[0, 0]], (1.1 + 1) / 2)):
        assert loss_and_slope("simko", p, p, [-1.0], tokens)[0] == pytest.approx(loss)


# Six tokens of rising entropy: the fifth is the 0.8-quantile, so ranks are -1, .., 0, 1.
RISING = np.array([0.01, 0.03, 0.06, 0.1, 0.2, 0.4])
SURPRISE = -RISING * np.log(RISING) - (1 - RISING) * np.log(1 - RISING)
RANKS = np.log(SURPRISE / SURPRISE[4])
RANKS = np.where(RANKS > 0, RANKS / RANKS[5], RANKS / abs(RANKS[0]))


def hapo(w, advantage):
    return loss_and_slope("hapo", [RISING], [RISING / np.array(w)], [advantage])


def test_hapo_of_a_good_answer_by_hand():
    r = RANKS
    assert 0.1 * (1 - r[1]) > 0.15
    expected = np.array([0, 0.85, 1.05 * (1 + r[2]), 1 + r[3], 1, 2 * 1.15])
    loss, slope = hapo([1, 0.85, 1.05, 1, 1, 1.15], 1.0)
    assert loss == pytest.approx(-expected.mean())
    np.testing.assert_allclose(slope[0], -expected * (1 - RISING) / 6, atol=1e-12)


def test_hapo_clips_by_entropy():
    """Sure tokens may fall to 1 - 0.2 (1 - ĥ), uncertain ones rise to 1 + 0.2 (1 + ĥ)."""
    r = RANKS
    expected = [0, 0.8 + 0.2 * r[1], 1 + r[2], 1 + r[3], 1, 2 * 0.8]
    assert hapo([1, 0.5, 1, 1, 1, 0.7], -1.0)[0] == pytest.approx(np.mean(expected))
    expected = [0, 1.2, 1 + r[2], 1 + r[3], 1, 2 * 1.4]
    assert hapo([1, 1.3, 1, 1, 1, 1.5], 1.0)[0] == pytest.approx(-np.mean(expected))
