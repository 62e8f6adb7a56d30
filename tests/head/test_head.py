"""The fused head against the definition: every row, every option, any layout."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from acpo.errors import ACPOError
from acpo.head import LanguageModelHead, TokenTerms, fused_policy_loss, token_stats
from acpo.head.products import Gradients
from acpo.head.rows import RowStats, RowSums
from acpo.objectives import (
    METHODS,
    aggregation_weights,
    dense_loss,
    stats_from_logits,
)
from acpo.objectives.gates import GATES
from acpo.objectives.loss import evaluate_tokens, kl_penalty, objective_value
from acpo.objectives.method import entropy_maximum
from acpo.objectives.tokens import mean_top_logp, scaled_log_probs
from objectives.batches import EXTRAS, ROWS, random_batch, shaped_tokens

HIDDEN, VOCAB = 13, 29
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def head_batch(seed=0, dtype=torch.float64, temperature=1.0, vocab=VOCAB, rows=6, length=7):
    """A `[B, T]` batch whose logits come from hidden states and a head."""
    g = torch.Generator().manual_seed(seed)
    batch = random_batch(seed, rows=rows, length=length, vocab=vocab, dtype=dtype)
    hidden = torch.randn(rows, length, HIDDEN, generator=g, dtype=dtype)
    weight = torch.randn(vocab, HIDDEN, generator=g, dtype=dtype) * 0.7
    logits = hidden @ weight.t()
    aligned = torch.rand(rows, length, generator=g) < 0.5
    tokens = torch.where(aligned, logits.argmax(-1), batch["tokens"])
    logp = torch.log_softmax(logits / temperature, -1).gather(-1, tokens[..., None])[..., 0]
    drift = 0.7 * torch.randn(rows, length, generator=g, dtype=dtype)
    batch |= {"tokens": tokens, "old_logp": logp + drift, "temperature": temperature}
    batch.pop("logits")
    batch = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
    return hidden.to(DEVICE), weight.to(DEVICE), batch


def fused(hidden, weight, tokens, *, bias=None, softcap=None, logit_scale=1.0, **rest):
    """The loss, and what the terms hold afterwards."""
    settings = {k: rest.pop(k) for k in ("sparse", "logits_bytes") if k in rest}
    head = LanguageModelHead(weight, bias, softcap, logit_scale)
    terms = TokenTerms(tokens, **rest)
    loss = fused_policy_loss(hidden, head, terms, **settings)
    torch.testing.assert_close(terms.loss, loss.detach().float(), rtol=0, atol=0)
    found = {name: getattr(terms, name) for name in ("stats", "computed", "nonfinite")}
    return SimpleNamespace(loss=loss, **found)


def reference_policy_loss(hidden, head, terms):
    """`fused_policy_loss` from `[N, V]` logits."""
    logits, valid = LanguageModelHead.of(head).logits(hidden), terms.weights != 0

    def sequence_mean(x, *, total=False):
        found = torch.zeros_like(x)
        for sequence in terms.sequence_ids.unique():
            members = (terms.sequence_ids == sequence) & valid
            found = torch.where(members, x[members].sum() if total else x[members].mean(), found)
        return found

    known = {"temperature": terms.temperature, "align_tol": terms.align_tol}
    terms.stats = stats_from_logits(logits=logits, tokens=terms.tokens, **known)
    top_logp = None
    if terms.method.candidates:
        log_probs = scaled_log_probs(logits, terms.temperature)
        top_logp = mean_top_logp(log_probs, terms.method.candidates, terms.tokens)
    stats = terms.stats
    inputs = terms.inputs(stats, sequence_mean)._replace(top_logp=top_logp)
    if terms.entropy_max is None:
        highest = entropy_maximum(terms.method, stats.entropy, valid)
        inputs = inputs._replace(entropy_max=highest)
    gated, credit = evaluate_tokens(terms.method, inputs)
    value = objective_value(terms.advantages, gated, credit)
    if terms.beta:
        kl = kl_penalty(stats.logp, terms.ref_logp)
        if terms.corrects_kl:
            log_ratio = stats.logp - inputs.old_logp
            shared = GATES[terms.method.gate].one_ratio
            kl = kl * (sequence_mean(log_ratio) if shared else log_ratio).exp()
        value = value - terms.beta * kl
    loss = -(terms.weights * value).sum()
    if terms.entropy_weights is not None:
        loss = loss - (terms.entropy_weights * stats.entropy).sum()
    return loss


def reference(hidden, weight, tokens, *, bias=None, softcap=None, logit_scale=1.0, **rest):
    terms = TokenTerms(tokens, **rest)
    head = LanguageModelHead(weight, bias, softcap, logit_scale)
    return reference_policy_loss(hidden, head, terms), terms.stats


def flat_call(row, hidden, weight, batch, options, call=fused, **extra):
    """The fused loss of a `[B, T]` batch, as a trainer would call it."""
    stats = stats_from_logits(
        logits=(hidden @ weight.t()).detach(),
        tokens=batch["tokens"],
        temperature=batch["temperature"],
    )
    shaped = shaped_tokens(row, batch, stats, **options)
    if shaped.marks is not None:
        extra = {"marks": shaped.marks.flatten(), **extra}
    weights = aggregation_weights(METHODS[row](**options), batch["mask"], dtype=hidden.dtype)
    ids = torch.arange(hidden.shape[0], device=DEVICE)[:, None].expand_as(batch["tokens"])
    return call(
        hidden.flatten(0, 1),
        weight,
        batch["tokens"].flatten(),
        advantages=shaped.advantages.flatten(),
        weights=weights.flatten(),
        method=row,
        temperature=batch["temperature"],
        sequence_ids=ids.flatten(),
        **options,
        **{"old_logp": batch["old_logp"].flatten(), **extra},
    )


def gradients(loss, *leaves):
    return torch.autograd.grad(loss, leaves)


def relative(a, b):
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("logits_bytes", [None, 5 * VOCAB * 4])
def test_every_row_equals_the_dense_definition(row, dtype, logits_bytes):
    options = EXTRAS.get(row, {})
    hidden, weight, batch = head_batch(3, dtype, temperature=0.8)
    hidden.requires_grad_(), weight.requires_grad_()
    dense = dense_loss(row, logits=hidden @ weight.t(), **batch, **options)
    expected = gradients(dense, hidden, weight)
    out = flat_call(row, hidden, weight, batch, options, logits_bytes=logits_bytes)
    got = gradients(out.loss, hidden, weight)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    assert abs(out.loss.item() - dense.item()) <= tolerance * max(1.0, abs(dense.item()))
    for a, b in zip(got, expected, strict=True):
        assert b.norm() > 0 and relative(a, b) <= tolerance
    assert out.nonfinite == 0


@pytest.mark.parametrize("row", ROWS)
def test_on_policy_needs_no_old_log_probabilities(row):
    hidden, weight, batch = head_batch(7)
    leaves = hidden.requires_grad_(), weight.requires_grad_()
    logp = torch.log_softmax(hidden @ weight.t(), -1).gather(-1, batch["tokens"][..., None])[..., 0]
    batch["old_logp"] = logp.detach()
    options = EXTRAS.get(row, {})
    known = flat_call(row, hidden, weight, batch, options)
    expected = gradients(known.loss, *leaves)
    out = flat_call(row, hidden, weight, batch, options, old_logp=None)
    torch.testing.assert_close(out.loss, known.loss, rtol=1e-12, atol=1e-14)
    for a, b in zip(gradients(out.loss, *leaves), expected, strict=True):
        assert b.norm() > 0
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("row", ["acpo", "acpo_no_routing", "shannon", "gspo", "grpo", "8020"])
@pytest.mark.parametrize(
    "extra",
    [
        {"softcap": 3.0, "logit_scale": 1.7},
        {"bias": True},
        {"beta": 0.1},
        {"entropy_bonus": 0.01},
        {"softcap": 2.0, "bias": True, "beta": 0.05, "entropy_bonus": 0.02, "logit_scale": 0.5},
    ],
    ids=lambda e: "+".join(e),
)
def test_head_options(row, extra):
    extra = dict(extra)
    hidden, weight, batch = head_batch(5, temperature=1.2)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    if extra.pop("bias", False):
        extra["bias"] = torch.randn(VOCAB, dtype=torch.float64, device=DEVICE).requires_grad_()
        leaves.append(extra["bias"])
    if "beta" in extra:
        extra["ref_logp"] = batch["old_logp"].flatten() + 0.2
    if "entropy_bonus" in extra:
        extra["entropy_weights"] = extra.pop("entropy_bonus") * batch["mask"].flatten().double()
    loss, stats = flat_call(row, hidden, weight, batch, {}, reference, **extra)
    out = flat_call(row, hidden, weight, batch, {}, **extra)
    torch.testing.assert_close(out.loss, loss, rtol=1e-10, atol=1e-12)
    for a, b in zip(gradients(out.loss, *leaves), gradients(loss, *leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    assert out.computed.any()
    for a, b in zip(out.stats, stats, strict=True):
        torch.testing.assert_close(a[out.computed], b[out.computed], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "fields", [("logp",), ("log_pmax",), ("entropy",), ("logp", "log_pmax", "entropy")]
)
@pytest.mark.parametrize("softcap", [None, 2.5])
def test_token_stats_and_their_gradients(fields, softcap):
    hidden, weight, batch = head_batch(1)
    flat = hidden.flatten(0, 1).requires_grad_()
    weight.requires_grad_()
    bias = torch.randn(VOCAB, dtype=torch.float64, device=DEVICE).requires_grad_()
    head = LanguageModelHead(weight, bias, softcap)
    tokens = batch["tokens"].flatten()
    expected = stats_from_logits(logits=head.logits(flat), tokens=tokens, temperature=0.7)
    got = token_stats(
        flat, head, tokens, differentiable=fields, logits_bytes=4 * VOCAB * 8, temperature=0.7
    )
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert got.is_mode.any() and not got.is_mode.all()
    g = torch.Generator().manual_seed(9)
    mixes = [torch.randn(len(tokens), generator=g, dtype=torch.float64).to(DEVICE) for _ in fields]
    mixes[0][::3] = 0.0
    for stats in (got, expected):
        assert all(getattr(stats, name).requires_grad for name in fields)
    ours, theirs = (
        sum((m * getattr(s, name)).sum() for m, name in zip(mixes, fields, strict=True))
        for s in (got, expected)
    )
    leaves = (flat, weight, bias)
    for a, b in zip(gradients(ours, *leaves), gradients(theirs, *leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    hidden_names = {"logp", "log_pmax", "entropy"} - set(fields)
    assert not any(getattr(got, name).requires_grad for name in hidden_names)


def test_rows_without_gradient_are_not_computed():
    hidden, weight, batch = head_batch(2)
    batch["advantages"][2] = 0.0
    dead = ~batch["mask"] | (batch["advantages"] == 0)[:, None]
    out = flat_call("acpo", hidden, weight, batch, {})
    assert torch.equal(out.computed, ~dead.flatten())
    assert out.stats.logp[dead.flatten()].isnan().all()
    full = token_stats(hidden.flatten(0, 1), weight, batch["tokens"].flatten())
    assert torch.isfinite(full.logp).all()
    torch.testing.assert_close(full.logp[~dead.flatten()], out.stats.logp[~dead.flatten()])


def test_frozen_head_and_frozen_backbone():
    hidden, weight, batch = head_batch(2)
    both = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    expected = gradients(flat_call("acpo", *both, batch, {}).loss, *both)
    only = hidden.clone().requires_grad_()
    torch.testing.assert_close(
        gradients(flat_call("acpo", only, weight, batch, {}).loss, only)[0], expected[0]
    )
    only = weight.clone().requires_grad_()
    torch.testing.assert_close(
        gradients(flat_call("acpo", hidden, only, batch, {}).loss, only)[0], expected[1]
    )


def test_without_gradients_none_are_made(monkeypatch):
    """Parameters require gradients in evaluation, too, and a head's is as large as the head."""
    hidden, weight, batch = head_batch(2)
    expected = flat_call("acpo", hidden, weight, batch, {}).loss
    monkeypatch.setattr(Gradients, "add", lambda *_: pytest.fail("a product for a gradient"))
    with torch.no_grad():
        found = flat_call("acpo", hidden, weight.requires_grad_(), batch, {}).loss
    assert not found.requires_grad and torch.equal(found, expected)


