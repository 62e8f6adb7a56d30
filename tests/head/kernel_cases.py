"""The Triton row step against the torch one. Run by test_triton.py in Triton's interpreter, and
directly on a GPU: `pytest tests/head/kernel_cases.py`."""

from itertools import product

import pytest
import torch

from acpo.head import chunked, triton
from acpo.head.projection import Projection
from acpo.head.rows import RowCoefficients, RowStats, RowSums, Sparsity
from acpo.head.terms import TokenTerms
from acpo.objectives import METHODS
from objectives.batches import EXTRAS, ROWS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NARROW = 3e-3 if DEVICE == "cuda" else 8e-3  # the interpreter truncates to bfloat16
# Below, at and above a block; one that is no multiple of anything.
VOCABS = (16, 300, 8192, 8200)
WITHOUT_KERNEL = ["aspo", "kl_cov"]  # the coefficients of all such rows are torch's
LOCAL = [row for row in ROWS[: ROWS.index("gmpo")] if not METHODS[row].sequence_level]
LOCAL += [*WITHOUT_KERNEL, "simko"]
PROJECTIONS = [Projection(), Projection(0.7, None, 1.3), Projection(1.2, 5.0, 0.9)]
TERMS = {"plain": {}, "kl+bonus": {"beta": 0.1, "bonus": True}, "on-policy": {"on_policy": True}}
TERMS["corrected kl"] = {"beta": 0.1, "corrects_kl": True}
CHUNK = 8 if DEVICE == "cuda" else 6  # the interpreter takes a row at a time


def cases(*values):
    """Every combination on a GPU; in the interpreter, which is slow, every pair of values."""
    numbered = product(*map(enumerate, values))
    return [
        tuple(value for _, value in case)
        for case in numbered
        if DEVICE == "cuda" or sum(number for number, _ in case) % 2 == 0
    ]


