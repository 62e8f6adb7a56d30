"""`distribution_stats` against the definition in float64."""

import pytest
import torch

from acpo.errors import ACPOError
from acpo.head import LanguageModelHead, distribution_stats

TAILS = ("tail_p2", "tail_p2_logp", "tail_p2_logp2")


def dense(z, tokens, align_tol=1e-6):
    """Every statistic, from the definition, one row at a time."""
    rows = []
    for row, token in zip(z.double(), tokens.tolist(), strict=True):
        p = torch.softmax(row, 0)
        log_p = torch.log_softmax(row, 0)
        mode = int(p.argmax())
        aligned = bool(p[mode] - p[token] <= align_tol)
        mode = token if aligned else mode
        others = [i for i in range(len(p)) if i != mode and p[i] > 0]
        q, log_q = p[others] ** 2, log_p[others]
        entropy = -(p[p > 0] * log_p[p > 0]).sum()
        values = [
            log_p[token],
            log_p[mode],
            entropy,
            q.sum(),
            (q * log_q).sum(),
            (q * log_q**2).sum(),
        ]
        rows.append([*map(float, values), aligned, mode])
    columns = list(zip(*rows, strict=True))
    names = ("logp", "log_pmax", "entropy", *TAILS, "is_mode", "mode")
    return {
        name: torch.tensor(
            column, dtype={"is_mode": torch.bool, "mode": torch.int64}.get(name, torch.float64)
        )
        for name, column in zip(names, columns, strict=True)
    }


def head(vocab, rows=40, width=16, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, width, generator=g, dtype=torch.float64)
    weight = torch.randn(vocab, width, generator=g, dtype=torch.float64)
    hidden *= torch.linspace(0.0, 8.0, rows)[:, None]  # from uniform to one token
    tokens = torch.randint(vocab, (rows,), generator=g)
    tokens[::2] = (hidden @ weight.t()).argmax(-1)[::2]
    return hidden.to(dtype), weight.to(dtype), tokens


def scaled(logits, temperature, softcap, logit_scale):
    z = logits * logit_scale
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    return z / temperature


SHAPES = [(1.0, None, 1.0), (0.6, None, 1.7), (1.3, 20.0, 0.9)]


@pytest.mark.parametrize("vocab", [1, 2, 300, 1031])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float64(vocab, shape):
    hidden, weight, tokens = head(vocab)
    temperature, softcap, logit_scale = shape
    bias = torch.linspace(-1, 1, vocab, dtype=torch.float64)
    # A budget of 7 rows: chunks that do not divide the 40.
    got = distribution_stats(
        hidden,
        LanguageModelHead(weight, bias, softcap, logit_scale),
        tokens,
        temperature=temperature,
        top_k=5,
        logits_bytes=7 * 8 * vocab,
    )
    z = scaled(hidden @ weight.t() + bias, *shape)
    expected = dense(z, tokens)
    for name in ("logp", "log_pmax", "entropy", *TAILS):
        torch.testing.assert_close(
            getattr(got, name), expected[name], rtol=1e-9, atol=1e-13, msg=name
        )
    assert torch.equal(got.is_mode, expected["is_mode"])
    assert torch.equal(got.mode, expected["mode"])
    k = min(5, vocab)
    log_p, ids = torch.log_softmax(z, -1).topk(k)
    torch.testing.assert_close(got.top_logps, log_p, rtol=1e-9, atol=1e-12)
    assert got.top_ids.shape == (40, k)
    torch.testing.assert_close(torch.log_softmax(z, -1).gather(1, got.top_ids), log_p)
    assert torch.equal(got.top_ids[1:], ids[1:])  # row 0 is uniform without the bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float32_columns(dtype):
    hidden, weight, tokens = head(1031, dtype=dtype)
    got = distribution_stats(hidden, weight, tokens, temperature=0.9)
    expected = dense((hidden.float() @ weight.float().t()).double() / 0.9, tokens)
    assert torch.equal(got.mode, expected["mode"])
    for name in ("logp", "log_pmax", "entropy"):
        torch.testing.assert_close(
            getattr(got, name), expected[name], rtol=1e-6, atol=1e-6, msg=name
        )
    for name in TAILS:
        torch.testing.assert_close(
            getattr(got, name), expected[name], rtol=2e-5, atol=1e-20, msg=name
        )


def test_nearly_all_mass_on_one_token_keeps_its_digits():
    weight = torch.eye(3)
    hidden = torch.tensor([[30.0, 0.0, 1.0]])
    got = distribution_stats(hidden, weight, torch.tensor([0]))
    rest = torch.tensor([1.0, torch.e]).double() * torch.tensor(-30.0).double().exp()
    torch.testing.assert_close(-got.log_pmax, rest.sum()[None], rtol=1e-6, atol=0)
    torch.testing.assert_close(got.tail_p2, (rest**2).sum()[None], rtol=1e-6, atol=0)


def test_a_tie_makes_the_sampled_token_the_mode():
    weight, hidden = torch.eye(4, dtype=torch.float64), torch.tensor([[2.0, 2.0, 0.0, -1.0]])
    hidden = torch.cat([hidden, hidden + torch.tensor([0.0, -1e-7, 0.0, 0.0])]).double()
    for token in (0, 1):
        tokens = torch.tensor([token, token])
        got, expected = distribution_stats(hidden, weight, tokens), dense(hidden, tokens)
        assert got.is_mode.all() and (got.mode == token).all()
        for name in ("log_pmax", *TAILS):
            torch.testing.assert_close(getattr(got, name), expected[name])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_come_out_as_nan(bad):
    hidden, weight, tokens = head(50, dtype=torch.float32)
    hidden[3, 2] = bad
    got = distribution_stats(hidden, weight, tokens, top_k=2)
    bad_rows = ~torch.isfinite(got.logp) | ~torch.isfinite(got.entropy)
    assert bad_rows.nonzero()[:, 0].tolist() == [3]


def test_impossible_tokens():
    hidden, weight, tokens = head(50)
    bias = torch.zeros(50, dtype=torch.float64)
    bias[7] = -torch.inf
    tokens[tokens == 7] = 8
    tokens[1] = 7
    got = distribution_stats(hidden, LanguageModelHead(weight, bias), tokens)
    assert got.logp[1] == -torch.inf and not got.is_mode[1]
    keep = torch.arange(len(tokens)) != 1
    expected = dense((hidden @ weight.t() + bias)[keep], tokens[keep])
    for name in ("logp", "entropy", *TAILS):
        torch.testing.assert_close(getattr(got, name)[keep], expected[name], rtol=1e-9, atol=1e-13)


def test_nothing_to_score():
    hidden, weight, _ = head(9)
    got = distribution_stats(hidden[:0], weight, torch.zeros(0, dtype=torch.long), top_k=3)
    assert got.logp.shape == (0,) and got.top_ids.shape == (0, 3)


def test_ids_outside_the_vocabulary_are_refused():
    hidden, weight, tokens = head(9)
    with pytest.raises(ACPOError, match="head has 9 rows"):
        distribution_stats(hidden, weight, tokens + 9)