def test_upstream_scale_and_single_use():
    hidden, weight, batch = head_batch(2)
    hidden.requires_grad_()
    (once,) = gradients(flat_call("acpo", hidden, weight, batch, {}).loss, hidden)
    loss = flat_call("acpo", hidden, weight, batch, {}).loss
    (scaled,) = torch.autograd.grad(2.5 * loss, hidden, retain_graph=True)
    torch.testing.assert_close(scaled, 2.5 * once)
    with pytest.raises(RuntimeError, match="call it again"):
        torch.autograd.grad(loss, hidden)


@pytest.mark.parametrize("row", ["acpo", "gspo"])
def test_nothing_to_train_is_a_zero_with_a_graph(row):
    hidden, weight, batch = head_batch(2)
    hidden.requires_grad_(), weight.requires_grad_()
    batch["advantages"][:] = 0.0
    out = flat_call(row, hidden, weight, batch, {})
    assert out.loss == 0
    assert all((g == 0).all() for g in gradients(out.loss, hidden, weight))


@pytest.mark.parametrize("row", ["acpo", "gspo", "shannon"])
def test_non_finite_rows_are_counted_and_left_out(row):
    hidden, weight, batch = head_batch(4)
    batch["mask"][:] = True
    clean = {**batch, "mask": batch["mask"].clone()}
    clean["mask"][1, 2] = False
    broken = hidden.clone()
    broken[1, 2, 0] = float("nan")
    broken.requires_grad_(), weight.requires_grad_()
    batch["old_logp"] = clean["old_logp"] = torch.full_like(batch["old_logp"], -2.0)
    weights = aggregation_weights(row, batch["mask"], dtype=torch.float64)
    settings = {
        "old_logp": batch["old_logp"].flatten(),
        "advantages": batch["advantages"][:, None].expand(6, 7).flatten(),
        "method": row,
        "sequence_ids": torch.arange(6, device=DEVICE).repeat_interleave(7),
    }
    out = fused(
        broken.flatten(0, 1),
        weight,
        batch["tokens"].flatten(),
        weights=weights.flatten(),
        **settings,
    )
    kept = torch.where(clean["mask"], weights, 0.0)
    healthy = hidden.clone().requires_grad_()
    expected = fused(
        healthy.flatten(0, 1), weight, batch["tokens"].flatten(), weights=kept.flatten(), **settings
    )
    assert out.nonfinite == 1
    torch.testing.assert_close(out.loss, expected.loss)
    torch.testing.assert_close(
        gradients(out.loss, broken, weight), gradients(expected.loss, healthy, weight)
    )


