"""Every column of a trace against a dense float64 reading of the same model."""

import dataclasses

import numpy as np
import pytest
import torch

from acpo.errors import ACPOError
from acpo.objectives import METHODS, TokenStats, get_method
from acpo.records import TOKEN_COLUMNS, Trace, TraceWriter
from acpo.scoring.pieces import Pieces
from acpo.scoring.rollouts import SampledCompletion, Scorer, method_rows, prompt_id, score
from tasks.tiny import chain_tokenizer, tiny_model

GROUP = 4


@pytest.fixture(scope="module")
def model():
    model = tiny_model(seed=1).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(2.5)
    return model


def make_rollouts(seed=0, prompts=3):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(prompts):
        prompt = rng.integers(2, 17, rng.integers(1, 9)).tolist()
        for sample in range(GROUP):
            completion = rng.integers(2, 17, rng.integers(1, 20)).tolist()
            reward = (0.0, 1.0, 1.0, None)[sample]
            found.append(
                SampledCompletion(
                    prompt_id(prompt), sample, prompt, [*completion, 1], False, "7", reward
                )
            )
    return found


def log_probs(model, rollout, temperature=1.0):
    """`[T, V]` by the model's own forward pass, alone and unpadded."""
    ids = torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]])
    with torch.no_grad():
        logits = model(ids).logits[0].double()
    first = len(rollout.prompt_ids) - 1
    return torch.log_softmax(logits[first:-1] / temperature, -1)


def scorer(model, method=None, *, temperature=1.0, top_k=0, batch_size=32):
    options = {"temperature": temperature, "top_k": top_k, "batch_size": batch_size}
    return Scorer(model, chain_tokenizer(), method or get_method("acpo"), **options)


@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_columns_equal_a_dense_reading(model, tmp_path, batch_size, temperature):
    rollouts = make_rollouts()
    own = scorer(model, temperature=temperature, top_k=3, batch_size=batch_size)
    rows, columns = own.part(rollouts, group_size=GROUP)
    with TraceWriter(tmp_path / "t", {}) as writer:
        writer.append(rows, columns)
    trace = Trace.open(tmp_path / "t")
    assert trace.columns == TOKEN_COLUMNS.keys()
    got = trace.table(*TOKEN_COLUMNS)
    log_p = torch.cat([log_probs(model, r, temperature) for r in rollouts])
    tokens = torch.tensor([i for r in rollouts for i in r.completion_ids])
    p = log_p.exp()
    mode = p.argmax(-1)
    aligned = mode == tokens
    assert aligned.any() and (~aligned).any()
    assert 0.1 < -(p * log_p).sum(-1).mean() < 2.5, "neither certain nor uniform"
    tail = torch.ones_like(p).scatter(1, mode[:, None], 0.0) * p**2
    delta = 1 - p.max(-1).values
    positive = torch.tensor(got["advantage"].to_numpy() > 0)
    credit = torch.where(
        positive,
        torch.where(aligned, 2 + delta, 3 * delta),
        torch.where(aligned, 1 - delta, 3 * (1 - delta)),
    )
    expected = {
        "token_id": tokens,
        "logp": log_p.gather(1, tokens[:, None])[:, 0],
        "log_pmax": log_p.max(-1).values,
        "mode_id": mode,
        "is_mode": aligned,
        "entropy": -(p * log_p).sum(-1),
        "delta": delta,
        "credit": credit,
        "tail_p2": tail.sum(-1),
        "tail_p2_logp": (tail * log_p).sum(-1),
        "tail_p2_logp2": (tail * log_p**2).sum(-1),
    }
    expected["old_logp"] = expected["logp"]
    for name, values in expected.items():
        # The model itself is float32.
        np.testing.assert_allclose(
            got[name].to_numpy(), values.numpy(), rtol=1e-4, atol=1e-6, err_msg=name
        )
    top = np.array(got["top_logps"].to_pylist())
    np.testing.assert_allclose(top, log_p.topk(3).values, rtol=1e-5, atol=1e-5)
    pieces = got["top_pieces"].to_pylist()
    names = chain_tokenizer().convert_ids_to_tokens
    assert pieces[5] == [word.encode() for word in names(got["top_ids"][5].as_py())]


