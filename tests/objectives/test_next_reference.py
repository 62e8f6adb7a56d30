"""The loop reference of the later rows against numbers worked by hand and numpy.

TRL and verl are compared with the rows themselves: test_trl.py, engines/verl/test_later_rows.py.
"""

import math

import numpy as np
import pytest
import torch

from objectives import next_reference as ref

LN2 = math.log(2)


def inputs(p, p_old, advantages, tokens=None, mask=None):
    """A batch from probabilities [B, T, V]; the first id is sampled unless said."""
    logits = torch.as_tensor(p, dtype=torch.float64).log().requires_grad_()
    shape = logits.shape[:2]
    return (
        logits,
        torch.as_tensor(p_old, dtype=torch.float64).log(),
        torch.zeros(shape, dtype=torch.long) if tokens is None else torch.tensor(tokens),
        torch.tensor(advantages, dtype=torch.float64),
        torch.ones(shape, dtype=torch.bool) if mask is None else torch.tensor(mask),
    )


def binary(p, p_old, advantages):
    """A batch over two ids, from the probabilities [B, T] of the sampled one."""
    pairs = [np.stack([x, 1 - x], -1) for x in (np.array(p), np.array(p_old))]
    return inputs(*pairs, advantages)


def random_inputs(seed=0, rows=3, length=5, vocab=6, spread=0.5):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, length, vocab, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, length, vocab, generator=generator, dtype=torch.float64)
    mask = torch.ones(rows, length, dtype=torch.bool)
    mask[0, 3:] = False
    mask[1, 1] = False
    return (
        logits.requires_grad_(),
        logits.detach() + spread * noise,
        torch.randint(vocab, (rows, length), generator=generator),
        torch.randn(rows, generator=generator, dtype=torch.float64),
        mask,
    )


def arrays(batch):
    """p[B, T, V], one-hot y, p_old(y), w, A[B, T], mask, H, by vectorised numpy."""
    logits, old_logits, tokens, advantages, mask = (x.detach().numpy() for x in batch)
    p, q = (np.exp(z) / np.exp(z).sum(-1, keepdims=True) for z in (logits, old_logits))
    y = np.eye(logits.shape[-1])[tokens]
    p_old = (q * y).sum(-1)
    w = (p * y).sum(-1) / p_old
    a = np.broadcast_to(advantages[:, None], mask.shape)
    return p, y, p_old, w, a, mask, -(p * np.log(p)).sum(-1)


def gradient(loss, logits):
    return torch.autograd.grad(loss, logits)[0].numpy()


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
    ("bnpo", 0.575, 0.5, 1, {"delta": 1.1}, 0, -1.1),
    ("bnpo", 0.575, 0.5, -1, {"delta": 1.1}, 1.15, 1.15),
    ("dr_grpo", 0.55, 0.5, 2, {"normaliser": 4}, 1.1 / 4, -2.2 / 4),
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
    ("aspo", 0.65, 0.5, -1, {"q": None}, 1.3, 1.3),
    ("aspo", 0.8, 0.2, -1, {}, 3, 3),
    ("aspo", 0.35, 0.5, -1, {}, 0, 0.8),
    ("ce_gppo", 0.25, 0.5, -1, {}, 0.4, 0.4),
    ("ce_gppo", 0.25, 0.5, -1, {"beta1": 0.75}, 0.6, 0.6),
    ("ce_gppo", 0.25, 0.5, 1, {}, 0.5, -0.5),
    ("ce_gppo", 0.75, 0.5, 1, {}, 1.2, -1.2),
    ("ce_gppo", 0.75, 0.5, -1, {}, 1.5, 1.5),
    ("ce_gppo", 0.6, 0.05, -1, {}, 0, 10),
    ("ce_gppo", 0.6, 0.05, -1, {"dual": None}, 12, 12),
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
    ("maspo", 0.02, 0.01, 1, {"alpha": 1.0, "beta_pos": 0}, 2 * math.exp(-1 / 200), None),
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


@pytest.mark.parametrize(("row", "p", "p_old", "advantage", "constants", "g", "value"), HAND)
def test_one_token_by_hand(row, p, p_old, advantage, constants, g, value):
    batch = binary([[p]], [[p_old]], [float(advantage)])
    loss = ref.ROWS[row](*batch, **constants)
    got = gradient(loss, batch[0])[0, 0]
    np.testing.assert_allclose(got, -advantage * g * (1 - p) * np.array([1, -1]), atol=1e-12)
    assert loss.item() == pytest.approx(-advantage * g if value is None else value, abs=1e-12)