def test_impossible_tokens_do_not_poison_the_row():
    hidden, weight, batch = head_batch(4)
    bias = torch.zeros(VOCAB, dtype=torch.float64, device=DEVICE)
    bias[3] = -torch.inf
    batch["tokens"][batch["tokens"] == 3] = 4
    out = flat_call("shannon", hidden.requires_grad_(), weight, batch, {}, bias=bias)
    loss, _ = flat_call("shannon", hidden, weight, batch, {}, reference, bias=bias)
    torch.testing.assert_close(out.loss, loss)
    torch.testing.assert_close(gradients(out.loss, hidden), gradients(loss, hidden))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_autocast_and_half_inputs():
    hidden, weight, batch = head_batch(6, torch.float32)
    hidden.requires_grad_(), weight.requires_grad_()
    expected = gradients(flat_call("acpo", hidden, weight, batch, {}).loss, hidden, weight)
    half = [
        hidden.detach().bfloat16().requires_grad_(),
        weight.detach().bfloat16().requires_grad_(),
    ]
    got = gradients(flat_call("acpo", *half, batch, {}).loss, *half)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == torch.bfloat16 and relative(a.float(), b) < 0.03
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        out = flat_call("acpo", hidden, weight, batch, {})
    for a, b in zip(gradients(out.loss, hidden, weight), expected, strict=True):
        assert a.dtype == torch.float32 and relative(a, b) < 0.03


