"""A run killed at any moment ends with the weights it would have had."""

import errno
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors import SafetensorError
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from acpo import ACPOTrainer
from acpo.engines.trl import checkpoint
from acpo.engines.trl.watch import Watch
from acpo.errors import ACPOError, writing
from engines.resume_worker import killed, run
from engines.tiny import build, odd_tokens, prompts, recorded, tiny_model


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def assert_identical(a, b):
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, weights(run(folder))


@pytest.mark.parametrize(
    ("place", "left"),
    [
        ("rollout:1", []),  # before the first checkpoint
        ("rollout:4", [3]),  # while sampling again for the second rollout
        ("checkpoint:3", [3, 6]),  # while the third is being written
        ("rename:40", [3, 6]),  # while the third is being flushed
    ],
)
def test_killed_and_resumed_to_identical_weights(tmp_path, uninterrupted, place, left):
    killed(tmp_path, place)
    found = checkpoint.numbered(tmp_path)
    assert [int(path.name.split("-")[1]) for path in found] == left
    assert not any(checkpoint.problem(path) for path in found)
    assert_identical(weights(run(tmp_path, resume=True)), uninterrupted[1])


@pytest.mark.parametrize(
    ("first", "then", "tokens"),
    [
        ({"max_tokens_per_pack": 4096}, {"max_tokens_per_pack": 32}, 32),  # after a lack of memory
        ({}, {}, 1),  # as measured, so that packs are the same
        ({}, {"gradient_checkpointing": True}, None),  # measured again
    ],
)
def test_the_budget_of_packs_after_a_resumption(tmp_path, monkeypatch, first, then, tokens):
    steps = {"save_strategy": "steps", "save_steps": 1}
    trainer, _ = recorded(tmp_path, **steps, **first)
    before = trainer.packed.settings.budget
    measured = []
    monkeypatch.setattr(ACPOTrainer, "_measure_budget", lambda self: measured.append(1) or 512)
    resumed, _ = recorded(tmp_path, **steps, **then, max_steps=2, resume=True)
    expected = {None: 512, 1: before}.get(tokens, tokens)
    assert resumed.packed.settings.budget == expected
    assert bool(measured) == (tokens is None)


def test_a_truncated_checkpoint_is_recognised_and_the_one_before_used(tmp_path, uninterrupted):
    folder, expected = uninterrupted
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    last = tmp_path / "checkpoint-12"
    optimizer = last / "optimizer.pt"
    optimizer.write_bytes(optimizer.read_bytes()[:-100])
    assert "optimizer.pt" in checkpoint.problem(last)
    (tmp_path / "checkpoint-9" / "trainer_state.json").unlink()
    assert "trainer_state.json is missing" in checkpoint.problem(tmp_path / "checkpoint-9")
    assert checkpoint.problem(tmp_path / "no-such-checkpoint") == "there is no such folder"
    with pytest.raises(ACPOError, match=r"optimizer.pt.*use .*checkpoint-6"):
        checkpoint.require_whole(last)
    trainer = run(tmp_path, resume=True)
    assert trainer.state.global_step == 12
    assert_identical(weights(trainer), expected)
    assert checkpoint.problem(last) is None


def test_corruption_of_the_same_size_is_recognised(tmp_path):
    folder = tmp_path / "checkpoint-1"
    staged = tmp_path / checkpoint.STAGING / "checkpoint-1"
    staged.mkdir(parents=True)
    (staged / "weights").write_bytes(b"x" * 100)
    checkpoint.publish(staged, folder)
    assert checkpoint.problem(folder) is None
    (folder / "weights").write_bytes(b"y" * 100)
    assert "other content" in checkpoint.problem(folder)
    for damaged in ("{", "{}", "[]", '{"weights": {"bytes": 100, "crc32": 1}}'):
        (folder / checkpoint.MANIFEST).write_text(damaged)
        assert "not readable" in checkpoint.problem(folder)