def test_vespo_takes_the_ratio_of_the_whole_completion():
    batch = binary([[0.6, 0.5]], [[0.5, 0.25]], [1.0])
    phi = math.exp(3) * 2.4**2 * math.exp(-3 * 2.4)
    loss = ref.vespo(*batch)
    assert loss.item() == pytest.approx(-phi * (math.log(0.6) + math.log(0.5)) / 2)


def covariance_batch():
    """log2 p = -1, -2; -1, -3 under A = 1, -1: covariances ln 2 times 3/4, -1/4; -3/4, 5/4."""
    return binary([[0.5, 0.25], [0.5, 0.125]], [[0.5, 0.25], [0.5, 0.25]], [1.0, -1.0])


def test_clip_cov_by_hand():
    batch = covariance_batch()
    cov = ref.covariances(ref.read(*batch))
    np.testing.assert_allclose(cov, LN2 * np.array([0.75, -0.25, -0.75, 1.25]))
    # The last token is in the band too, but clipped: w = 1/2 with A < 0.
    assert ref.clip_cov_candidates(*batch, bounds=(0.5, 1)) == [(0, 0)]
    assert ref.clip_cov_candidates(*batch, bounds=(0.5, 1), low=0.6) == [(0, 0), (1, 1)]
    drawn = torch.tensor([[True, False], [False, False]])
    loss = ref.clip_cov(*batch, drawn=drawn)
    assert loss.item() == pytest.approx(-(0 + 1 - 1 - 0.8) / 4)
    grad = gradient(loss, batch[0])
    np.testing.assert_allclose(grad[:, :, 0], [[0, -0.75 / 4], [0.5 / 4, 0]], atol=1e-15)
    assert [ref.clip_cov_count(torch.ones(1, n)) for n in (3, 9999, 10001)] == [1, 1, 2]


def test_kl_cov_by_hand():
    batch = covariance_batch()
    loss = ref.kl_cov(*batch)
    assert loss.item() == pytest.approx(-(1 + 1 - 1 - 0.5 - LN2) / 4)
    # Last token: -(w A) pushes p down, |log w| with w < 1 pushes it up.
    grad = gradient(loss, batch[0])[:, :, 0]
    expected = [[-0.5 / 4, -0.75 / 4], [0.5 / 4, (0.5 - 1) * 0.875 / 4]]
    np.testing.assert_allclose(grad, expected, atol=1e-15)
    two = ref.kl_cov(*batch, share=0.5, beta=0.1)
    assert two.item() == pytest.approx(-(1 + 1 - 1 - 0.5 - 0.1 * LN2) / 4)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_simko_gradient_in_closed_form(sign):
    logits, old, tokens, _, mask = random_inputs(3, length=6, spread=0.15)
    tokens = logits.detach().argmax(-1) if sign < 0 else tokens
    batch = (logits, old, tokens, sign * torch.tensor([0.5, 1.0, 2.0]).double(), mask)
    p, y, _, w, a, valid, entropy = arrays(batch)
    threshold = np.array([np.quantile(h[m], 0.8) for h, m in zip(entropy, valid, strict=True)])
    uncertain = (entropy > threshold[:, None])[..., None]
    top = np.eye(p.shape[-1])[np.argsort(-p, -1)[..., :3]].mean(-2)
    direction = np.where(uncertain & (sign > 0), 0.99 * (y - p) + 0.01 * (top - p), y - p)
    boost = np.where(uncertain & (sign < 0), 1.1, 1)[..., 0]
    clipped = np.where(sign > 0, w > 1.2, w < 0.8)
    factor = np.where(valid & ~clipped, boost * a * w, 0) / valid.sum()
    assert 0 < (uncertain[..., 0] & valid & ~clipped).sum() < valid.sum()
    loss = ref.simko(*batch)
    np.testing.assert_allclose(gradient(loss, logits), -factor[..., None] * direction, atol=1e-15)
    surrogate = np.where(sign > 0, np.minimum(w, 1.2), np.maximum(w, 0.8)) * boost * a
    assert loss.item() == pytest.approx(-surrogate[valid].mean())