def test_sparse_drops_only_what_is_small():
    hidden, weight, batch = head_batch(8, vocab=301)
    weight = weight * 2
    hidden.requires_grad_(), weight.requires_grad_()
    exact = gradients(flat_call("acpo", hidden, weight, batch, {}).loss, hidden, weight)
    errors = []
    for eps in (0.0, 1e-4, 1e-1):
        got = gradients(
            flat_call("acpo", hidden, weight, batch, {}, sparse=eps).loss, hidden, weight
        )
        errors.append(max(relative(a, b) for a, b in zip(got, exact, strict=True)))
    assert errors[0] < 1e-12 and errors[0] <= errors[1] < 1e-3 < errors[2] < 0.5


@pytest.mark.parametrize("row", list(METHODS))
def test_repeat_runs_are_bitwise_equal(row):
    results = []
    for _ in range(2):
        hidden, weight, batch = head_batch(8, torch.float32)
        hidden.requires_grad_(), weight.requires_grad_()
        out = flat_call(row, hidden, weight, batch, EXTRAS.get(row, {}), logits_bytes=900)
        results.append((out.loss, *gradients(out.loss, hidden, weight)))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": lambda t: t + VOCAB}, ["tokens", f"{VOCAB} rows"]),
        ({"tokens": lambda t: t - 100}, ["tokens", "padding"]),
        ({"tokens": lambda t: t.double()}, ["tokens", "integers"]),
        ({"old_logp": lambda x: x[:-1]}, ["old_logp", "[41]", "[42]"]),
        ({"advantages": lambda x: x * float("nan")}, ["advantages", "non-finite"]),
        ({"weights": lambda x: x.to("meta")}, ["weights", "meta", "device"]),
        ({"weight": lambda w: w[:, :-1]}, ["hidden", "weight", "[N, H]"]),
        ({"bias": lambda _: torch.zeros(3, device=DEVICE)}, ["bias", "[3]"]),
        ({"temperature": lambda _: 0.0}, ["temperature=0.0"]),
        ({"softcap": lambda _: -1.0}, ["softcap=-1.0"]),
        ({"sparse": lambda _: -1.0}, ["sparse=-1.0"]),
        ({"beta": lambda _: 0.1}, ["ref_logp is missing"]),
        ({"method": lambda _: "gspo"}, ["sequence_ids is missing"]),
    ],
)
def test_bad_input(change, words):
    hidden, weight, batch = head_batch(0, torch.float32)
    inputs = {
        "hidden": hidden.flatten(0, 1),
        "weight": weight,
        "tokens": batch["tokens"].flatten(),
        "old_logp": batch["old_logp"].flatten(),
        "advantages": torch.ones(42, device=DEVICE),
        "weights": torch.ones(42, device=DEVICE),
    }
    for name, f in change.items():
        inputs[name] = f(inputs.get(name))
    with pytest.raises(ACPOError) as error:
        fused(**inputs)
    for word in words:
        assert word in str(error.value)


