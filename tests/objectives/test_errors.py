"""Bad input is refused with the field, the value and the remedy."""

import pytest
import torch

from acpo.errors import ACPOError, ACPOWarning
from acpo.objectives import (
    dense_loss,
    get_method,
    group_advantages,
    shape_tokens,
    stats_from_logits,
    theory,
    token_objective,
)
from objectives.batches import random_batch


def broken(**changes):
    batch = random_batch(0)
    for name, change in changes.items():
        batch[name] = change(batch[name])
    return batch


def poison(value, *index):
    def change(tensor):
        tensor = tensor.clone()
        tensor[index] = value
        return tensor

    return change


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"old_logp": lambda x: x[:, :-1]}, ["old_logp", "[6, 6]", "[6, 7]"]),
        ({"mask": lambda x: x[:-1]}, ["mask", "[5, 7]"]),
        ({"advantages": lambda x: x[:-1]}, ["advantages", "[5]", "[6]"]),
        ({"tokens": lambda x: x[:, :3]}, ["logits", "tokens", "[6, 3]"]),
        ({"tokens": poison(11, 0, 0)}, ["tokens", "[0, 11)"]),
        ({"logits": poison(float("nan"), 0, 2)}, ["logits[0, 2]", "not finite"]),
        ({"logits": poison(float("inf"), 0, 2, 1)}, ["logits[0, 2]", "learning rate"]),
        ({"advantages": poison(float("nan"), 1)}, ["advantages", "non-finite"]),
        ({"old_logp": poison(float("-inf"), 0, 1)}, ["old_logp[0, 1]", "-inf"]),
        ({"temperature": lambda _: 0.0}, ["temperature=0.0", "positive"]),
        ({"temperature": lambda _: -1.0}, ["temperature=-1.0"]),
    ],
)
def test_bad_batches(changes, words):
    with pytest.raises(ACPOError) as error:
        dense_loss("acpo", **broken(**changes))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("acop", {}, ["'acop'", "did you mean 'acpo'"]),
        ("ppo2000", {}, ["'ppo2000'", "grpo"]),
        ("acpo", {"tau_pos": 0.0}, ["tau_pos=0.0", "positive"]),
        ("sapo", {"tau_neg": -1}, ["tau_neg=-1"]),
        ("acpo", {"offset": "two"}, ["offset='two'", "'auto'"]),
        ("acpo", {"mismatch_scale": float("nan")}, ["mismatch_scale=nan"]),
        ("grpo", {"tau_pos": 1.0}, ["tau_pos=1.0", "'grpo'", "epsilon"]),
        ("8020", {"top_entropy_quantile": 2.0}, ["top_entropy_quantile=2.0", "(0, 1]"]),
        ("gtpo_entropy", {"norm": "l2"}, ["norm='l2'", "joint"]),
        ("shannon", {"entropy_norm": "max"}, ["entropy_norm='max'", "batch_max"]),
    ],
)
def test_bad_methods_and_options(method, options, words):
    with pytest.raises(ACPOError) as error:
        dense_loss(method, **random_batch(0), **options)
    for word in words:
        assert word in str(error.value)


def test_group_sizes():
    with pytest.raises(ACPOError, match="group_size=4 does not divide the 6"):
        group_advantages([1.0] * 6, 4)
    with pytest.raises(ACPOError, match="group_size=4"):
        dense_loss("gtpo", **{**random_batch(0), "group_size": 4})
    with pytest.raises(ACPOError, match="group_size is missing"):
        dense_loss("gtpo", **{**random_batch(0), "group_size": None})
    with pytest.raises(ACPOError, match=r"\[2, 3\]"):
        group_advantages(torch.ones(2, 3), 3)
    with pytest.raises(ACPOError, match=r"rewards\[1\]=inf"):
        group_advantages([0.0, float("inf")], 2)
    with pytest.raises(ACPOError, match="scale='max'"):
        group_advantages([0.0, 1.0], 2, scale="max")


def test_missing_inputs():
    with pytest.raises(ACPOError, match="old_entropy is missing"):
        dense_loss("gtpo_entropy", **{**random_batch(0), "old_entropy": None})
    with pytest.raises(ACPOError, match=r"ref_logp is missing: beta=0\.1"):
        dense_loss("acpo", **random_batch(0), beta=0.1)
    with pytest.raises(ACPOError, match="support=1"):
        theory.max_envelope_width(1)