def test_simko_scales_only_the_mode_of_bad_answers():
    p = [[[0.5, 0.3, 0.2], [0.98, 0.01, 0.01]]]
    rare = inputs(p, p, [-1.0], tokens=[[1, 0]])
    mode = inputs(p, p, [-1.0], tokens=[[0, 0]])
    assert ref.simko(*rare).item() == pytest.approx(1)
    assert ref.simko(*mode).item() == pytest.approx((1.1 + 1) / 2)


def test_aspo_widens_the_clip_of_uncertain_tokens():
    batch = random_inputs(12, spread=0.6)
    p, y, _, w, a, valid, entropy = arrays(batch)
    threshold = np.array([np.quantile(h[m], 0.8) for h, m in zip(entropy, valid, strict=True)])
    eps = np.where(entropy > threshold[:, None], 0.4, 0.2)
    good = np.where(w <= 1 + eps, np.minimum(1 / w, 3), 0)
    bad = np.where(w >= 1 - eps, np.minimum(w, 3), 0)
    expected = np.where(a > 0, good, bad) * a * valid / valid.sum()
    narrow = np.where(a > 0, np.where(w <= 1.2, good, 0), np.where(w >= 0.8, bad, 0))
    assert (narrow != np.where(a > 0, good, bad))[valid].any()
    grad = gradient(ref.aspo(*batch), batch[0])
    np.testing.assert_allclose(grad, -expected[..., None] * (y - p), atol=1e-15)
    grad = gradient(ref.aspo(*batch, q=None), batch[0])
    expected = narrow * a * valid / valid.sum()
    np.testing.assert_allclose(grad, -expected[..., None] * (y - p), atol=1e-15)


# Six tokens of rising entropy: the fifth is the 0.8-quantile, so ranks are -1, .., 0, 1.
RISING = np.array([0.01, 0.03, 0.06, 0.1, 0.2, 0.4])


def hapo_ranks():
    surprise = -RISING * np.log(RISING) - (1 - RISING) * np.log(1 - RISING)
    z = np.log(surprise / surprise[4])
    return np.where(z > 0, z / z[5], z / abs(z[0]))


def test_hapo_ranks_by_hand():
    batch = ref.read(*binary([RISING], [RISING], [1.0]))
    ranks = ref.entropy_ranks(batch, 0.8, "linear")
    np.testing.assert_allclose(ranks, hapo_ranks(), atol=1e-12)
    assert ranks[0] == -1 and ranks[4] == 0 and ranks[5] == 1
    assert ref.quantile([10, 0, 1, 2, 3], 0.8) == pytest.approx(3 + 0.2 * 7)
    assert ref.quantile([10, 0, 1, 2, 3], 0.8, "nearest") == 3


@pytest.mark.parametrize(
    ("neutral", "outer", "last"),
    [("base", lambda r: 0.85, 2 * 1.15), ("adapted", lambda r: 0.85 * (1 + r), 1.15)],
)
def test_hapo_of_a_good_answer_by_hand(neutral, outer, last):
    w = np.array([1, 0.85, 1.05, 1, 1, 1.15])
    r = hapo_ranks()
    assert 0.1 * (1 - r[1]) > 0.15
    expected = [0, outer(r[1]), 1.05 * (1 + r[2]), 1 + r[3], 1, last]
    batch = binary([RISING], [RISING / w], [1.0])
    loss = ref.hapo(*batch, neutral=neutral)
    assert loss.item() == pytest.approx(-np.mean(expected))
    grad = gradient(loss, batch[0])[0, :, 0]
    np.testing.assert_allclose(grad, -np.array(expected) * (1 - RISING) / 6, atol=1e-15)


def test_hapo_clips_by_entropy():
    """Sure tokens may fall to 1 - 0.2 (1 - ĥ), uncertain ones rise to 1 + 0.2 (1 + ĥ)."""
    r = hapo_ranks()
    low = 0.8 + 0.2 * r[1]
    falling = binary([RISING], [RISING / np.array([1, 0.5, 1, 1, 1, 0.7])], [-1.0])
    expected = [0, low, 1 + r[2], 1 + r[3], 1, 2 * 0.8]
    assert ref.hapo(*falling).item() == pytest.approx(np.mean(expected))
    rising = binary([RISING], [RISING / np.array([1, 1.3, 1, 1, 1, 1.5])], [1.0])
    expected = [0, 1.2, 1 + r[2], 1 + r[3], 1, 2 * 1.4]
    assert ref.hapo(*rising).item() == pytest.approx(-np.mean(expected))