def test_columns_may_have_any_stride():
    hidden, weight, batch = head_batch(3, torch.float32)
    n = batch["tokens"].numel()
    columns = {
        "old_logp": batch["old_logp"].flatten(),
        "advantages": batch["advantages"][:, None].expand(6, 7).flatten(),
        "weights": torch.full((n,), 0.1, device=DEVICE),
    }
    tokens = batch["tokens"].flatten()
    expected = fused(hidden.flatten(0, 1), weight, tokens, **columns)
    wide = {name: torch.stack([x, x + 1], 1)[:, 0] for name, x in columns.items()}
    wide["weights"] = torch.tensor(0.1, device=DEVICE).expand(n)
    strided = torch.stack([tokens, tokens + 1], 1)[:, 0]
    got = fused(hidden.flatten(0, 1), weight, strided, **wide)
    torch.testing.assert_close(got.loss, expected.loss)
    stats = token_stats(hidden.flatten(0, 1), weight, strided)
    torch.testing.assert_close(stats.logp, expected.stats.logp)


@pytest.mark.parametrize("row", ["gspo", "shannon", "acpo"])
def test_entropy_bonus_reaches_rows_without_weight(row):
    hidden, weight, batch = head_batch(5)
    hidden.requires_grad_()
    extra = {"entropy_weights": torch.full((42,), 0.01, dtype=torch.float64, device=DEVICE)}
    assert not batch["mask"].all()
    loss, _ = flat_call(row, hidden, weight, batch, {}, reference, **extra)
    out = flat_call(row, hidden, weight, batch, {}, **extra)
    torch.testing.assert_close(out.loss, loss)
    torch.testing.assert_close(gradients(out.loss, hidden), gradients(loss, hidden))


