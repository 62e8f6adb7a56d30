"""What training records is what a fresh scoring of the same policy finds, killed or not."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from acpo import ACPOConfig
from acpo.engines.trl import checkpoint
from acpo.engines.trl.record import RolloutRecorder
from acpo.objectives import get_method, stats_from_logits
from acpo.records import RUN_LOG, Trace
from acpo.scoring.rollouts import SampledCompletion, score
from engines import resume_worker
from engines.tiny import odd_tokens, options, prompts, recorded, tiny_model, tiny_tokenizer

COLUMNS = ("token_id", "logp", "old_logp", "log_pmax", "entropy", "is_mode", "credit", "advantage")


def ids_of(text: str) -> list[int]:
    return [int(word[1:]) + 2 for word in text.split()]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Six steps, two per rollout, the rollouts of steps 0 and 4 recorded; a checkpoint at 4."""
    folder = tmp_path_factory.mktemp("recorded")
    settings = {"steps_per_generation": 2, "save_strategy": "steps", "save_steps": 4}
    recorded(folder, record_rollouts=True, record_every=2, max_steps=6, **settings)
    return folder


def test_recorded_tokens_are_those_a_fresh_scoring_finds(run):
    trace = Trace.open(run / "trace")
    assert trace.header["source"] == "train" and trace.header["group"] == 4
    assert [part["step"] for part in trace.parts] == [0, 4]
    for step, model in (
        (0, tiny_model()),
        (4, type(tiny_model()).from_pretrained(run / "checkpoint-4")),
    ):
        chosen = [i for i, s in enumerate(trace.rollouts["step"].to_pylist()) if s == step]
        rows = trace.rollouts.take(chosen).to_pylist()
        first, last = trace.starts[chosen[0]], trace.starts[chosen[-1] + 1]
        tokens = trace.table(*COLUMNS).slice(first, last - first)
        ids = np.split(tokens["token_id"].to_numpy(), np.cumsum([r["tokens"] for r in rows])[:-1])
        rollouts = [
            SampledCompletion("", 0, ids_of(row["prompt"]), own.tolist(), False)
            for row, own in zip(rows, ids, strict=True)
        ]
        fresh = score(model.eval(), rollouts, temperature=1.0, top_k=0)
        for name in ("logp", "log_pmax", "entropy"):
            mine = tokens[name].to_numpy()
            np.testing.assert_allclose(mine, getattr(fresh, name), rtol=1e-4, atol=2e-5)
        assert (tokens["is_mode"].to_numpy() == fresh.is_mode.numpy()).all()
        np.testing.assert_allclose(tokens["old_logp"].to_numpy(), fresh.logp, rtol=1e-4, atol=2e-5)


def test_recorded_rows_say_what_was_trained_on(run):
    trace = Trace.open(run / "trace")
    data = dict(zip(*prompts().to_dict().values(), strict=True))
    rewards = []
    for i, row in enumerate(trace.rollouts.to_pylist()):
        own = trace.table("token_id", "advantage", "credit", "delta", "is_mode")
        own = own.slice(trace.starts[i], row["tokens"])
        assert row["sample"] == i % 4
        assert row["answer"] == data[row["prompt"].strip()]
        assert row["reward"] == odd_tokens([own["token_id"].to_pylist()])[0]
        assert row["truncated"] == (own["token_id"][-1].as_py() != 1)
        assert set(own["advantage"].to_pylist()) == {np.float32(row["advantage"])}
        delta, aligned = own["delta"].to_numpy(), own["is_mode"].to_numpy()
        c = (
            np.where(aligned, 2 + delta, 3 * delta)
            if row["advantage"] > 0
            else (np.where(aligned, 1, 3) * (1 - delta))
        )
        np.testing.assert_allclose(own["credit"].to_numpy(), c, rtol=1e-5, atol=1e-6)
        rewards.append(row["reward"])
    groups = np.array(rewards).reshape(-1, 4)
    centred = groups - groups.mean(1, keepdims=True)
    expected = centred / (groups.std(1, ddof=1, keepdims=True) + 1e-4)
    found = np.array(trace.rollouts["advantage"].to_pylist()).reshape(-1, 4)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert (found != 0).any()