def test_aggregation_masking_and_token_advantages():
    """J = w A of 3 + 1 tokens; what is masked may be anything."""
    p = np.array([[0.5, 0.55, 0.45], [0.6, 0.5, 0.5]])
    logits, old, tokens, _, mask = binary(p, [[0.5] * 3] * 2, [0.0, 0.0])
    with torch.no_grad():
        logits[1, 1:] = math.nan
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    a = torch.tensor([[1.0, 2.0, -3.0], [-2.0, math.nan, math.nan]])
    batch = (logits, old, tokens, a, mask)
    values = [1, 2.2, -2.7, -2.4]
    assert ref.bnpo(*batch).item() == pytest.approx(-sum(values) / 4)
    by_sequence = ref.bnpo(*batch, aggregate="sequence_mean").item()
    assert by_sequence == pytest.approx(-(sum(values[:3]) / 3 + values[3]) / 2)
    assert ref.dr_grpo(*batch, normaliser=10).item() == pytest.approx(-sum(values) / 20)
    one_each = [
        ref.bnpo(logits, old, tokens, advantages, mask).item()
        for advantages in (torch.tensor([3.0, -1.0]), torch.tensor([[3.0] * 3, [-1.0] * 3]))
    ]
    assert one_each[0] == one_each[1]
    with pytest.raises(ValueError, match="aggregate='mean'"):
        ref.bnpo(*batch, aggregate="mean")


def test_sign_weights():
    a = torch.tensor([[1.0, -2.0], [0.0, 4.0]])
    scaled = ref.sign_weights(a, positive=0.5, nonpositive=3)
    assert scaled.tolist() == [[0.5, -6], [0, 2]]


def test_positive_share():
    """Rows of 3 and 1 tokens with A = 1, -2: P = 3, N = 2 by tokens, 1/2 and 1 by sequences."""
    a = torch.tensor([1.0, -2.0])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    scaled = ref.positive_share(a, mask, share=0.2)
    np.testing.assert_allclose(scaled, [[1 / 3] * 3, [-4, 0, 0]])
    by_sequence = ref.positive_share(a, mask, share=0.5, aggregate="sequence_mean")
    np.testing.assert_allclose(by_sequence, [[1.5] * 3, [-1.5, 0, 0]])
    assert ref.positive_share(a.abs(), mask, share=0.2).tolist() == [[1, 1, 1], [2, 0, 0]]


SMOOTH = {
    "bnpo": {},
    "dr_grpo": {"normaliser": 7},
    "low_prob": {},
    "dcpo": {},
    "kl_cov": {"share": 0.3},
    "clip_cov": {"drawn": torch.eye(2, 3, dtype=torch.bool)},
}


@pytest.mark.parametrize("row", SMOOTH)
def test_finite_differences_where_nothing_is_detached(row):
    logits, *rest = random_inputs(1, rows=2, length=3, vocab=3)
    grad = gradient(ref.ROWS[row](logits, *rest, **SMOOTH[row]), logits)
    for place in np.ndindex(grad.shape):
        step = torch.zeros_like(logits)
        step[place] = 1e-6
        up, down = (ref.ROWS[row](z, *rest, **SMOOTH[row]) for z in (logits + step, logits - step))
        assert (up - down).item() / 2e-6 == pytest.approx(grad[place], abs=1e-8)


def test_shaped_advantages_are_constants():
    """The shaped rows have the gradient of the plain clip under advantages shaped by numpy."""
    batch = random_inputs(2)
    _, _, p_old, _, a, _, entropy = arrays(batch)
    shaped = {
        "entropy_adv": a + np.minimum(0.4 * entropy, np.abs(a) / 2),
        "low_prob": a * (0.2 * p_old + 0.8),
    }
    for row, advantages in shaped.items():
        ours = ref.ROWS[row](*batch, high=0.2)
        plain = ref.bnpo(*batch[:3], torch.tensor(advantages), batch[4])
        assert ours.item() == pytest.approx(plain.item())
        np.testing.assert_allclose(gradient(ours, batch[0]), gradient(plain, batch[0]), atol=1e-15)