@pytest.mark.parametrize("row", ["acpo", "gspo", "gmpo", "shannon"])
@pytest.mark.parametrize("rows", [0, 5])
def test_no_rows_and_no_weights(row, rows):
    hidden = torch.randn(rows, HIDDEN, device=DEVICE, requires_grad=True)
    weight = torch.randn(VOCAB, HIDDEN, device=DEVICE, requires_grad=True)
    zeros = torch.zeros(rows, device=DEVICE)
    out = fused(
        hidden,
        weight,
        zeros.long(),
        old_logp=zeros,
        advantages=zeros + 1,
        weights=zeros,
        method=row,
        sequence_ids=zeros.long(),
    )
    assert out.loss == 0
    assert all((g == 0).all() for g in gradients(out.loss, hidden, weight))


@pytest.mark.parametrize("row", ["acpo", "cispo", "shannon"])
def test_an_impossible_sampled_token_is_counted_and_left_out(row):
    hidden, weight, batch = head_batch(4)
    batch["mask"][:] = True
    bias = torch.zeros(VOCAB, dtype=torch.float64, device=DEVICE)
    bias[3] = -torch.inf
    batch["tokens"][batch["tokens"] == 3] = 4
    batch["tokens"][2, 5] = 3
    out = flat_call(row, hidden.requires_grad_(), weight, batch, {}, bias=bias)
    assert out.nonfinite == 1 and torch.isfinite(out.loss)
    assert torch.isfinite(gradients(out.loss, hidden)[0]).all()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_autocast_does_not_narrow_the_statistics():
    hidden, weight, batch = head_batch(6, torch.float32)
    flat, tokens = hidden.flatten(0, 1), batch["tokens"].flatten()
    if DEVICE == "cuda":
        flat, weight = flat.bfloat16(), weight.bfloat16()
    plain = token_stats(flat, weight, tokens)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        cast = token_stats(flat, weight, tokens)
    torch.testing.assert_close(cast.entropy, plain.entropy, rtol=0, atol=1e-5)


def test_statistics_may_be_written_into():
    hidden, weight, batch = head_batch(1)
    flat = hidden.flatten(0, 1).requires_grad_()
    results = []
    for scribble in (False, True):
        stats = token_stats(flat, weight, batch["tokens"].flatten())
        if scribble:
            stats.entropy.zero_()
        results.append(gradients(stats.logp.sum(), flat)[0])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("row", ["gmpo"])