def chunk(vocab, rows=CHUNK, seed=0):
    """Raw products in a padded buffer, as the pass hands them over, with sampled tokens."""
    g = torch.Generator().manual_seed(seed)
    stride = -(-vocab // 16) * 16
    buffer = torch.full((rows, stride), 7.0)
    buffer[:, :vocab] = 3 * torch.randn(rows, vocab, generator=g)
    buffer[0, :vocab] -= 5000.0  # a running maximum must not start at 0
    raw = buffer.to(DEVICE)[:, :vocab]
    tokens = torch.randint(vocab, (rows,), generator=g).to(DEVICE)
    tokens[::2] = raw[::2].float().argmax(-1)
    return raw, tokens


def terms_for(row, tokens, logp, **extra):
    g = torch.Generator().manual_seed(1)
    rows = len(logp)
    options = EXTRAS.get(row, {})

    def noise():
        return torch.randn(rows, generator=g).to(DEVICE)

    method = METHODS[row](**options)
    return TokenTerms(
        tokens,
        method=method,
        old_logp=None if extra.get("on_policy") else logp + 0.7 * noise(),
        advantages=noise(),
        weights=noise().abs(),
        entropy_max=2.5 if method.credit.signal == "entropy" else None,
        ref_logp=logp + 0.2 * noise() if "beta" in extra else None,
        beta=extra.get("beta", 0.0),
        corrects_kl=extra.get("corrects_kl", False),
        entropy_weights=noise() if extra.get("bonus") else None,
        marks=(noise() > 0).float() if method.shaping.marks else None,
    )


def statistics_of(module, raw, tokens, projection):
    stats = RowStats.empty(len(tokens), tokens.device, torch.float32)
    module.statistics(raw, tokens, projection, 1e-6, stats)
    return stats


@pytest.mark.parametrize(("vocab", "projection"), cases(VOCABS, PROJECTIONS))
def test_statistics(vocab, projection):
    raw, tokens = chunk(vocab)
    ours = statistics_of(triton, raw.clone(), tokens, projection)
    expected = statistics_of(chunked, raw.clone(), tokens, projection)
    assert torch.equal(ours.is_mode, expected.is_mode) and ours.is_mode.any()
    assert torch.equal(ours.mode, expected.mode)
    for name in ("logp", "log_pmax", "entropy", "log_total"):
        torch.testing.assert_close(
            getattr(ours, name), getattr(expected, name), rtol=2e-5, atol=2e-5
        )


@pytest.mark.parametrize(("row", "extra", "narrow"), cases(LOCAL, TERMS, (False, True)))
def test_policy_gradient(row, extra, narrow):
    vocab = 8200 if narrow else 300
    projection = Projection(0.8)
    raw, tokens = chunk(vocab, rows=CHUNK if DEVICE == "cuda" else 4)
    logp = statistics_of(chunked, raw.clone(), tokens, projection).logp
    terms = terms_for(row, tokens, logp, **TERMS[extra])
    assert_same_gradient(raw, projection, terms, torch.bfloat16 if narrow else torch.float32)


def assert_same_gradient(raw, projection, terms, dtype):
    results = []
    for module in (triton, chunked):
        buffer = raw.new_empty(len(raw), raw.stride(0))[:, : raw.shape[1]].copy_(raw)
        stats = RowStats.empty(len(raw), raw.device, torch.float32)
        c, gradient = module.policy_gradient(buffer, projection, terms, stats, dtype)
        results.append((c, gradient.float()))
    (c, gradient), (expected_c, expected) = results
    torch.testing.assert_close(c.value, expected_c.value, rtol=1e-4, atol=1e-5)
    assert gradient.shape == expected.shape and expected.abs().max() > 0
    distance = (gradient - expected).norm() / expected.norm()
    assert distance < (NARROW if dtype == torch.bfloat16 else 1e-4)


def test_ratios_and_entropies_beyond_their_caps():
    raw, tokens = chunk(300, rows=4)
    stats = statistics_of(chunked, raw.clone(), tokens, Projection())
    advantages, weights = (
        torch.tensor([1.0, -1.0, 2.0, -0.5], device=DEVICE),
        torch.ones_like(raw)[:, 0],
    )
    given = {"tokens": tokens, "advantages": advantages, "weights": weights}
    far = TokenTerms(method=METHODS["cispo"](), old_logp=stats.logp - 3.0, **given)
    least = float(stats.entropy.median())
    live = METHODS["shannon"](entropy_norm=least)
    unsure = TokenTerms(method=live, old_logp=stats.logp, entropy_max=least, **given)
    for terms in (far, unsure):
        assert_same_gradient(raw, Projection(), terms, torch.float32)


@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("candidates", [0, 5])
def test_given_coefficients(softcap, narrow, candidates):
    projection = Projection(0.9, softcap, 1.1)
    raw, tokens = chunk(8200)
    raw[1, [7, 4000, 8199]] = raw[1].max()  # a tie: the smallest ids come first
    raw[2, 2:] = -torch.inf  # fewer tokens than candidates
    tokens[2] = 1
    g = torch.Generator().manual_seed(2)
    c = RowCoefficients(*(torch.randn(len(tokens), generator=g).to(DEVICE) for _ in range(4)))
    if candidates:
        top = torch.randn(len(tokens), candidates, generator=g)
        top[4] = 0.0
        c = c._replace(top=top.to(DEVICE))
    dtype = torch.bfloat16 if narrow else torch.float32
    got, expected = (
        module.gradient(
            raw.new_empty(len(raw), raw.stride(0))[:, :8200].copy_(raw),
            tokens,
            projection,
            statistics_of(module, raw.clone(), tokens, projection),
            c,
            dtype,
        ).float()
        for module in (triton, chunked)
    )
    assert (got - expected).norm() / expected.norm() < (NARROW if narrow else 1e-4)


def test_what_the_likeliest_give_is_rounded_once():
    """At the sampled token 500 goes and 500 comes: what is left has no rounding of 500 in it."""
    raw, tokens = chunk(300)
    tokens = raw.argsort(-1)[:, 100].contiguous()
    zero = torch.zeros(len(tokens), device=DEVICE)
    top = torch.full((len(tokens), 5), 100.0, device=DEVICE)
    c = RowCoefficients(zero, zero + 0.01, zero, zero, top)
    got, expected = (
        module.gradient(
            raw.new_empty(len(raw), raw.stride(0))[:, :300].copy_(raw),
            tokens,
            Projection(),
            statistics_of(module, raw.clone(), tokens, Projection()),
            c,
            torch.bfloat16,
        ).gather(1, tokens[:, None])
        for module in (triton, chunked)
    )
    torch.testing.assert_close(got, expected, rtol=0.02, atol=1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_rows_give_zero_gradient(bad):
    raw, tokens = chunk(300)
    raw[3, 17] = bad
    stats = RowStats.empty(len(tokens), tokens.device, torch.float32)
    terms = terms_for("acpo", tokens, torch.full((len(tokens),), -2.0, device=DEVICE))
    c, gradient = triton.policy_gradient(raw, Projection(), terms, stats, torch.float32)
    assert not stats.finite()[3] and stats.finite().sum() == len(tokens) - 1
    assert (gradient[3] == 0).all() and c.value[3] == 0 and torch.isfinite(gradient).all()


def test_impossible_tokens():
    raw, tokens = chunk(300)
    raw[:, 5] = -torch.inf
    tokens[tokens == 5] = 6
    stats = statistics_of(triton, raw, tokens, Projection())
    expected = statistics_of(chunked, raw.clone(), tokens, Projection())
    torch.testing.assert_close(stats.entropy, expected.entropy, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("row", ["acpo", "acpo_no_routing", "shannon"])
def test_sparse_selection(row):
    raw, tokens = chunk(300)
    logp = statistics_of(chunked, raw.clone(), tokens, Projection()).logp
    terms = terms_for(row, tokens, logp)
    terms.advantages[1] = 1e-9
    for eps in (0.0, 1e-3):
        stats = RowStats.empty(len(tokens), tokens.device, torch.float32)
        sparsity = Sparsity(eps, terms.row_weight())
        _, dense = chunked.policy_gradient(raw.clone(), Projection(), terms, stats, torch.float32)
        _, sparse = triton.policy_gradient(
            raw.clone(), Projection(), terms, stats, torch.float32, sparsity
        )
        kept = sparse.columns.unique()
        rebuilt = torch.zeros_like(dense)
        rebuilt.index_put_(
            (sparse.rows[:, None], sparse.columns[None]), sparse.values, accumulate=True
        )
        missed = (dense - rebuilt).abs() / terms.row_weight()[:, None]
        assert missed.max() <= eps + 1e-5
        assert (len(kept) < 300) == (eps > 0)
    assert 1 not in sparse.rows.tolist()


def test_scale_in_place():
    x = torch.arange(10_000.0, device=DEVICE)
    assert triton.scale_(x, torch.tensor(2.5, device=DEVICE)) is x
    torch.testing.assert_close(x, 2.5 * torch.arange(10_000.0, device=DEVICE))
    triton.scale_(x, torch.tensor(1.0, device=DEVICE))
    torch.testing.assert_close(x, 2.5 * torch.arange(10_000.0, device=DEVICE))


@pytest.mark.parametrize(("vocab", "projection"), cases((1, *VOCABS), PROJECTIONS))
def test_row_sums(vocab, projection):
    raw, tokens = chunk(vocab)
    raw[1] *= 8  # sharp, and sampled far from the mode: the sums are taken twice
    results = []
    for module, wide in ((triton, torch.float32), (chunked, torch.float64)):
        sums = RowSums.empty(len(tokens), tokens.device, wide)
        module.row_sums(raw.clone(), tokens, projection, sums)
        results.append(sums)
    ours, expected = results
    assert torch.equal(ours.mode, expected.mode)
    for name in ("token", "rest", "spread", "square", "square_d", "square_dd"):
        torch.testing.assert_close(
            getattr(ours, name).double(), getattr(expected, name), rtol=2e-5, atol=1e-12, msg=name
        )


def test_row_sums_of_odd_rows():
    raw, tokens = chunk(300)
    raw[3, 17] = torch.nan
    raw[4, 18] = torch.inf
    raw[5, 19], tokens[5] = -torch.inf, 19
    sums = RowSums.empty(len(tokens), tokens.device, torch.float32)
    triton.row_sums(raw, tokens, Projection(), sums)
    assert (~torch.isfinite(sums.rest)).nonzero()[:, 0].tolist() == [3, 4]
    assert sums.token[5] == -torch.inf
