"""The numbers and claims of the paper that can be computed."""

import math

import pytest
import torch

from acpo.objectives import dense_loss, group_advantages, theory
from objectives.batches import loss_and_gradient, random_batch


def test_envelope_table():
    widths = {100: 2.6286, 40: 1.9803, 20: 1.5235, 10: 1.1010, 5: 0.7178}
    for support, width in widths.items():
        assert round(theory.max_envelope_width(support), 4) == width
        grid = torch.linspace(1e-6, 1 - 1 / support, 200_001, dtype=torch.float64)
        upper, lower = theory.entropy_upper_bound(grid, support), theory.entropy_lower_bound(grid)
        assert (upper - lower).max().item() == pytest.approx(width, abs=1e-4)
    assert theory.max_envelope_width(151_936) == pytest.approx(8.761, abs=5e-4)
    assert 0 < theory.max_envelope_width(2) < theory.max_envelope_width(3)


def test_envelope_bounds_hold_and_are_reached():
    g = torch.Generator().manual_seed(0)
    for support in (2, 3, 17, 1000):
        logits = torch.randn(2000, support, generator=g, dtype=torch.float64)
        p = torch.softmax(logits * torch.rand(2000, 1, generator=g, dtype=torch.float64) * 12, -1)
        delta, entropy = 1 - p.max(-1).values, torch.special.entr(p).sum(-1)
        assert (theory.entropy_lower_bound(delta) <= entropy + 1e-12).all()
        assert (theory.exact_entropy_minimum(delta) <= entropy + 1e-9).all()
        assert (
            theory.entropy_lower_bound(delta) <= theory.exact_entropy_minimum(delta) + 1e-9
        ).all()
        assert (entropy <= theory.entropy_upper_bound(delta, support) + 1e-12).all()
    even = theory.entropy_upper_bound(0.3, 8)
    p = torch.tensor([0.7] + [0.3 / 7] * 7, dtype=torch.float64)
    assert even.item() == pytest.approx(torch.special.entr(p).sum().item())
    packed = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    assert theory.exact_entropy_minimum(0.6).item() == pytest.approx(
        torch.special.entr(packed).sum().item()
    )


def test_the_lower_bound_is_not_tight():
    """Exact spread for δ <= 1/2 is δ log(k - 1): half the envelope at k = 10, δ = 0.1."""
    spread = theory.entropy_upper_bound(0.1, 10) - theory.exact_entropy_minimum(0.1)
    assert spread.item() == pytest.approx(0.1 * math.log(9))
    width = theory.entropy_upper_bound(0.1, 10) - theory.entropy_lower_bound(0.1)
    assert width.item() == pytest.approx(0.4394, abs=1e-4)


def test_modulation_factors_at_the_proximal_point():
    p = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    torch.testing.assert_close(theory.positive_modulation(p), 3 * (1 - p))
    torch.testing.assert_close(theory.negative_modulation(p), (1 + 2 / 1.05) * p)
    torch.testing.assert_close(theory.positive_modulation(p, offset=1.0), 3 * (1 - p) - 1)
    assert pytest.approx(2.905, abs=5e-4) == 1 + 2 / 1.05


@pytest.mark.parametrize("w", [0.3, 1.0, 1.9, 3.0])
def test_modulation_factors_are_those_of_the_loss(w):
    """M± from the theory times w f'(w) A equals the gradient of the implemented loss."""
    logits = torch.tensor([[[1.2, 0.1, -0.5]]], dtype=torch.float64)
    p = torch.softmax(logits, -1)[0, 0, 0]
    for advantage, tau in ((1.0, 1.0), (-1.0, 1.05)):
        batch = {
            "logits": logits,
            "tokens": torch.tensor([[0]]),
            "old_logp": (p.log() - math.log(w)).view(1, 1),
            "advantages": torch.tensor([advantage], dtype=torch.float64),
            "mask": torch.ones(1, 1),
        }
        _, gradient = loss_and_gradient(dense_loss, batch, "acpo")
        factor = (
            theory.positive_modulation(p, w) if advantage > 0 else theory.negative_modulation(p, w)
        )
        s = torch.sigmoid(torch.tensor(tau * (w - 1), dtype=torch.float64))
        expected = -advantage * factor * w * 4 * s * (1 - s) * (1 - p)
        torch.testing.assert_close(gradient[0, 0, 0], expected)


@pytest.mark.parametrize("tau", [0.7, 1.0, 1.05, 1.6])
def test_largest_gap_of_a_reversed_mismatched_update(tau):
    """Unrouted, 1 - δ turns a non-positive update around only below (2 - τ)/(2 + τ)."""
    bound, kappa = theory.mismatch_reversal_gap(tau), 2 / tau
    g = torch.Generator().manual_seed(0)
    z = torch.randn(200_000, 3, generator=g, dtype=torch.float64) * 3
    z[:100_000, 2] = -torch.inf
    p = torch.softmax(z, -1).sort(-1, descending=True).values
    local = torch.eye(3, dtype=torch.float64)[1] - p
    proxy = p[:, :1] * (torch.eye(3, dtype=torch.float64)[0] - p)
    reversed_ = ((p[:, :1] * local + kappa * proxy) * local).sum(-1) < 0
    gaps = (p[:, 0] - p[:, 1])[reversed_]
    assert 0.99 * bound < gaps.max() < bound
    assert theory.mismatch_reversal_gap(2.5) == 0.0


