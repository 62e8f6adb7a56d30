"""The closed forms against float64 autograd, on random and real distributions."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from acpo.diagnose import geometry
from acpo.objectives import theory
from diagnose.distributions import entropy_of, log_probabilities, peaked_logits, scalars

H_MAX = 3.8545


def gradient(z: Tensor, scalar) -> Tensor:
    """Gradient of each row's scalar with respect to its logits, by autograd."""
    z = z.clone().requires_grad_()
    logp, top = log_probabilities(z)
    return torch.autograd.grad(scalar(logp, top).sum(), z)[0]


def reference(z: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The vectors themselves: what the closed forms describe."""

    def soft_gate(logp: Tensor, tau: float) -> Tensor:
        sampled = logp.gather(1, y[:, None])[:, 0]
        return 4 / tau * torch.sigmoid(tau * ((sampled - sampled.detach()).exp() - 1))

    def delta(logp: Tensor, top: Tensor) -> Tensor:
        return -torch.expm1(logp.gather(1, top)[:, 0])

    def shannon(logp: Tensor) -> Tensor:
        return entropy_of(logp) / H_MAX

    return {
        "local": gradient(z, lambda logp, top: logp.gather(1, y[:, None])[:, 0]),
        "delta": gradient(z, delta),
        "shannon": gradient(z, lambda logp, top: shannon(logp)),
        "2+delta": gradient(z, lambda lp, top: soft_gate(lp, 1.0) * (2 + delta(lp, top))),
        "1-delta": gradient(z, lambda lp, top: soft_gate(lp, 1.05) * (1 - delta(lp, top))),
        "shannon+0": gradient(z, lambda lp, top: soft_gate(lp, 1.0) * shannon(lp)),
        "shannon+2": gradient(z, lambda lp, top: soft_gate(lp, 1.0) * (2 + shannon(lp))),
    }


def closed_forms(t: geometry.TokenScalars) -> dict[str, geometry.Direction]:
    pos, neg = 2.0, 2 / 1.05
    return {
        "delta": geometry.surrogate(t),
        "shannon": geometry.shannon(t, H_MAX),
        "2+delta": geometry.surrogate_composite(t, offset=2, slope=1, coupling=pos),
        "1-delta": geometry.surrogate_composite(t, offset=1, slope=-1, coupling=neg),
        "shannon+0": geometry.shannon_composite(t, h_max=H_MAX, offset=0, coupling=pos),
        "shannon+2": geometry.shannon_composite(t, h_max=H_MAX, offset=2, coupling=pos),
    }


def compare(z: Tensor, y: Tensor) -> None:
    """Cosines to 1e-9, lengths to a relative 1e-9, each where autograd itself has the digits."""
    t, vectors = scalars(z, y), reference(z, y)
    local = vectors.pop("local").numpy()
    local_norm = np.linalg.norm(local, axis=-1)
    np.testing.assert_allclose(geometry.local_norm2(t), local_norm**2, rtol=1e-9)
    for name, direction in closed_forms(t).items():
        vector = vectors[name].numpy()
        norm = np.linalg.norm(vector, axis=-1)
        # An aligned 2+δ is 2+δ-2m of g_local: autograd subtracts, and loses what cancels.
        lost = 4e-16 * local_norm / norm if name.endswith("delta") else np.zeros_like(norm)
        cosine = (vector * local).sum(-1) / (norm * local_norm)
        assert (np.abs(direction.cosine - cosine) <= 1e-9 + lost).all(), name
        assert (np.abs(direction.ratio * local_norm / norm - 1) <= 1e-9 + lost).all(), name


def sampled(z: Tensor, seed: int = 0) -> Tensor:
    return torch.multinomial(
        torch.softmax(z, -1), 1, generator=torch.Generator().manual_seed(seed)
    )[:, 0]


@pytest.mark.parametrize("vocab", [2, 3, 17, 1000])
@pytest.mark.parametrize("scale", [0.3, 2.0, 6.0])
def test_random_distributions(vocab, scale):
    g = torch.Generator().manual_seed(vocab)
    z = torch.randn(400, vocab, generator=g, dtype=torch.float64) * scale
    compare(z, sampled(z))
    compare(z, z.argmin(-1))


def test_real_distributions(chain_states):
    z = chain_states.logits
    assert len(z) > 500
    compare(z, chain_states.tokens)
    compare(z, z.argsort(-1)[:, -2])


@pytest.mark.parametrize("vocab", [3, 50, 2000])
def test_peaked_distributions(vocab):
    z = peaked_logits(300, vocab)
    assert scalars(z, z.argmax(-1)).delta.min() == pytest.approx(1e-12, rel=1e-6)
    compare(z, z.argmax(-1))
    compare(z, z.argsort(-1)[:, -2])


def test_the_vocabulary_of_a_large_model():
    g = torch.Generator().manual_seed(0)
    z = torch.randn(6, 151_936, generator=g, dtype=torch.float64) * 2
    z[:, 7] += torch.tensor([0.0, 5.0, 10.0, 20.0, 30.0, 40.0], dtype=torch.float64)
    compare(z, sampled(z))
    compare(z, z.argmax(-1))


def test_output_head_gradients_have_the_same_geometry(chain_states):
    """G(g) = g hᵀ: cosines and norm ratios of the head's gradients are those of the logits'."""
    z, y, hidden = chain_states.logits, chain_states.tokens, chain_states.hidden
    t = scalars(z, y)
    surrogate, shannon = geometry.surrogate(t), geometry.shannon(t, H_MAX)
    for row in range(0, len(z), len(z) // 25):
        weight = chain_states.weight.clone().requires_grad_()
        logp, top = log_probabilities((weight @ hidden[row])[None])
        local, delta, entropy = (
            torch.autograd.grad(value, weight, retain_graph=True)[0].ravel()
            for value in (
                logp[0, y[row]],
                -torch.expm1(logp[0, top[0, 0]]),
                entropy_of(logp)[0] / H_MAX,
            )
        )
        for gradient_, direction in ((delta, surrogate), (entropy, shannon)):
            cosine = torch.dot(gradient_, local) / (gradient_.norm() * local.norm())
            assert direction.cosine[row] == pytest.approx(cosine.item(), abs=1e-9)
            ratio = (gradient_.norm() / local.norm()).item()
            assert direction.ratio[row] == pytest.approx(ratio, rel=1e-8)


def test_aligned_surrogate_is_exactly_antiparallel():
    z = peaked_logits(1000, 40)
    t = scalars(z, z.argmax(-1))
    direction = geometry.surrogate(t)
    assert (direction.cosine == -1).all()
    assert (direction.ratio == t.p_max).all()


def test_aligned_composites_are_the_modulation_factors():
    z = peaked_logits(1000, 40)
    t = scalars(z, z.argmax(-1))
    positive = geometry.surrogate_composite(t, offset=2, slope=1, coupling=2)
    np.testing.assert_allclose(positive.along, 3 * t.delta, rtol=1e-15)
    assert (positive.cosine == 1).all()
    negative = geometry.surrogate_composite(t, offset=1, slope=-1, coupling=2 / 1.05)
    modulation = theory.negative_modulation(torch.from_numpy(t.p_max)).numpy()
    np.testing.assert_allclose(negative.along, modulation, rtol=1e-14)
    weak = geometry.surrogate_composite(t, offset=1, slope=1, coupling=2)
    assert ((weak.cosine < 0) == (3 * t.delta < 1)).all()


@pytest.mark.parametrize("vocab", [2, 5, 300])
def test_mismatched_updates(vocab):
    """Positive ones never reverse, routed ones neither; non-positive ones only at small gaps."""
    g = torch.Generator().manual_seed(vocab)
    z = torch.randn(20_000, vocab, generator=g, dtype=torch.float64)
    z *= 12 * torch.rand(20_000, 1, generator=g, dtype=torch.float64)
    t = scalars(z, z.argsort(-1)[:, -2])
    assert (geometry.surrogate_composite(t, offset=2, slope=1, coupling=2).cosine > 0).all()
    for positive in (True, False):
        assert (geometry.routed(t, positive=positive).cosine == 1).all()
    for tau in (1.0, 1.05, 1.5):
        update = geometry.surrogate_composite(t, offset=1, slope=-1, coupling=2 / tau)
        gaps = t.gap[update.cosine < 0]
        bound = theory.mismatch_reversal_gap(tau)
        assert 0.9 * bound < gaps.max() < bound if vocab == 2 else gaps.max(initial=0) < bound
    never = geometry.surrogate_composite(t, offset=1, slope=-1, coupling=1.0)
    assert theory.mismatch_reversal_gap(2.0) == 0
    assert (never.along >= -1e-12).all()


def test_no_direction_is_nan_not_a_number():
    one_token = scalars(torch.zeros(3, 1, dtype=torch.float64), torch.zeros(3, dtype=torch.long))
    for direction in closed_forms(one_token).values():
        assert np.isnan(direction.cosine).all()
    even = scalars(torch.zeros(1, 4, dtype=torch.float64), torch.tensor([2]))
    assert geometry.shannon(even, H_MAX).ratio[0] < 1e-7


def test_float32_columns_are_enough_for_the_figures(chain_states):
    """What a trace rounds changes a cosine by less than a figure can show."""
    exact = scalars(chain_states.logits, chain_states.tokens)
    names = ("logp", "log_pmax", "entropy")
    rounded = exact._replace(
        **{name: getattr(exact, name).astype(np.float32).astype(np.float64) for name in names}
    )
    for name, direction in closed_forms(rounded).items():
        error = np.abs(direction.cosine - closed_forms(exact)[name].cosine)
        assert np.nanmax(error) < 1e-4, name
    assert math.isfinite(np.nanmax(closed_forms(rounded)["shannon"].ratio))
