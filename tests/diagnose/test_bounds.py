"""The entropy bounds hold for every distribution, from two tokens to a whole vocabulary."""

import numpy as np
import pytest

from acpo.diagnose.envelope import bounds, exact_spread

SMALL = (2, 3, 4, 5, 8, 17)


def random_distributions(rng: np.random.Generator, n: int, support: int) -> np.ndarray:
    """Rows from nearly uniform to nearly deterministic, a third of them with equal tokens."""
    scale = 10 ** rng.uniform(-3, 1.5, (n, 1))
    z = rng.standard_normal((n, support)) * scale
    tied = rng.random(n) < 1 / 3
    z[tied] = np.round(z[tied])
    z -= z.max(-1, keepdims=True)
    p = np.exp(z)
    return p / p.sum(-1, keepdims=True)


def violations(p: np.ndarray) -> int:
    """Distributions whose entropy leaves L(δ), the exact minimum or U(δ)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0.0).sum(-1)
    delta = p.sum(-1) - p.max(-1)
    lower, exact, upper = bounds(np.maximum(delta, 0.0), p.shape[-1])
    rounding = 1e-12 * p.shape[-1] ** 0.5
    wrong = (lower > entropy + rounding) | (upper < entropy - rounding)
    # Where 1/p_max is an integer, the exact minimum has a vertical tangent.
    wrong |= (exact > entropy + 1e-9) | (lower > exact + 1e-9)
    return int(wrong.sum())


def check(total: int, large: int) -> int:
    rng = np.random.default_rng(0)
    seen = wrong = 0
    for support in SMALL:
        for size in np.diff(np.linspace(0, (total - large) // len(SMALL), 5).astype(int)):
            wrong += violations(random_distributions(rng, size, support))
            seen += size
    supports = np.exp(rng.uniform(np.log(20), np.log(151_936), large)).astype(int)
    supports[: large // 50] = 151_936
    for support in supports:
        wrong += violations(random_distributions(rng, 1, support))
        seen += 1
    assert wrong == 0
    return seen


def test_bounds_hold():
    assert check(1_000_000, 2_000) >= 999_990


@pytest.mark.parametrize("support", [2, 5, 17])
def test_a_violation_would_be_seen(support):
    """The check can fail: what is not quite a distribution leaves the bounds."""
    p = random_distributions(np.random.default_rng(1), 200, support)
    assert violations(p) == 0
    assert violations(1.001 * p) > 0


def test_exact_spread():
    """For δ up to a half it is δ log(k - 1); at k = 2 nothing is left to vary."""
    assert exact_spread(2)[0] == pytest.approx(0, abs=1e-9)
    most, at = exact_spread(5)
    assert (most, at) == (pytest.approx(0.5 * np.log(4)), pytest.approx(0.5, abs=1e-6))
    for support in (5, 17, 1000):
        delta = np.linspace(0, 0.5, 11)
        _, exact, upper = bounds(delta, support)
        np.testing.assert_allclose(upper - exact, delta * np.log(support - 1), atol=1e-12)