def test_rows(model):
    rollouts = make_rollouts(prompts=2)
    rows, columns = scorer(model).part(rollouts, group_size=GROUP, sampled_by_scorer=False)
    assert "old_logp" not in columns and "top_ids" not in columns
    for row, rollout in zip(rows, rollouts, strict=True):
        assert row["tokens"] == len(rollout.completion_ids)
        assert len(row["completion"]) == row["tokens"] - 1, "one character a token, none at the end"
        assert len(row["prompt"]) == len(rollout.prompt_ids)
        assert row["reward"] == rollout.reward
        assert rollout.reward is not None or row["advantage"] == 0
    assert len({row["prompt_id"] for row in rows}) == 2


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_credit_and_advantages(model, name):
    rollouts = make_rollouts(seed=3)
    # GTPO drops completions of more entropy than training started with.
    method = get_method(name, **({"initial_entropy": 3.0} if name == "gtpo" else {}))
    _, columns = scorer(model, method).part(rollouts, group_size=GROUP)
    assert np.isfinite(columns["credit"]).all() and np.isfinite(columns["advantage"]).all()
    assert (columns["advantage"] != 0).any()
    if name == "8020":
        trained = columns["advantage"] != 0
        assert columns["entropy"][trained].min() >= np.quantile(columns["entropy"], 0.8) - 1e-9


def test_logits_that_are_no_numbers_name_the_token(model):
    rollouts = make_rollouts(prompts=1)
    layer = model.base_model.norm

    def poison(module, inputs, output):
        return output.index_fill(1, torch.tensor([len(rollouts[0].prompt_ids) + 1]), torch.nan)

    hook = layer.register_forward_hook(poison)
    try:
        with pytest.raises(
            ACPOError, match=rf"prompt {rollouts[0].prompt_id}, sample \d, token 2 .*not finite"
        ):
            score(
                model, [r for r in rollouts if len(r.completion_ids) > 3], temperature=1.0, top_k=2
            )
    finally:
        hook.remove()


def test_ids_the_model_does_not_have_are_refused(model):
    bad = SampledCompletion("q", 3, [2], [5, 99], False)
    with pytest.raises(
        ACPOError, match="prompt q, sample 3: token id 99 is not among the model's 17"
    ):
        score(model, [bad], temperature=1.0, top_k=0)
    with pytest.raises(ACPOError, match="1025 tokens are more than the model's 1024 positions"):
        score(model, [SampledCompletion("q", 3, [2], [5] * 1024, False)], temperature=1.0, top_k=0)
    with pytest.raises(ACPOError, match="no tokens"):
        score(model, [SampledCompletion("q", 0, [], [5], False)], temperature=1.0, top_k=0)


def test_a_prompt_keeps_its_name():
    assert prompt_id([1, 2, 3]) == prompt_id((1, 2, 3)) != prompt_id([1, 2])


def test_what_a_trainer_records_is_what_acpo_trace_writes(model, tmp_path):
    """The same completions by both ways; then again after an update, with a ratio."""
    rollouts = make_rollouts()
    scored = score(model, rollouts, temperature=1.0, top_k=0)
    pieces, method = Pieces(chain_tokenizer()), get_method("acpo")
    rows, columns = scorer(model, method).part(rollouts, group_size=GROUP)
    stats = TokenStats(scored.logp, scored.log_pmax, scored.is_mode, scored.entropy)
    held = {
        "advantages": torch.tensor([row["advantage"] for row in rows], dtype=torch.float64),
        "group_size": GROUP,
    }
    unjudged = [dataclasses.replace(rollout, verdict=None) for rollout in rollouts]
    own_rows, own = method_rows(unjudged, pieces, method, stats, scored.logp, **held)
    assert own_rows == [{**row, "verdict": None} for row in rows]
    for name, values in own.items():
        np.testing.assert_allclose(values, columns[name]) if values.dtype != object else None
    ratio = 0.1 * torch.ones_like(scored.logp)
    _, later = method_rows(unjudged, pieces, method, stats, scored.logp - ratio, **held)
    with TraceWriter(tmp_path / "t", {"source": "train"}) as writer:
        writer.append(own_rows, own, step=4)
        writer.append(own_rows, later, step=4, update=1)
        writer.append(own_rows, own, step=6)
    trace = Trace.open(tmp_path / "t")
    assert trace.rollouts["step"].to_pylist() == [4] * 12 + [6] * 12
    (again,) = trace.after_updates().values()
    ratios = again.tokens("logp", "old_logp")
    np.testing.assert_allclose(ratios["logp"] - ratios["old_logp"], 0.1, rtol=1e-5)
