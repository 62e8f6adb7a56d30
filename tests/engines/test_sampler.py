"""`sampler="static"` in the trainer: on-policy samples, shared randomness, and what is refused."""

import gc

import pytest
import torch
from trl import GRPOTrainer

from acpo.errors import ACPOError
from engines.tiny import build, prompts, recorded, tiny_model


def test_rollouts_are_the_policys_own_and_repeat(tmp_path):
    seen = []

    def keep(completion_ids, **_):
        seen.append([tuple(ids) for ids in completion_ids])
        return [float(sum(ids) % 3 == 0) for ids in completion_ids]

    settings = {"rewards": keep, "sampler": "static", "steps_per_generation": 2, "max_steps": 3}
    trainer, first = recorded(tmp_path, **settings)
    assert trainer.state.log_history[0]["ratio_max"] == pytest.approx(1.0, abs=1e-4)
    recorded(tmp_path, method="sapo", **settings)
    assert seen[0] == seen[2], "another method, the same first rollout"
    assert seen[0] != seen[1], "the next rollout has numbers of its own"
    recorded(tmp_path, **{**settings, "seed": 4})
    assert seen[4] != seen[0]
    _, repeated = recorded(tmp_path, **settings)
    assert all(torch.equal(a, b) for a, b in zip(first, repeated, strict=True))


def test_what_would_be_ignored_is_refused(tmp_path):
    for wrong in ({"top_p": 0.9}, {"top_k": 5}, {"repetition_penalty": 1.1}):
        with pytest.raises(ACPOError, match=f"{next(iter(wrong))}=.*biases every ratio"):
            recorded(tmp_path, sampler="static", **wrong)
    for wrong in (
        {"generation_kwargs": {"stop_strings": "w7"}},
        {"use_transformers_continuous_batching": True},
        {"cast_lm_head_to_fp32": True},
        {"cache_implementation": "static"},
    ):
        with pytest.raises(ACPOError, match=f"{next(iter(wrong))}=.*sampler='static'"):
            recorded(tmp_path, sampler="static", **wrong)
    with pytest.raises(ACPOError, match="sampler='fast' is unknown"):
        recorded(tmp_path, sampler="fast")
    with pytest.raises(ACPOError, match="sampler_rows=4"):
        recorded(tmp_path, sampler_rows=4)


def test_attention_it_cannot_hold_is_refused_at_construction(tmp_path):
    model = tiny_model()
    model.config.layer_types = ["sliding_attention"] * 2
    with pytest.raises(ACPOError, match=r"has layers of type sliding_attention; .*'generate'"):
        build(tmp_path, model, sampler="static")


def test_generation_options_set_later_are_refused(tmp_path):
    trainer = build(tmp_path, sampler="static")
    trainer.generation_config.max_new_tokens = 3
    with pytest.raises(ACPOError, match=r"generation_config\.max_new_tokens=3 .*'generate'"):
        trainer.train()


@pytest.mark.parametrize(
    ("name", "value"),
    [("min_p", 0.9), ("no_repeat_ngram_size", 1), ("sequence_bias", [[[5], 9.0]])],
)
def test_a_checkpoints_own_options_do_not_change_the_draws(tmp_path, name, value):
    model = tiny_model()
    setattr(model.generation_config, name, value)
    with pytest.raises(ACPOError, match=f"generation_config sets {name}=.*{name} = None"):
        build(tmp_path, model)
    build(tmp_path, model, sampler="static")  # which does not read them
    model.generation_config.update(**{name: None, "top_p": 0.5, "num_beams": 1})
    build(tmp_path, model)  # TRL replaces the one; the other is plain


def test_evaluations_do_not_move_the_training_draws(tmp_path):
    """A resumed run evaluates less often than the one it continues, and must draw the same."""
    seen = []

    def keep(completion_ids, trainer_state, **_):
        seen.append((trainer_state.global_step, [tuple(ids) for ids in completion_ids]))
        return [float(sum(ids) % 3 == 0) for ids in completion_ids]

    settings = {"rewards": keep, "sampler": "static", "max_steps": 2}
    recorded(tmp_path, **settings)
    plain, seen = [s for s in seen], []
    evaluation = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
    recorded(tmp_path, eval_dataset=prompts(2), **evaluation, **settings)
    assert [rollout for rollout in seen if rollout in plain] == plain


@pytest.mark.parametrize("was", [True, False])
def test_the_collector_rests_while_others_sample(tmp_path, monkeypatch, was):
    seen = []

    def broken(*args):
        seen.append(gc.isenabled())
        raise MemoryError

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", broken)
    trainer = build(tmp_path)
    (gc.enable if was else gc.disable)()
    try:
        with pytest.raises(MemoryError):
            trainer._generate_single_turn([[2]])
        assert (seen, gc.isenabled()) == ([False], was)
    finally:
        gc.enable()
