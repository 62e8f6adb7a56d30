"""What must not change a loss: padding, order, splits, shifts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acpo.objectives import (
    METHODS,
    aggregation_weights,
    dense_loss,
    logit_gradient,
    shape_tokens,
    stats_from_logits,
    token_objective,
)
from acpo.objectives.batch import entropy_maximum
from acpo.objectives.shaping import Reducer
from objectives.batches import EXTRAS, ROWS, loss_and_gradient, random_batch, shaped_tokens

seeds = st.integers(0, 10_000)
every_row = pytest.mark.parametrize("row", ROWS)
quick = settings(max_examples=2, deadline=None)  # the simplest, and one of many
PER_TOKEN = ("tokens", "old_logp", "mask", "old_entropy", "old_log_pmax")


def options_of(row):
    return EXTRAS.get(row, {})


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@every_row
@quick
@given(seeds, st.integers(1, 5))
def test_padding_changes_nothing(row, seed, extra):
    batch = random_batch(seed)
    value, gradient = loss_and_gradient(dense_loss, batch, row, **options_of(row))
    wide = {
        **batch,
        "logits": torch.nn.functional.pad(batch["logits"], (0, 0, 0, extra), value=3.0),
    }
    for name in PER_TOKEN:
        wide[name] = torch.nn.functional.pad(batch[name], (0, extra))
    # Garbage under the mask must not leak either.
    dead = ~wide["mask"]
    wide["logits"][dead] = torch.nan
    wide["old_logp"][dead] = torch.inf
    wide["tokens"][dead] = -100
    padded, padded_gradient = loss_and_gradient(dense_loss, wide, row, **options_of(row))
    same(padded, value)
    same(padded_gradient[:, : gradient.shape[1]], gradient)
    same(logit_gradient(row, **wide, **options_of(row)), padded_gradient)
    assert (padded_gradient[dead] == 0).all()


@every_row
@quick
@given(seeds, st.randoms(use_true_random=False))
def test_order_changes_nothing(row, seed, random):
    """Groups in any order, and rows in any order within a group."""
    batch = random_batch(seed)
    groups = [list(range(3)), list(range(3, 6))]
    random.shuffle(groups)
    for group in groups:
        random.shuffle(group)
    order = torch.tensor([row for group in groups for row in group])
    moved = {k: v[order] if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
    value, gradient = loss_and_gradient(dense_loss, batch, row, **options_of(row))
    shuffled, shuffled_gradient = loss_and_gradient(dense_loss, moved, row, **options_of(row))
    same(shuffled, value)
    same(shuffled_gradient, gradient[order])


@every_row
@quick
@given(seeds, st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_micro_batches_change_nothing(row, seed, assignment):
    """Any split of the rows: token advantages and normalisers come from the whole batch."""
    batch = random_batch(seed)
    options = options_of(row)
    value, gradient = loss_and_gradient(dense_loss, batch, row, **options)
    method = METHODS[row](**options)
    mask, tokens = batch["mask"], batch["tokens"]
    whole = stats_from_logits(logits=batch["logits"], tokens=tokens)
    shaped = shaped_tokens(method, batch, whole)
    entropy_max = entropy_maximum(method, whole.entropy, mask)
    logits = batch["logits"].clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for part in set(assignment):
        rows = torch.tensor([i for i, a in enumerate(assignment) if a == part])
        objective = token_objective(
            method,
            stats=stats_from_logits(logits=logits[rows], tokens=tokens[rows]),
            old_logp=batch["old_logp"][rows],
            advantages=shaped.advantages[rows],
            marks=None if shaped.marks is None else shaped.marks[rows],
            mask=mask[rows],
            entropy_max=entropy_max,
            top_logp=logits[rows].log_softmax(-1).topk(method.candidates or 1).values.mean(-1),
        )
        weights = aggregation_weights(
            method, mask[rows], num_sequences=6, num_tokens=int(mask.sum()), dtype=torch.float64
        )
        total = total - (weights * objective.value).sum()
    same(total.detach(), value)
    same(torch.autograd.grad(total, logits)[0], gradient)


@every_row
@quick
@given(seeds, st.floats(-30, 30))
def test_shifting_logits_changes_nothing(row, seed, shift):
    batch = random_batch(seed)
    value, gradient = loss_and_gradient(dense_loss, batch, row, **options_of(row))
    moved = {**batch, "logits": batch["logits"] + shift}
    shifted, shifted_gradient = loss_and_gradient(dense_loss, moved, row, **options_of(row))
    torch.testing.assert_close(shifted, value, rtol=0, atol=1e-9)
    torch.testing.assert_close(shifted_gradient, gradient, rtol=0, atol=1e-9)
    torch.testing.assert_close(gradient.sum(-1), torch.zeros(6, 7).double(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("row", ROWS)
def test_zero_advantage_is_exactly_zero_gradient(row):
    batch = random_batch(3)
    batch["advantages"][3:] = 0.0
    _, gradient = loss_and_gradient(dense_loss, batch, row, **options_of(row))
    assert (gradient[:3] != 0).any()
    if row == "gtpo":
        assert (gradient[3:] != 0).any(), "GTPO's entropy term acts on every row"
    elif row == "kl_cov":
        moved = gradient[3:].abs().sum(-1) > 0
        assert moved.sum() <= 2, "KL-Cov's penalty acts on few tokens, whatever their advantage"
    else:
        assert (gradient[3:] == 0).all()


@pytest.mark.parametrize("row", ROWS)
def test_fully_masked_sequences_count_but_do_not_move(row):
    batch = random_batch(6)
    batch["mask"][2] = False
    value, gradient = loss_and_gradient(dense_loss, batch, row, **options_of(row))
    assert torch.isfinite(value) and (gradient[2] == 0).all()
    batch["mask"][:] = False
    value, gradient = loss_and_gradient(dense_loss, batch, row, **options_of(row))
    assert value == 0 and (gradient == 0).all()


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("rows", [0, 6])
def test_a_batch_without_tokens_has_no_loss_and_no_gradient(row, rows):
    whole = random_batch(0)
    empty = {
        name: (x[:rows] if x.dim() == 1 else x[:rows, :0]) if isinstance(x, torch.Tensor) else x
        for name, x in whole.items()
    }
    value, gradient = loss_and_gradient(dense_loss, empty, row, **options_of(row))
    assert value == 0 and gradient.shape == (rows, 0, 11)
    assert logit_gradient(row, **empty, **options_of(row)).shape == gradient.shape


def test_metrics_by_hand():
    """Two tokens: one aligned and positive, one mismatched and negative."""
    logits = torch.tensor([[[2.0, 0.0]], [[2.0, 0.0]]], dtype=torch.float64)
    tokens = torch.tensor([[0], [1]])
    stats = stats_from_logits(logits=logits, tokens=tokens)
    metrics = token_objective(
        "acpo",
        stats=stats,
        old_logp=stats.logp,
        advantages=torch.tensor([1.0, -1.0], dtype=torch.float64),
        mask=torch.ones(2, 1),
    ).metrics
    p = torch.sigmoid(torch.tensor(2.0)).item()
    expected = {
        "aligned": 0.5,
        "delta": 1 - p,
        "credit/positive": 3 - p,
        "credit/nonpositive": 3 * p,
        "update/positive": 3 * (1 - p),
        "update/nonpositive": 3 * p,
        "reversed": 0.0,
        "ratio": 1.0,
        "saturated": 0.0,
    }
    for name, number in expected.items():
        assert metrics[name].item() == pytest.approx(number, abs=1e-6), name


@pytest.mark.parametrize("row", ["acpo_balanced", "global_sg_balanced"])
def test_balanced_rows_move_as_much_as_sapo_in_each_branch(row):
    batch = random_batch(5, ratios=(1.0, 1.0))
    method = METHODS[row]
    whole = stats_from_logits(logits=batch["logits"], tokens=batch["tokens"])
    shaped = shape_tokens(
        method, log_pmax=whole.log_pmax, advantages=batch["advantages"], mask=batch["mask"]
    ).advantages
    mask = batch["mask"].bool()
    share = mask / mask.sum(1, keepdim=True)
    plain = batch["advantages"][:, None] * mask
    weight = method.credit.first_order(-torch.expm1(whole.log_pmax), plain > 0, method.options)
    for branch in (plain > 0, plain < 0):
        ours = (share * shaped * weight)[branch].sum()
        torch.testing.assert_close(ours, (share * plain)[branch].sum())


def test_equal_entropy_shares_shape_to_exactly_nothing():
    """One good and one bad answer: every share is 1, and rounding must not become an advantage."""
    mask = torch.ones(2, 7, dtype=torch.bool)
    shaped = shape_tokens(
        "gtpo_entropy",
        advantages=torch.tensor([1.0, -1.0], dtype=torch.float64),
        mask=mask,
        old_entropy=torch.rand(2, 7, dtype=torch.float64),
        group_size=2,
    ).advantages
    assert (shaped == 0).all()


def test_a_silent_mini_batch_is_not_penalised_everywhere():
    """All covariances are 0 there, and the share is a share all the same."""
    g = torch.Generator().manual_seed(0)
    logp = -torch.rand(20, 50, generator=g)
    columns = {"advantages": torch.zeros(20), "mask": torch.ones(20, 50), "logp": logp}
    assert (shape_tokens("kl_cov", **columns, old_logp=logp).marks != 0).sum() == 1


def test_copies_of_a_completion_are_not_all_left_out():
    """Equal completions have equal keys; no more tokens are drawn for that."""
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(50, (1, 5), generator=g).repeat(16, 1)
    logp = -torch.rand(1, 5, generator=g).repeat(16, 1)
    advantages = torch.tensor([1.0, -1.0]).repeat(8)
    shaped = shape_tokens(
        "clip_cov",
        **{"advantages": advantages, "mask": torch.ones(16, 5), "tokens": tokens},
        **{"logp": logp, "old_logp": logp, "cov_low": 0.0, "cov_high": 100.0},
    )
    assert (shaped.advantages == 0).sum() == 1


def test_parts_of_a_mini_batch_choose_the_smallest_together():
    values = [torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1.0, 1.0, 5.0]), torch.tensor([])]

    class Part(Reducer):
        def __init__(self, place):
            self.number = place

        @property
        def place(self):
            return self.number

        def gather(self, own):
            if own.dtype == torch.long:
                return torch.tensor([len(part) for part in values])
            return torch.cat(values)

    found = [Part(place).smallest(part, 2).tolist() for place, part in enumerate(values)]
    assert found == [[False, True, False], [True, False, False], []]