def test_logged_variation_of_scores_is_that_of_the_recorded_tokens(run):
    trace = Trace.open(run / "trace")
    logs = [json.loads(line) for line in (run / RUN_LOG).read_text().splitlines()]
    logged = {log["step"]: log["score_variation"] for log in logs if "score_variation" in log}
    assert set(logged) == {1, 3, 5}, "once per rollout"
    for step in (0, 4):
        roots = []
        for i, row in enumerate(trace.rollouts.to_pylist()):
            if row["step"] == step:
                own = trace.table("old_logp", "log_pmax", "is_mode")
                own = own.slice(trace.starts[i], row["tokens"])
                p, top, mode = (column.to_numpy() for column in own.columns)
                beside = np.where(mode, 0, np.exp(top.astype(float)))
                roots.append(np.sqrt(((1 - np.exp(p.astype(float))) ** 2 + beside**2).sum()))
        groups = np.array(roots).reshape(-1, 4)
        expected = (groups.std(1, ddof=1) / groups.mean(1)).mean()
        np.testing.assert_allclose(logged[step + 1], expected, rtol=1e-4)


def trainer_like(folder, stats):
    """As much of a trainer as a recorder reads: groups of two, 5 ends a completion."""
    return SimpleNamespace(
        args=ACPOConfig(**options(folder)).per_optimizer_step(),
        policy=tiny_model(),
        _tokenizer=tiny_tokenizer(),
        num_generations=2,
        num_iterations=1,
        temperature=1.0,
        max_completion_length=4,
        rollouts=SimpleNamespace(rollout_statistics=lambda rollout: stats),
        packed=SimpleNamespace(settings=SimpleNamespace(method=get_method("acpo"))),
        eos_token_ids=[5],
        state=SimpleNamespace(global_step=0),
        accelerator=SimpleNamespace(is_main_process=True, process_index=0),
    )


def test_a_trace_names_the_options_that_are_not_the_row_s_own(tmp_path):
    trainer = trainer_like(tmp_path, None)
    assert "method_options" not in RolloutRecorder(trainer).header
    trainer.args = ACPOConfig(
        **options(tmp_path), method="acpo", method_options={"positive_weight": 0.5}
    )
    assert RolloutRecorder(trainer).header["method_options"] == {"positive_weight": 0.5}


def test_what_a_tool_wrote_is_not_recorded(tmp_path):
    ids = torch.tensor([[2, 3, 4, 5], [2, 3, 4, 0]])
    stats = stats_from_logits(logits=torch.randn(2, 4, 8), tokens=ids)
    recorder = RolloutRecorder(trainer_like(tmp_path, stats))
    assert recorder.begin(0)
    rollout = {
        "prompt_ids": torch.tensor([[6], [6]]),
        "prompt_mask": torch.ones(2, 1),
        "completion_ids": ids,
        "completion_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
        "tool_mask": torch.tensor([[1, 0, 0, 1], [1, 1, 1, 0]]),
        "advantages": torch.tensor([1.0, -1.0]),
    }
    recorder.note(rollout, [{"answer": "5"}] * 2, torch.tensor([1.0, 0.0]))
    recorder.record(rollout, update=0)
    trace = Trace.open(tmp_path / "trace")
    assert trace.tokens("token_id")["token_id"].tolist() == [2, 5, 2, 3, 4]
    assert trace.rollouts["truncated"].to_pylist() == [False, True]
    logp = torch.cat([stats.logp[0, [0, 3]], stats.logp[1, :3]])
    np.testing.assert_allclose(trace.tokens("logp")["logp"], logp, rtol=1e-6)


def test_recording_changes_nothing_and_is_off_by_default(tmp_path):
    _, plain = recorded(tmp_path / "plain", max_steps=2)
    _, with_trace = recorded(tmp_path / "recorded", max_steps=2, record_rollouts=True)
    assert not (tmp_path / "plain" / "trace").exists()
    for a, b in zip(plain, with_trace, strict=True):
        assert torch.equal(a, b)


def test_killed_and_resumed_to_the_same_trace(tmp_path):
    resume_worker.run(tmp_path / "whole", record=True)
    # The rollout of step 4 is recorded, but the last whole checkpoint is that of step 3.
    resume_worker.killed(tmp_path / "killed", "checkpoint:2", record=True)
    assert [p["step"] for p in Trace.open(tmp_path / "killed" / "trace").parts] == [0, 4]
    (left,) = checkpoint.numbered(tmp_path / "killed")
    assert checkpoint.problem(left) is None
    resume_worker.run(tmp_path / "killed", resume=True, record=True)
    whole, again = (Trace.open(tmp_path / name / "trace") for name in ("whole", "killed"))
    assert whole.parts == again.parts and [p["step"] for p in whole.parts] == [0, 4, 8]
    assert whole.rollouts.equals(again.rollouts)
    assert whole.table(*COLUMNS, "piece", "start").equals(again.table(*COLUMNS, "piece", "start"))


