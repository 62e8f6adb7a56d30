"""In bfloat16 and at any temperature, delta is that of the very logits that log p_y came from."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig, PolicyLossConfig
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.utils.losses import ppo_loss

from acpo.engines.verl.config import configured_row
from acpo.engines.verl.engines import RowLoss
from acpo.engines.verl.loss import MicroBatch
from acpo.engines.verl.margin import mode_margin
from acpo.objectives import METHODS, dense_loss
from engines.verl.batches import verl_batch
from engines.verl.rollouts import GROUP, PROMPT, RESPONSE, VOCABULARY, Rollouts, advantages

TEMPERATURES = (0.7, 1.0, 1.3)
ROWS = ("acpo", "acpo_no_routing", "global_sg", "grpo")


def in_float32(logits, labels, **_):
    """log p_y as on a GPU: float32 numbers from bfloat16 logits. On a CPU verl rounds them too."""
    return torch.log_softmax(logits.float(), -1).gather(-1, labels[..., None]).squeeze(-1)


def rollouts():
    generator = torch.Generator().manual_seed(3)
    rows = 4 * GROUP
    ids = torch.randint(2, VOCABULARY, (rows, PROMPT + RESPONSE), generator=generator)
    lengths = torch.randint(2, RESPONSE + 1, (rows, 1), generator=generator)
    mask = (torch.arange(RESPONSE) < lengths).long()
    blank = torch.zeros(rows, RESPONSE)
    rewards = torch.arange(rows).remainder(3).eq(0).float()
    whole = torch.ones(rows, PROMPT).long()
    return Rollouts(ids[:, :PROMPT], whole, ids[:, PROMPT:] * mask, mask, blank, blank, rewards)


def spread_logits(targets, generator):
    """Logits of a language model's size, where bfloat16 has steps of 1/8; some targets tie.

    The mode is apart from the rest: of two others that rounding makes equal, either could be it.
    """
    logits = 3 * torch.randn(len(targets), VOCABULARY, generator=generator) + 18
    best = logits.amax(1, keepdim=True)
    logits = torch.where(logits == best, logits + 0.5, logits)
    logits[torch.arange(0, len(targets), 3), targets[::3]] = logits.amax(1)[::3]
    return logits.to(torch.bfloat16)


def actor(method):
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=GROUP,
        ppo_micro_batch_size_per_gpu=4,
        policy_loss=PolicyLossConfig(loss_mode=method),
        loss_agg_mode="seq-mean-token-mean",
    )


def through_verl(batch, logits, method, temperature, remove_padding):
    """Loss, metrics and gradient of the (packed) logits, as the FSDP engine makes them."""
    config = actor(method)
    engine = object.__new__(EngineRegistry.get_engine_cls("language_model", "fsdp2"))
    engine.use_ulysses_sp = False
    data = verl_batch(batch, method, slice(None), use_remove_padding=remove_padding)
    count, rows = int(batch.mask.sum()), len(batch.mask)
    tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=count, global_batch_size=rows)
    loss_function = RowLoss(partial(ppo_loss, config=config), configured_row(config))
    leaf = logits.clone().requires_grad_()
    lengths = data["input_ids"].offsets().diff()
    arguments = {
        "input_ids_rmpad_rolled": torch.roll(data["input_ids"].values(), -1),
        "temperature_rmpad": torch.full((len(logits),), temperature),
        "temperature": torch.full((rows,), temperature),
        "pad_size": 0,
    }
    shown = leaf[None]
    if not remove_padding:
        places = torch.arange(int(lengths.max())) < lengths[:, None]
        shown = leaf.new_zeros(*places.shape, VOCABULARY).masked_scatter(places[..., None], leaf)
    output = engine.prepare_model_outputs(
        SimpleNamespace(logits=shown), arguments, data, loss_function
    )
    loss, metrics = loss_function(model_output=output, data=data)
    loss.backward()
    return loss.detach(), float(metrics["actor/acpo/delta"].aggregate()), leaf.grad


def by_definition(batch, logits, method, temperature):
    """The same with `dense_loss` on the logits as verl scales them."""
    leaf = (logits / torch.tensor(temperature).to(logits.dtype)).float().requires_grad_()
    padded = torch.zeros(*batch.ids.shape, VOCABULARY)
    padded = padded.masked_scatter(batch.attention.bool()[..., None], leaf)[:, PROMPT - 1 : -1]
    loss = dense_loss(
        method,
        logits=padded,
        tokens=batch.responses,
        old_logp=batch.old_logp,
        advantages=advantages(batch, method),
        mask=batch.mask,
        group_size=GROUP,
    )
    loss.backward()
    delta = 1 - padded.detach().softmax(-1).amax(-1)
    return loss.detach(), float(delta[batch.mask.bool()].mean()), leaf.grad / temperature


@pytest.mark.parametrize("remove_padding", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("method", ROWS)
def test_loss_and_gradient_in_bfloat16(monkeypatch, method, temperature, remove_padding):
    monkeypatch.setattr(transformer_impl, "logprobs_from_logits", in_float32)
    batch = rollouts()
    generator = torch.Generator().manual_seed(4)
    tokens = torch.roll(batch.ids[batch.attention.bool()], -1)
    logits = spread_logits(tokens, generator)
    scaled = (logits / torch.tensor(temperature).to(logits.dtype)).float()
    logp = scaled.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    packed = torch.zeros(batch.ids.shape).masked_scatter(batch.attention.bool(), logp)
    noise = 0.3 * torch.randn(batch.mask.shape, generator=generator)
    batch = batch._replace(old_logp=packed[:, PROMPT - 1 : -1] + noise)
    got = through_verl(batch, logits, method, temperature, remove_padding)
    expected = by_definition(batch, logits, method, temperature)
    torch.testing.assert_close(got[0], expected[0], rtol=1e-5, atol=1e-5)
    assert got[1] == pytest.approx(expected[1], abs=1e-5)
    assert expected[2].norm() > 1e-3
    # The gradient of bfloat16 logits has eight binary digits.
    assert (got[2].float() - expected[2]).norm() < 8e-3 * expected[2].norm()


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("logp_dtype", [torch.float32, torch.bfloat16], ids=["gpu", "cpu"])
def test_no_delta_is_negative(temperature, logp_dtype):
    generator = torch.Generator().manual_seed(5)
    scale = torch.tensor(temperature)
    for _ in range(10):
        logits = 4 * torch.randn(100_000, 24, generator=generator)
        logits = (logits + 10 * torch.rand(100_000, 1, generator=generator)).to(torch.bfloat16)
        tokens = torch.randint(24, (100_000,), generator=generator)
        scaled = logits / scale.to(logits.dtype)
        logp = scaled.to(logp_dtype).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
        margin = mode_margin(logits=logits, tokens=tokens, temperature=scale, differentiable=False)
        stats = MicroBatch(METHODS["acpo"], margin).stats(logp)
        assert stats.log_pmax.max() <= 0 and stats.logp.max() <= 0
        assert (margin <= 0).all() and (stats.log_pmax >= stats.logp).all()
        if logp_dtype is torch.float32:
            exact = scaled.float().log_softmax(-1).amax(-1)
            assert (stats.log_pmax.exp() - exact.exp()).abs().max() < 1e-5
