"""A method's update is the real gradient's component; methods without what they need say so."""

import numpy as np
import pytest
import torch

from acpo.errors import ACPOError
from acpo.method_columns import method_columns, methods_to_show, own_update
from acpo.objectives import (
    METHODS,
    TokenStats,
    aggregation_weights,
    get_method,
    group_advantages,
    logit_gradient,
)
from acpo.objectives.loss import TokenCoefficients
from acpo.records import Trace, TraceWriter
from viewer.traces import write_trace

LENGTHS = [40, 33, 26, 19]


def padded(flat: torch.Tensor) -> torch.Tensor:
    """[N, ...] to [B, T, ...]."""
    rows = flat.split(LENGTHS)
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


@pytest.mark.parametrize("name", METHODS)
def test_update_is_the_gradient_along_the_token(name, tmp_path):
    on_policy = name in ("gtpo_entropy", "score_baseline")
    method = get_method(name, **({"max_length": 40} if name == "dr_grpo" else {}))
    made = write_trace(tmp_path / "t", prompts=1, length=40, drift=0.0 if on_policy else 0.4)
    trace = Trace.open(tmp_path / "t")
    columns = method_columns(trace, name)
    logits, tokens, old_logp = (padded(made[key]) for key in ("logits", "tokens", "old_logp"))
    mask = padded(torch.ones(sum(LENGTHS), dtype=torch.bool))
    advantages = torch.tensor(trace.rollouts["advantage"].to_pylist(), dtype=torch.float64)
    if get_method(name).advantage_scale == "none":
        advantages = torch.tensor([-0.5, 0.5, -0.5, 0.5], dtype=torch.float64)
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    gradient = logit_gradient(
        method,
        logits=logits,
        tokens=tokens,
        old_logp=old_logp,
        advantages=advantages,
        mask=mask,
        group_size=4,
        old_entropy=entropy,
        old_log_pmax=logits.log_softmax(-1).amax(-1),
    )
    direction = torch.nn.functional.one_hot(tokens, logits.shape[-1]) - logits.softmax(-1)
    upward = -gradient / aggregation_weights(method, mask, dtype=torch.float64)[..., None]
    expected = (upward * direction).sum(-1) / direction.square().sum(-1)
    known = np.isfinite(columns.update)
    assert known.any() and known.all() == (name != "simko"), "simko shares with unknown tokens"
    expected = expected[mask].numpy()
    np.testing.assert_allclose(columns.update[known], expected[known], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("gap", [2.0, 16.0, 21.0, 28.0])
def test_the_entropy_s_share_of_a_confident_update_is_exact(gap):
    tail = torch.softmax(torch.tensor([0.0, -1.0, -2.0], dtype=torch.float64), 0)
    delta = torch.tensor(-gap, dtype=torch.float64).exp()
    tail, logp = delta * tail, torch.log1p(-delta)[None]
    entropy = -((1 - delta) * logp + (tail * tail.log()).sum())
    outward = torch.cat([delta[None], -tail])
    downhill = torch.cat([-(1 - delta) * (logp + entropy), -tail * (tail.log() + entropy)])
    expected = (downhill * outward).sum() / outward.square().sum()
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    found = own_update(
        TokenCoefficients(value=zero, a=zero, b=zero, h=one),
        TokenStats(logp, logp, torch.tensor([True]), entropy),
        {
            "tail_p2": tail.square().sum()[None],
            "tail_p2_logp": (tail.square() * tail.log()).sum()[None],
        },
    )
    torch.testing.assert_close(found, expected[None], rtol=1e-9, atol=0)


def test_a_run_s_own_row_has_the_options_it_was_trained_with(tmp_path):
    write_trace(tmp_path / "t", header={"method_options": {"positive_weight": 0.5}})
    trace = Trace.open(tmp_path / "t")
    sapo, own = methods_to_show(trace, None)
    assert own.options["positive_weight"] == 0.5 and sapo == get_method("sapo")
    credit = method_columns(trace, "acpo").advantage
    assert (credit == method_columns(trace, own).advantage).all()
    assert (credit != method_columns(trace, get_method("acpo")).advantage).any()


def test_the_paper_s_credit_and_reversals(tmp_path):
    write_trace(tmp_path / "t", drift=0.0)
    trace = Trace.open(tmp_path / "t")
    data = trace.tokens("delta", "is_mode", "advantage")
    acpo, unrouted = method_columns(trace, "acpo"), method_columns(trace, "acpo_no_routing")
    delta, mode, good = data["delta"], data["is_mode"], data["advantage"] > 0
    aligned = np.where(good, 2 + delta, 1 - delta)
    expected = np.where(mode, aligned, np.where(good, 3 * delta, 3 * (1 - delta)))
    np.testing.assert_allclose(acpo.credit, expected, rtol=1e-5)
    assert not (acpo.update * acpo.advantage < 0).any()
    reversed_ = unrouted.update * unrouted.advantage < 0
    assert reversed_.any() and not reversed_[mode | good].any()


def test_without_the_sums_only_what_needs_them_is_unknown(tmp_path):
    write_trace(tmp_path / "t", drop=("tail_p2", "tail_p2_logp"))
    trace = Trace.open(tmp_path / "t")
    assert np.isfinite(method_columns(trace, "acpo").update).all()
    unknown = np.isnan(method_columns(trace, "acpo_no_routing").update)
    assert unknown.any() and not unknown[trace.tokens("is_mode")["is_mode"]].any()


def test_methods_to_show(tmp_path):
    write_trace(tmp_path / "t", header={"method": "grpo"})
    write_trace(tmp_path / "bare", drop=("logp",), header={"method": ["x"]})
    scored, bare = Trace.open(tmp_path / "t"), Trace.open(tmp_path / "bare")
    assert [m.name for m in methods_to_show(scored, None)] == ["sapo", "grpo"]
    assert [m.name for m in methods_to_show(scored, "acpo, dapo, acpo")] == ["acpo", "dapo"]
    assert methods_to_show(bare, None) == []
    write_trace(tmp_path / "newer", header={"method": "of a later version"})
    newer = methods_to_show(Trace.open(tmp_path / "newer"), None)
    assert [m.name for m in newer] == ["sapo", "acpo"]
    with pytest.raises(ACPOError, match="did you mean 'sapo'"):
        methods_to_show(scored, "sapoo")
    with pytest.raises(ACPOError, match="has no logp: `acpo trace`"):
        method_columns(bare, "sapo")


def test_advantages_are_scaled_as_the_method_does_whoever_made_the_trace(tmp_path):
    """GTPO only centres rewards; its trace must not lend SAPO unscaled advantages."""
    rewards = [1.0, 0.0, 0.0, 0.0]
    centred, standard = (group_advantages(rewards, 4, scale=s).numpy() for s in ("none", "std"))
    one = {"token_id": [1] * 4, "logp": [-1.0] * 4, "log_pmax": [-0.5] * 4}
    one |= {"is_mode": [False] * 4, "entropy": [1.0] * 4}
    for own, stored in (("gtpo", centred), ("acpo", standard)):
        with TraceWriter(tmp_path / own, {"method": own}) as writer:
            rows = [
                {"prompt_id": "q", "sample": i, "tokens": 1, "reward": r, "advantage": float(a)}
                for i, (r, a) in enumerate(zip(rewards, stored, strict=True))
            ]
            writer.append(rows, one)
        trace = Trace.open(tmp_path / own)
        np.testing.assert_allclose(method_columns(trace, "sapo").advantage, standard, rtol=1e-6)
        np.testing.assert_allclose(method_columns(trace, "dapo").advantage, standard, rtol=1e-6)
    traces = (Trace.open(tmp_path / name) for name in ("gtpo", "acpo"))
    ours, theirs = (method_columns(trace, "gtpo") for trace in traces)
    np.testing.assert_allclose(ours.advantage, theirs.advantage, rtol=1e-6)


def test_what_cannot_be_computed_is_refused(tmp_path):
    write_trace(tmp_path / "t")
    with pytest.raises(ACPOError, match="entropy of the policy that sampled"):
        method_columns(Trace.open(tmp_path / "t"), "gtpo_entropy")


def test_groups_of_several_sizes_are_told_where_groups_are_compared(tmp_path):
    one = {"token_id": [1], "logp": [-1.0], "log_pmax": [-0.5], "is_mode": [False]}
    with TraceWriter(tmp_path / "t", {}) as writer:
        for sample, prompt in enumerate("aab"):
            row = {"prompt_id": prompt, "sample": sample, "tokens": 1, "reward": 1.0}
            writer.append([row], one | {"entropy": [1.0]})
    trace = Trace.open(tmp_path / "t")
    with pytest.raises(ACPOError, match=r"'gtpo' compares groups .*groups of 1 and of 2: leave"):
        method_columns(trace, "gtpo")
    assert len(method_columns(trace, "8020").credit) == 3


def test_more_than_memory_holds_is_refused(tmp_path, monkeypatch):
    write_trace(tmp_path / "t", prompts=1, length=40)
    trace = Trace.open(tmp_path / "t")
    monkeypatch.setattr("acpo.scoring.credit.MOST_CELLS", 4 * 40)
    method_columns(trace, "acpo")
    monkeypatch.setattr("acpo.scoring.credit.MOST_CELLS", 4 * 40 - 1)
    with pytest.raises(ACPOError, match="4 completions of one step, padded to 40 tokens"):
        method_columns(trace, "acpo")