def test_coupling_and_reversal():
    assert theory.coupling(1.0).item() == pytest.approx(2.0)
    assert theory.coupling(1.0, 1.05).item() == pytest.approx(1.905, abs=5e-4)
    onset = theory.reversal_onset()
    assert onset == pytest.approx(2.2564, abs=5e-5)
    assert theory.reversal_probability(onset + 1e-9).item() == pytest.approx(0.4432, abs=5e-5)
    assert torch.isnan(theory.reversal_probability(2.0))
    assert torch.isnan(theory.reversal_probability(0.5)), "no probability exceeds 1"
    for w in (2.3, 2.8, 4.0):
        edge = theory.reversal_probability(w)
        assert theory.positive_modulation(w * (edge - 1e-6), w) > 0
        assert theory.positive_modulation(w * (edge + 1e-6), w) < 0
    for tau in (0.5, 0.9, 0.99):
        assert float(theory.positive_modulation(1.0, 1.0, tau=tau)) < 0
        assert theory.reversal_onset(tau=tau) == 0.0, "tau < 1 with offset 2 reverses at w = 1"
    assert theory.reversal_onset(tau=2.0, offset=1.0) == pytest.approx(1.0)
    assert theory.reversal_onset(tau=1e-6, offset=3e6) > 1, "found without a million steps"


def local_coefficient(gradient, p, token):
    """Component of the update -∇loss along e_y - p, per token."""
    direction = torch.nn.functional.one_hot(token, p.shape[-1]).double() - p
    return -(gradient * direction).sum(-1) / direction.square().sum(-1)


def test_routed_mismatches_never_reverse_and_unrouted_ones_do():
    reversals = {"acpo": [0, 0], "acpo_no_routing": [0, 0]}
    for seed in range(40):
        batch = random_batch(seed, ratios=(1.0, 1.0), sharpness=1.0)
        p = torch.softmax(batch["logits"], -1)
        mismatched = (batch["tokens"] != p.argmax(-1)) & batch["mask"]
        for row, count in reversals.items():
            _, gradient = loss_and_gradient(dense_loss, batch, row)
            sign = batch["advantages"].sign()[:, None]
            agreement = local_coefficient(gradient, p, batch["tokens"]) * sign
            for branch, side in enumerate((sign > 0, sign < 0)):
                count[branch] += int((mismatched & side & (agreement < -1e-12)).sum())
    assert reversals["acpo"] == [0, 0]
    assert reversals["acpo_no_routing"][0] == 0, "the positive branch stays aligned"
    assert reversals["acpo_no_routing"][1] > 0, "the non-positive branch reverses at small gaps"


def test_acpo_equals_three_times_global_sg_on_policy():
    """At w = 1 the two differ only by 3/(1 + 2/τ_neg) on aligned non-positive tokens."""
    batch = random_batch(4, ratios=(1.0, 1.0))
    same_tau = {"tau_pos": 1.0, "tau_neg": 1.0}
    _, acpo = loss_and_gradient(dense_loss, batch, "acpo", **same_tau)
    _, control = loss_and_gradient(dense_loss, batch, "global_sg_x3", **same_tau)
    torch.testing.assert_close(acpo, control, rtol=1e-10, atol=1e-12)


def test_group_advantages_by_hand():
    got = group_advantages([1.0, 0.0, 0.0, 1.0, 2.0, 2.0, 2.0, 2.0], 4)
    unit = 0.5 / math.sqrt(1 / 3)
    torch.testing.assert_close(
        got, torch.tensor([unit, -unit, -unit, unit, 0, 0, 0, 0]), atol=2e-6, rtol=0
    )
    assert (got[4:] == 0).all()
    centred = group_advantages([1.0, 0.0, 0.0, 0.0], 4, scale="none")
    torch.testing.assert_close(centred, torch.tensor([0.75, -0.25, -0.25, -0.25]))


@pytest.mark.parametrize("size", [1, 2, 6, 7, 12])
def test_constant_groups_are_exactly_zero(size):
    assert (group_advantages([0.1] * (3 * size), size) == 0).all()


def test_missing_verdicts_drop_out_of_their_group():
    with_gap = group_advantages([1.0, None, 0.0, float("nan"), 1.0, 0.0], 6)
    without = group_advantages([1.0, 0.0, 1.0, 0.0], 4)
    torch.testing.assert_close(with_gap[[0, 2, 4, 5]], without)
    assert with_gap[1] == 0 and with_gap[3] == 0
    assert (group_advantages([None, None, 1.0, None], 2) == 0).all()