def test_a_fresh_run_in_the_same_folder_starts_its_trace_anew(tmp_path):
    for _ in range(2):
        recorded(tmp_path, max_steps=2, record_rollouts=True)
        assert [part["step"] for part in Trace.open(tmp_path / "trace").parts] == [0, 1]


@pytest.mark.parametrize("method", ["8020", "gtpo", "gtpo_entropy", "shannon", "gspo"])
def test_every_kind_of_method_is_recorded(tmp_path, method):
    recorded(tmp_path, max_steps=1, record_rollouts=True, method=method)
    tokens = Trace.open(tmp_path / "trace").tokens("credit", "advantage", "entropy")
    assert np.isfinite(tokens["credit"]).all()
    if method == "8020":
        trained = tokens["advantage"] != 0
        assert tokens["entropy"][trained].min() >= np.quantile(tokens["entropy"], 0.8) - 1e-5


def test_later_updates_are_scored_again(tmp_path):
    """Ratios, gates and reversals are there to be seen where they happen: after updates."""
    settings = {"max_steps": 6, "steps_per_generation": 3, "learning_rate": 1e-2}
    recorded(tmp_path, record_rollouts=True, record_every=2, **settings)
    trace = Trace.open(tmp_path / "trace")
    assert trace.header["updates_per_rollout"] == 3 and [p["step"] for p in trace.parts] == [0]
    later = trace.after_updates()
    assert sorted(later) == [1, 2]
    first = trace.tokens("logp", "old_logp", "token_id")
    np.testing.assert_allclose(first["logp"], first["old_logp"], atol=1e-5)
    for number, again in later.items():
        assert {p["step"] for p in again.parts} == {0}
        seen = again.tokens("logp", "old_logp", "token_id")
        count = len(seen["token_id"])
        np.testing.assert_array_equal(seen["token_id"], first["token_id"][:count])
        np.testing.assert_allclose(seen["old_logp"], first["old_logp"][:count], atol=1e-5)
        assert np.abs(seen["logp"] - seen["old_logp"]).max() > 1e-3, number


def test_later_updates_are_scored_again_after_resuming_inside_a_rollout(tmp_path):
    settings = {"steps_per_generation": 3, "record_rollouts": True, "learning_rate": 1e-2}
    whole = {**settings, "max_steps": 3}
    recorded(tmp_path / "whole", **whole)
    checkpoints = {"save_strategy": "steps", "save_steps": 1}
    recorded(tmp_path / "killed", **settings, **checkpoints, max_steps=1)
    recorded(tmp_path / "killed", **whole, **checkpoints, resume=True)
    traces = [Trace.open(tmp_path / name / "trace") for name in ("whole", "killed")]
    expected, found = (trace.after_updates() for trace in traces)
    assert sorted(expected) == sorted(found) == [1, 2]
    for update, table in expected.items():
        assert table.table(*COLUMNS).equals(found[update].table(*COLUMNS))


def test_a_diverged_policy_is_recorded_too(tmp_path):
    ids = torch.tensor([[2, 3], [2, 4]])
    stats = stats_from_logits(logits=torch.randn(2, 2, 8), tokens=ids)
    stats.logp[0, 1] = torch.nan
    recorder = RolloutRecorder(trainer_like(tmp_path, stats))
    assert recorder.begin(0)
    rollout = {
        "prompt_ids": torch.tensor([[6], [6]]),
        "prompt_mask": torch.ones(2, 1),
        "completion_ids": ids,
        "completion_mask": torch.ones(2, 2),
        "advantages": torch.tensor([1.0, -1.0]),
    }
    recorder.note(rollout, [{"answer": "5"}] * 2, torch.tensor([1.0, 0.0]))
    recorder.record(rollout, update=0)
    logp = Trace.open(tmp_path / "trace").tokens("logp")["logp"]
    assert np.isnan(logp).tolist() == [False, True, False, False]


def test_a_second_run_of_a_trainer_begins_with_a_rollout_of_its_own(tmp_path):
    """The first one ends with a rollout half used."""
    settings = {"steps_per_generation": 2, "max_steps": 3, "record_rollouts": True}
    trainer, _ = recorded(tmp_path, **settings)
    first = trainer._buffered_inputs
    trainer.train()
    assert trainer._step == 3 and trainer._buffered_inputs is not first
    trace = Trace.open(tmp_path / "trace")
    assert [part["step"] for part in trace.parts] == [0, 2] and list(trace.after_updates()) == [1]