@pytest.mark.parametrize("column", ["advantages", "weights"])
def test_one_ratio_per_sequence_takes_one_value_per_sequence(row, column):
    ids = torch.tensor([0, 0, 0, 1, 1, 1], device=DEVICE)
    columns = {
        "advantages": torch.tensor([1.0, 1, 1, -1, -1, -1], device=DEVICE),
        "weights": torch.full((6,), 1 / 6, device=DEVICE),
    }
    hidden, weight = torch.randn(6, 4, device=DEVICE), torch.randn(11, 4, device=DEVICE)
    call = {"tokens": torch.arange(6, device=DEVICE), "sequence_ids": ids, "method": row}
    assert torch.isfinite(fused(hidden, weight, **call, **columns).loss)
    columns["weights"][5] = 0.0  # a token that is not counted may hold anything
    columns["advantages"][5] = 9.0
    assert torch.isfinite(fused(hidden, weight, **call, **columns).loss)
    columns[column][1] = 0.5
    with pytest.raises(ACPOError, match=rf"differ within a sequence \(3 tokens\): method '{row}'"):
        fused(hidden, weight, **call, **columns)


@pytest.mark.parametrize("row", [row for row in ROWS if row != "gmpo"])
def test_advantages_per_token(row):
    options = EXTRAS.get(row, {})
    hidden, weight, batch = head_batch(3)
    hidden.requires_grad_(), weight.requires_grad_()
    noise = torch.randn(batch["mask"].shape, dtype=torch.float64).to(DEVICE)
    batch["advantages"] = batch["advantages"][:, None] + noise
    dense = dense_loss(row, logits=hidden @ weight.t(), **batch, **options)
    out = flat_call(row, hidden, weight, batch, options)
    torch.testing.assert_close(out.loss, dense)
    torch.testing.assert_close(
        gradients(out.loss, hidden, weight), gradients(dense, hidden, weight)
    )


def test_the_likeliest_tokens_are_never_left_out_silently():
    hidden, weight, batch = head_batch(3)
    with pytest.raises(ACPOError, match="'simko' moves the likeliest tokens too"):
        flat_call("simko", hidden, weight, batch, {}, sparse=1e-5)


def corrected_kl(method, **changes):
    """Two sequences of six tokens, two of them masked; fresh terms for each call."""
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(12, 6, generator=g, dtype=torch.float64).requires_grad_()
    weight = torch.randn(9, 6, generator=g, dtype=torch.float64)
    old, ref = 0.3 * torch.randn(2, 12, generator=g, dtype=torch.float64) - 2
    ids = torch.arange(12) // 6
    columns = {
        "advantages": torch.where(ids == 0, 1.0, -1.0).double(),
        "weights": torch.full((12,), 1 / 12, dtype=torch.float64).index_fill(
            0, torch.tensor([2, 3]), 0.0
        ),
        "old_logp": old,
        "ref_logp": ref,
        **changes,
    }
    settings = {"method": method, "sequence_ids": ids, "beta": 0.04, "corrects_kl": True}
    tokens = torch.randint(9, (12,), generator=g)
    return hidden, weight, lambda **more: TokenTerms(tokens, **columns, **{**settings, **more})