@pytest.mark.parametrize(
    ("row", "field"), [("acpo_no_routing", "log_pmax"), ("shannon", "entropy")]
)
def test_a_detached_statistic_is_not_differentiated_silently(row, field):
    batch = random_batch(0)
    logits = batch["logits"].requires_grad_()
    stats = stats_from_logits(logits=logits, tokens=batch["tokens"])
    stats = stats._replace(**{field: getattr(stats, field).detach()})
    fields = {k: batch[k] for k in ("old_logp", "advantages", "mask")}
    with pytest.raises(ACPOError, match=f"stats.{field} is detached"):
        token_objective(row, stats=stats, **fields)
    token_objective("acpo", stats=stats, **fields)


def test_tau_that_breaks_proportionality_warns_with_the_remedy():
    with pytest.warns(ACPOWarning, match=r"tau_pos=0.5.*pushed down.*offset='auto' \(here 4\)"):
        get_method("acpo", tau_pos=0.5)
    with pytest.warns(ACPOWarning, match="still gain"):
        get_method("acpo_no_routing", tau_pos=2.0)
    get_method("acpo", tau_pos=0.5, offset="auto")
    get_method("acpo", tau_pos=0.5, offset=4.0)
    get_method("global_sg_offset", tau_pos=0.5)


def test_trl_option_names_are_accepted():
    method = get_method("sapo", sapo_temperature_pos=0.9, sapo_temperature_neg=1.2)
    assert method.options["tau_pos"] == 0.9 and method.options["tau_neg"] == 1.2


@pytest.mark.parametrize(
    ("row", "changes", "words"),
    [
        ("sapo", {"advantages": torch.zeros(1)}, "advantages has shape"),
        ("sapo", {"advantages": torch.zeros(4, 1)}, "advantages has shape"),
        ("entropy_adv", {"entropy": torch.zeros(1, 3)}, "entropy has shape"),
        ("score_normalised", {"logp": torch.zeros(4, 1)}, "logp has shape"),
        ("kl_cov", {"logp": torch.full((4, 3), torch.nan)}, r"logp\[0, 0\]=nan"),
        ("sapo", {"advantages": torch.full((4,), torch.nan)}, "non-finite"),
    ],
)
def test_shaping_refuses_what_the_loss_refuses(row, changes, words):
    names = ("entropy", "log_pmax", "logp", "old_entropy", "old_logp")
    columns = {name: torch.zeros(4, 3) for name in names} | {"mask": torch.ones(4, 3)}
    with pytest.raises(ACPOError, match=words):
        shape_tokens(row, **{"advantages": torch.zeros(4), **columns, **changes})


def test_unanimous_groups_have_no_advantage_whatever_eps_is():
    found = group_advantages([1.0, 1.0, 0.0, 1.0], 2, eps=0.0)
    assert found[:2].tolist() == [0.0, 0.0] and found.isfinite().all()
    with pytest.raises(ACPOError, match=r"eps=-1\.0"):
        group_advantages([1.0, 0.0], 2, eps=-1.0)


def test_lists_are_as_exact_as_tensors():
    rewards = [16777216.0, 16777217.0]
    exact = group_advantages(torch.tensor(rewards, dtype=torch.float64), 2)
    torch.testing.assert_close(group_advantages(rewards, 2), exact.float())


@pytest.mark.parametrize(
    ("row", "options", "words"),
    [
        ("low_prob", {"alpha": 1.5}, "alpha=1.5 must be at most 1"),
        ("simko", {"alpha": 1.5}, "alpha=1.5 must be at most 1"),
        ("hapo", {"beta_entropy": 3.0}, "beta_entropy=3.0 must be at most 1"),
        ("clip_cov", {"cov_low": 5.0, "cov_high": 1.0}, "cov_low=5.0 must be below cov_high=1.0"),
    ],
)
def test_options_that_reverse_a_row_or_switch_it_off(row, options, words):
    with pytest.raises(ACPOError, match=words):
        get_method(row, **options)
