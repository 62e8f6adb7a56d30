"""A row of one's own, with a shaping of its own, is one entry: the loss, the head and the trainer
know it by the table alone (tests/engines/verl/test_own_row.py: the verl plugin too)."""

import pytest
import torch

from acpo.head import TokenTerms, fused_policy_loss
from acpo.objectives import METHODS, Method, aggregation_weights, dense_loss, shape_tokens
from acpo.objectives.shaping import Reducer, Sequences, Shaped, Shaping
from engines.own_row import OWN
from engines.tiny import recorded, relative
from objectives.batches import random_batch


@pytest.fixture
def own_row(monkeypatch):
    monkeypatch.setitem(METHODS, OWN.name, OWN)
    return OWN.name


def test_the_definition_and_the_fused_head(own_row):
    batch = random_batch(0)
    logits = batch["logits"].requires_grad_()
    dense = dense_loss(own_row, **batch, sharpness=2.0)
    (expected,) = torch.autograd.grad(dense, logits)
    log_p = torch.log_softmax(logits.detach(), -1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    advantages = shape_tokens(
        own_row,
        advantages=batch["advantages"],
        mask=batch["mask"],
        entropy=entropy,
        old_entropy=batch["old_entropy"],
        tokens=batch["tokens"],
        group_size=batch["group_size"],
        log_pmax=log_p.max(-1).values,
        sharpness=2.0,
    ).advantages
    rows, columns = batch["tokens"].shape
    weights = aggregation_weights(own_row, batch["mask"], dtype=torch.float64)
    hidden = logits.detach().flatten(0, 1).requires_grad_()
    terms = TokenTerms(
        batch["tokens"].flatten(),
        advantages.flatten(),
        weights.flatten(),
        method=own_row,
        old_logp=batch["old_logp"].flatten(),
    )
    loss = fused_policy_loss(hidden, torch.eye(logits.shape[-1], dtype=torch.float64), terms)
    (got,) = torch.autograd.grad(loss, hidden)
    torch.testing.assert_close(loss, dense)
    torch.testing.assert_close(got.view(rows, columns, -1), expected)


def test_the_trainer(own_row, tmp_path):
    settings = {"method": own_row, "method_options": {"sharpness": 2.0}, "num_iterations": 2}
    settings |= {"max_steps": 2, "record_rollouts": True}
    _, whole = recorded(tmp_path / "a", max_tokens_per_pack=4096, **settings)
    trainer, packed = recorded(tmp_path / "b", max_tokens_per_pack=40, **settings)
    assert trainer.packed.settings.method.options["sharpness"] == 2.0
    for a, b, tolerance in zip(packed, whole, (1e-5, 1e-4), strict=True):
        assert b.norm() > 1e-5 and relative(a, b) < tolerance
    _, plain = recorded(tmp_path / "c", method="sapo", max_steps=1)
    assert relative(plain[0], whole[0]) > 0.05


class Halved(Shaping):
    """Needs nothing, and measures a number on the first rollout."""

    measured = ("level",)

    def measure(self, entropy, mask, reduce):
        return {"level": 0.25 + 0 * float(entropy.sum())}

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        level = float(batch.options["level"])
        return Shaped(batch.advantages[:, None] * level * batch.mask, batch.mask)


def test_a_shaping_without_needs_and_with_a_measured_option(tmp_path, monkeypatch):
    row = Method(
        "half", "Half", "soft", {**METHODS["sapo"].options, "level": 0.0}, shaping=Halved()
    )
    monkeypatch.setitem(METHODS, row.name, row)
    assert row.needs_whole_batch and not METHODS["sapo"].needs_whole_batch
    _, plain = recorded(tmp_path / "a", method="sapo")
    trainer, measured = recorded(tmp_path / "b", method="half", save_strategy="steps", save_steps=1)
    assert trainer.rollouts.measured == {"level": 0.25}
    assert relative(measured[0], 0.25 * plain[0]) < 1e-5
    _, given = recorded(tmp_path / "c", method="half", method_options={"level": 0.5})
    assert relative(given[0], 0.5 * plain[0]) < 1e-5