@pytest.mark.parametrize("method", ["grpo", "gspo", "gmpo", "vespo", "shannon", "simko"])
@pytest.mark.parametrize("uneven", [False, True])
def test_a_corrected_kl_is_that_of_autograd(method, uneven):
    """Masked tokens, 2 and 3, are in no mean; weights may differ within a sequence."""
    marks = torch.arange(12).double() % 2
    changes = {"marks": marks} if method == "simko" else {}
    if uneven and method != "gmpo":
        changes["weights"] = (torch.arange(12).double() / 60).index_fill(0, torch.tensor([2, 3]), 0)
    hidden, weight, terms = corrected_kl(method, **changes)
    weight.requires_grad_()
    ours, theirs = (
        loss(hidden, weight, terms(entropy_weights=marks / 50))
        for loss in (fused_policy_loss, reference_policy_loss)
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    both = (gradients(loss, hidden, weight) for loss in (ours, theirs))
    torch.testing.assert_close(*both, rtol=0, atol=1e-12)


def test_a_corrected_kl_takes_a_sparse_gradient():
    hidden, weight, terms = corrected_kl("grpo")
    exact, sparse = (
        torch.autograd.grad(fused_policy_loss(hidden, weight, terms(), sparse=eps), hidden)[0]
        for eps in (None, 0.01)
    )
    assert 0 < relative(sparse, exact) < 0.02


@pytest.mark.parametrize(("method", "shared"), [("grpo", False), ("vespo", False), ("gspo", True)])
def test_the_kl_is_corrected_by_the_ratio_trl_takes(method, shared):
    hidden, weight, terms = corrected_kl(method)
    given = terms()
    with torch.no_grad():
        both, alone = (fused_policy_loss(hidden, weight, terms(beta=beta)) for beta in (0.04, 0.0))
        logp = torch.log_softmax(hidden @ weight.t(), -1).gather(1, given.tokens[:, None])[:, 0]
    log_ratio, counted = logp - given.old_logp, given.weights != 0
    if shared:
        means = [log_ratio[rows][counted[rows]].mean() for rows in (slice(6), slice(6, 12))]
        log_ratio = torch.stack(means).repeat_interleave(6)
    gap = given.ref_logp - logp
    kl = (gap.exp() - gap - 1) * log_ratio.exp()
    torch.testing.assert_close(both - alone, 0.04 * (given.weights * kl).sum())


def test_a_corrected_kl_refuses_what_the_other_losses_refuse():
    ones = torch.ones(12, dtype=torch.float64)
    for changes, words in (
        ({"advantages": torch.full((12,), torch.nan)}, "advantages"),
        ({"advantages": torch.arange(12).double(), "weights": ones}, "differ within a sequence"),
    ):
        hidden, weight, terms = corrected_kl("gmpo", **changes)
        with pytest.raises(ACPOError, match=words):
            fused_policy_loss(hidden, weight, terms())
    hidden, weight, terms = corrected_kl("shannon", weights=torch.zeros(12, dtype=torch.float64))
    assert fused_policy_loss(hidden, weight, terms()) == 0


@pytest.mark.parametrize("corrects", [False, True])
def test_tokens_of_weight_zero_are_no_broken_ones(corrects):
    """As everywhere else: tokens 2 and 3 have no gradient to spoil."""
    hidden, weight, terms = corrected_kl("grpo")
    broken = hidden.detach().index_fill(0, torch.tensor([1, 2, 3]), torch.nan)
    given = terms(corrects_kl=corrects)
    assert torch.isfinite(fused_policy_loss(broken, weight, given))
    assert given.nonfinite == 1


def test_a_gate_that_reads_marks_asks_for_them():
    tokens = torch.zeros(2, dtype=torch.long)
    with pytest.raises(ACPOError, match="marks is missing: the gate of method 'aspo'"):
        TokenTerms(tokens, torch.ones(2), torch.ones(2), method="aspo")


def test_the_terms_are_nothing_a_wrapper_can_open():
    terms = TokenTerms(torch.zeros(2, dtype=torch.long), torch.ones(2), torch.ones(2))
    assert not isinstance(terms, tuple | list | dict) and not dataclasses.is_dataclass(terms)
    leaves, _ = torch.utils._pytree.tree_flatten(terms)
    assert leaves == [terms]


@pytest.mark.parametrize("made", [RowStats, RowSums])
def test_columns_are_aligned_whatever_the_number_of_rows(made):
    """Triton compiles a kernel anew for addresses that are not multiples of 16."""
    for rows in (1, 2, 7, 33, 130):
        columns = made.empty(rows, torch.device("cpu"), torch.float32)
        assert all(len(x) == rows and x.data_ptr() % 16 == 0 for x in columns)