def test_a_flipped_byte_in_the_middle_of_a_file_is_found(tmp_path):
    staged, folder = tmp_path / checkpoint.STAGING / "checkpoint-1", tmp_path / "checkpoint-1"
    (staged / "shards").mkdir(parents=True)
    content = bytearray(5 << 20)
    (staged / "shards" / "weights").write_bytes(content)
    (staged / "empty").touch()
    cost = checkpoint.publish(staged, folder)
    assert cost.bytes == len(content) and "GB/s" in str(cost)
    assert checkpoint.problem(folder) is None
    content[len(content) // 2] ^= 1
    (folder / "shards" / "weights").write_bytes(content)
    assert checkpoint.problem(folder) == "shards/weights has other content than was written"


def test_the_best_checkpoint_is_found_under_its_final_name(tmp_path):
    trainer, _ = recorded(
        tmp_path,
        eval_dataset=prompts(4),
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=4,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=1,
        max_steps=3,
        load_best_model_at_end=True,
        metric_for_best_model="reward",
    )
    best = Path(trainer.state.best_model_checkpoint)
    assert best.parent == tmp_path and checkpoint.problem(best) is None
    assert str(best) in (best / "trainer_state.json").read_text()


def drawn(completion_ids, **_):
    return [random.random() + np.random.rand() + float(torch.rand(())) for _ in completion_ids]


@pytest.mark.parametrize("reward", [odd_tokens, drawn])
def test_evaluation_on_the_way_changes_no_weight(tmp_path, reward):
    settings = {"rewards": reward, "max_steps": 2}
    plain, _ = recorded(tmp_path / "plain", **settings)
    options = {"eval_dataset": prompts(4), "eval_strategy": "steps", "eval_steps": 1}
    evaluated, _ = recorded(
        tmp_path / "evaluated", per_device_eval_batch_size=4, **settings, **options
    )
    assert sum("eval_reward" in row for row in evaluated.state.log_history) == 2
    assert_identical(weights(evaluated), weights(plain))


def test_a_reference_that_follows_the_policy_is_resumed(tmp_path):
    """It is no weight of the run's first model any more, and no file of transformers holds it."""
    settings = {"beta": 0.5, "sync_ref_model": True, "ref_model_sync_steps": 1}
    settings |= {"ref_model_mixup_alpha": 0.9, "save_strategy": "steps", "save_steps": 2}
    model = str(tmp_path / "model")
    tiny_model().save_pretrained(model)
    whole, _ = recorded(tmp_path / "whole", model, max_steps=4, **settings)
    recorded(tmp_path / "cut", model, max_steps=2, **settings)
    again, _ = recorded(tmp_path / "cut", model, max_steps=4, resume=True, **settings)
    assert_identical(weights(whole), weights(again))
    kept, ours = (trainer.ref_model.state_dict() for trainer in (whole, again))
    assert_identical(kept, ours)


def test_a_stream_is_resumed_in_its_first_pass_and_said_to_differ_after_it(tmp_path, caplog):
    settings = {"save_strategy": "steps", "save_steps": 1, "max_steps": 5}
    data = prompts(6).to_iterable_dataset()  # three steps
    whole, _ = recorded(tmp_path / "whole", data=data, **settings)
    for steps, told in ((2, False), (4, True)):
        folder = tmp_path / str(steps)
        shutil.copytree(tmp_path / "whole" / f"checkpoint-{steps}", folder / f"checkpoint-{steps}")
        caplog.clear()
        again, _ = recorded(folder, data=data, resume=True, **settings)
        assert ("is a stream that was read to its end" in caplog.text) == told
        same = all(torch.equal(a, weights(again)[name]) for name, a in weights(whole).items())
        assert same != told


def test_an_adapter_that_was_there_before_is_resumed_as_trained(tmp_path):
    """TRL keeps its initial copy as the reference, and that alone is what transformers loads."""

    def adapted():
        model = tiny_model()
        torch.manual_seed(1)
        return get_peft_model(model, LoraConfig(r=2, init_lora_weights=False))

    settings = {"beta": 0.1, "num_iterations": 2, "save_strategy": "steps", "save_steps": 3}
    whole, _ = recorded(tmp_path / "whole", adapted(), max_steps=5, **settings)
    recorded(tmp_path / "cut", adapted(), max_steps=3, **settings)
    again, _ = recorded(tmp_path / "cut", adapted(), max_steps=5, resume=True, **settings)
    assert again.model.active_adapters == ["default"]
    assert_identical(weights(whole), weights(again))


def test_the_best_checkpoint_of_a_folder_that_moved_stays(tmp_path):
    for step in (10, 20, 30):
        (tmp_path / f"checkpoint-{step}").mkdir()
    checkpoint.forget_old(tmp_path, 2, step=30, keep="/where/it/was/checkpoint-10")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-30"]
    state = TrainerState(best_model_checkpoint="/where/it/was/checkpoint-10", max_steps=40)
    Watch().on_train_begin(TrainingArguments(str(tmp_path), use_cpu=True), state, TrainerControl())
    assert state.best_model_checkpoint == str(tmp_path / "checkpoint-10")


def test_old_checkpoints_are_forgotten_but_the_best_stays(tmp_path):
    for step in (2, 4, 6, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
    checkpoint.forget_old(tmp_path, None, step=10, keep=None)
    checkpoint.forget_old(tmp_path, -1, step=10, keep=None)
    assert len(list(tmp_path.iterdir())) == 4
    checkpoint.forget_old(tmp_path, 2, step=10, keep=str(tmp_path / "checkpoint-2"))
    assert {p.name for p in tmp_path.iterdir()} == {"checkpoint-2", "checkpoint-10"}
    checkpoint.forget_old(tmp_path, 1, step=10, keep=None)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-10"]


def test_the_checkpoint_just_written_outlives_those_of_later_steps(tmp_path):
    for step in (3, 6, 9, 12):
        (tmp_path / f"checkpoint-{step}").mkdir()
    checkpoint.forget_old(tmp_path, 3, step=6, keep=None)
    assert {p.name for p in tmp_path.iterdir()} == {f"checkpoint-{n}" for n in (3, 6, 12)}
    checkpoint.forget_old(tmp_path, 1, step=6, keep=None)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-6"]


@pytest.mark.parametrize(
    "failure",
    [
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_disk_that_fills_up_leaves_the_checkpoint_before(tmp_path, monkeypatch, failure):
    save = checkpoint.save_trainer

    def until_full(trainer, folder):
        if trainer.state.global_step == 2:
            raise failure
        save(trainer, folder)

    monkeypatch.setattr(checkpoint, "save_trainer", until_full)
    with pytest.raises(ACPOError, match="checkpoint-2 could not be written") as caught:
        recorded(tmp_path, save_strategy="steps", save_steps=1, max_steps=2)
    for words in (f"output_dir={str(tmp_path)!r}", "GB are free on its disk", str(failure)):
        assert words in str(caught.value)
    assert "checkpoint-1, the last whole checkpoint, is kept" in str(caught.value)
    assert checkpoint.newest_whole(tmp_path) == (tmp_path / "checkpoint-1", {})


class SavesMidStep(TrainerCallback):
    """As `enable_jit_checkpoint` does on a signal."""

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == 3:
            self.trainer._save_checkpoint(self.trainer.model, trial=None)
            control.should_training_stop = True


def test_a_step_that_a_signal_cut_short_is_trained_again(tmp_path):
    """The same prompts in the same steps as an unbroken run."""
    asked = []

    def keep(prompts, completion_ids, **_):
        asked.append(sorted(set(prompts)))
        return odd_tokens(completion_ids)

    run = {"rewards": keep, "max_steps": 8, "steps_per_generation": 2, "method": "grpo"}
    build(tmp_path / "whole", **run).train()
    whole = asked.copy()
    asked.clear()
    saves = SavesMidStep()
    saves.trainer = build(tmp_path / "cut", callbacks=[saves], **run)
    saves.trainer.train()
    asked.clear()
    again = build(tmp_path / "cut", **run)
    again.train(resume_from_checkpoint=str(tmp_path / "cut" / "checkpoint-3"))
    assert asked == whole[2:] and again._step == again.state.global_step == 8


def test_other_failures_are_not_told_as_the_disk_s(tmp_path):
    with pytest.raises(RuntimeError, match="NCCL"), checkpoint.saving(tmp_path, "checkpoint-2"):
        raise RuntimeError("NCCL communicator was aborted")
    said = "there is no earlier checkpoint: make room, and start again"
    with pytest.raises(ACPOError, match=said), checkpoint.saving(tmp_path, "checkpoint-1"):
        raise OSError(errno.ENOSPC, "No space left on device")
    told = pytest.raises(ACPOError, match=said)
    with told, checkpoint.saving(tmp_path, "checkpoint-1"), writing("acpo_run.json"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(ACPOError, match=r"^of ours$"), checkpoint.saving(tmp_path, "checkpoint-1"):
        raise ACPOError("of ours")


def test_resuming_needs_the_same_number_of_processes(tmp_path):
    with pytest.raises(ACPOError, match="number of processes"):
        checkpoint.load_state(str(tmp_path), rank=1)
