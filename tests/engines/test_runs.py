"""A folder holds one run: another is refused, a finished one is left alone."""

import functools
import io
import json

import PIL.Image
import pytest
import torch
from accelerate.state import AcceleratorState
from datasets import Dataset, Features, Image, Json, List, Value
from peft import LoraConfig
from safetensors.torch import load_file

from acpo.engines.trl import checkpoint
from acpo.engines.trl.identity import RUN, described_data
from acpo.errors import ACPOError
from acpo.tasks.grading import reward_function
from acpo.tasks.task import Task
from engines import tiny
from engines.tiny import tiny_model


def build(folder, **more):
    settings = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
    return tiny.build(folder, **{**settings, **more})


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with two finished steps."""
    folder = tmp_path_factory.mktemp("trained")
    build(folder).train()
    return folder


def test_a_second_run_in_the_folder_is_refused_and_nothing_is_deleted(trained):
    before = contents(trained)
    with pytest.raises(ACPOError, match=r"(?s)another run.*method: .acpo. there, .grpo. here"):
        build(trained, method="grpo").train()
    with pytest.raises(ACPOError, match=r"a run with these options.*resume_from_checkpoint=True"):
        build(trained).train()
    assert contents(trained) == before


def rewritten(completion_ids, **_):
    """Like the tiny trainer's own reward in nothing but its name."""
    return [-float(len(ids)) for ids in completion_ids]


rewritten.__name__ = tiny.odd_tokens.__name__


OTHERS = {
    "method": ({"method": "sapo"}, r"method: \"acpo\" there, \"sapo\" here"),
    "option": ({"tau_neg": 1.5}, "method_options"),
    "seed": ({"seed": 4}, "seed: 3 there, 4 here"),
    "learning rate": ({"learning_rate": 1e-4}, "learning_rate: 0.001 there, 0.0001 here"),
    "batch": ({"per_device_train_batch_size": 16}, "completions_per_update: 8 there, 16 here"),
    "group": ({"num_generations": 8}, "num_generations: 4 there, 8 here"),
    "model": ({"model": tiny_model(seed=1)}, "model: "),
    "dtype": ({"model": tiny_model(dtype=torch.bfloat16)}, r"dtype: \[.torch.float32.\] there"),
    "dropout": ({"disable_dropout": True}, "disable_dropout: false there, true here"),
    "precision": ({"bf16": True}, r"mixed_precision: \"no\" there, \"bf16\" here"),
    "reward": ({"rewards": rewritten}, "reward_funcs: .*odd_tokens, checksum"),
    "data": (
        {"data": Dataset.from_dict({"prompt": [f"w{i} w3" for i in range(16)]})},
        "train_dataset: .16 rows",
    ),
}


@pytest.mark.parametrize(("changed", "words"), OTHERS.values(), ids=OTHERS)
def test_resuming_another_run_is_refused_with_the_difference(trained, changed, words):
    before = contents(trained)
    with pytest.raises(ACPOError, match=f"(?s)of another run:.*{words}.*as they were"):
        build(trained, max_steps=3, **changed).train(resume_from_checkpoint=True)
    assert contents(trained) == before


@pytest.fixture
def launched_in(monkeypatch):
    """Sets what `accelerate launch --mixed_precision` does."""

    def launch(precision):
        AcceleratorState._reset_state(reset_partial_state=True)
        if precision is None:
            monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
        else:
            monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", precision)

    yield launch
    launch(None)


def test_the_precision_a_launcher_chose_is_of_the_run(tmp_path, launched_in):
    launched_in("bf16")
    build(tmp_path, max_steps=1).train()
    assert json.loads((tmp_path / RUN).read_text())["mixed_precision"] == "bf16"
    launched_in(None)
    with pytest.raises(ACPOError, match=r"mixed_precision: .bf16. there, .no. here"):
        build(tmp_path).train(resume_from_checkpoint=True)
    build(tmp_path, bf16=True).train(resume_from_checkpoint=True)  # the same, asked for otherwise


def test_an_adapter_of_other_options_is_refused_one_line_each(tmp_path):
    def lora(**options):
        return LoraConfig(
            task_type="CAUSAL_LM", **{"r": 4, "target_modules": ["q_proj", "v_proj"], **options}
        )

    build(tmp_path, max_steps=1, peft_config=lora()).train()
    others = {
        "lora_alpha: 8 there, 800 here": {"lora_alpha": 800},
        "lora_dropout: null there, 0.9 here": {"lora_dropout": 0.9},
        "r: 4 there, 8 here": {"r": 8},
        "use_rslora: null there, true here": {"use_rslora": True},
        "target_modules: ": {"target_modules": ["q_proj", "k_proj"]},
    }
    for words, options in others.items():
        with pytest.raises(ACPOError, match=f"(?s)another run:.*\n  peft.default.{words}"):
            build(tmp_path, peft_config=lora(**options)).train(resume_from_checkpoint=True)
    trainer = build(tmp_path, peft_config=lora(target_modules=["v_proj", "q_proj"]))
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 2


class Judge:
    def __call__(self, completion_ids, **_):
        return [0.0 for _ in completion_ids]

    def method(self, completion_ids, **_):
        return [1.0 for _ in completion_ids]


def graded(grader):
    return reward_function(Task(grader=grader, in_process=True, name="own"))


def test_the_code_of_whatever_gives_rewards_is_told_without_addresses(tmp_path):
    def said(reward):
        return build(tmp_path, rewards=reward).identity["reward_funcs"][0]

    assert said(Judge()) == said(Judge()) != "Judge"
    assert said(Judge().method).startswith("method, checksum ")
    assert said(functools.partial(rewritten)).startswith("odd_tokens, checksum ")
    right, wrong = (
        lambda text, row: True,
        lambda text, row: False,
    )
    assert said(graded(right)) != said(graded(wrong))
    unwritten = {}
    exec("def reward(completion_ids, **_): return [0.0] * len(completion_ids)", unwritten)
    assert said(unwritten["reward"]) == "reward"


def test_what_does_not_decide_the_weights_may_change(tmp_path, trained):
    trainer = build(tmp_path, max_steps=1)
    trainer.train()
    trainer = build(
        tmp_path,
        model=tiny_model(dtype=torch.float32),
        max_steps=2,
        save_steps=2,
        save_total_limit=3,
        logging_steps=2,
        run_name="another",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_tokens_per_pack=64,
    )
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 2
    whole = torch.load(trained / "checkpoint-2" / "optimizer.pt", weights_only=True)
    again = torch.load(tmp_path / "checkpoint-2" / "optimizer.pt", weights_only=True)
    for place, state in whole["state"].items():
        torch.testing.assert_close(again["state"][place]["exp_avg"], state["exp_avg"])


def test_weights_alone_are_told_as_such(tmp_path):
    build(tmp_path, save_only_model=True).train()
    for asked in (True, str(tmp_path / "checkpoint-2")):
        with pytest.raises(ACPOError, match=r"holds weights alone \(save_only_model=True\)"):
            build(tmp_path, max_steps=3).train(resume_from_checkpoint=asked)


def test_a_checkpoint_may_be_continued_elsewhere(tmp_path, trained):
    trainer = build(tmp_path, max_steps=3)
    trainer.train(resume_from_checkpoint=str(trained / "checkpoint-2"))
    assert [p.name for p in checkpoint.numbered(tmp_path)] == ["checkpoint-3"]


def test_a_finished_run_says_so_and_keeps_its_weights(trained, caplog):
    before = contents(trained)
    for _ in range(2):
        trainer = build(trained, model=tiny_model())
        trainer.train(resume_from_checkpoint=True)
        assert trainer.watch.finished and trainer.state.global_step == 2
        assert "finished: the checkpoint is at step 2 of 2" in caplog.text
    assert contents(trained) == before
    for name, value in load_file(trained / "checkpoint-2" / "model.safetensors").items():
        assert torch.equal(trainer.model.state_dict()[name], value), name


def test_a_run_of_epochs_is_finished_too(tmp_path):
    epochs = {"max_steps": -1, "num_train_epochs": 1, "save_steps": 8}
    build(tmp_path, **epochs).train()
    before = contents(tmp_path)
    trainer = build(tmp_path, **epochs)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.watch.finished and trainer.state.global_step == 8
    assert contents(tmp_path) == before


def test_a_trained_model_is_not_overwritten_by_another_run(tmp_path):
    trainer = build(tmp_path, save_strategy="no", max_steps=1)
    trainer.train()
    trainer.save_model()
    build(tmp_path, save_strategy="no", max_steps=1).train()
    with pytest.raises(ACPOError, match=r"(?s)a trained model of another run.*seed: 3 there"):
        build(tmp_path, save_strategy="no", seed=9).train()


def test_a_trained_model_is_not_overwritten_by_a_run_of_another_length(tmp_path):
    trainer = build(tmp_path, save_strategy="no", max_steps=1)
    trainer.train()
    trainer.save_model()
    before = contents(tmp_path)
    for resume in (None, True):  # there is no checkpoint to go on from
        with pytest.raises(ACPOError, match=r"(?s)a trained model of .*max_steps: 1 there, 2 here"):
            build(tmp_path, save_strategy="no", max_steps=2).train(resume_from_checkpoint=resume)
    epochs = {"max_steps": -1, "num_train_epochs": 1}
    with pytest.raises(ACPOError, match=r"num_train_epochs: null there, 1"):
        build(tmp_path, save_strategy="no", **epochs).train()
    assert contents(tmp_path) == before
    run = json.loads((tmp_path / RUN).read_text())
    del run["max_steps"], run["num_train_epochs"]  # as runs were written down before
    (tmp_path / RUN).write_text(json.dumps(run))
    build(tmp_path, save_strategy="no", max_steps=2).train()


def test_a_resumed_run_may_replace_its_shorter_self(tmp_path):
    trainer = build(tmp_path, max_steps=1)
    trainer.train()
    trainer.save_model()
    trainer = build(tmp_path, max_steps=2)
    trainer.train(resume_from_checkpoint=True)
    trainer.save_model()
    assert json.loads((tmp_path / RUN).read_text())["max_steps"] == 2


def test_a_run_that_left_nothing_does_not_keep_the_folder(tmp_path):
    build(tmp_path, save_strategy="no", max_steps=1).train()
    build(tmp_path, save_strategy="no", max_steps=1, seed=9).train()
    assert json.loads((tmp_path / RUN).read_text())["seed"] == 9


def test_foreign_checkpoints_are_not_mixed_with_the_runs_own(tmp_path):
    (tmp_path / "checkpoint-900").mkdir()
    for resume in (None, True):
        with pytest.raises(ACPOError, match="checkpoint-900 of another run"):
            build(tmp_path).train(resume_from_checkpoint=resume)


def test_data_is_told_by_what_it_says_and_pictures_beside_it_by_being_there():
    """They are made anew, somewhere in memory, whenever a row is read."""
    file = io.BytesIO()
    PIL.Image.new("RGB", (1, 1)).save(file, "png")
    picture = {"bytes": file.getvalue(), "path": None}
    features = Features(prompt=Value("string"), turns=List(Json()), seen=List(Image()))
    told = set()
    for prompt, content in (("a", "x"), ("b", "x"), ("a", ["x"])):
        rows = {"prompt": [prompt], "turns": [[{"content": content}]], "seen": [[picture]]}
        data = Dataset.from_dict(rows, features=features)
        assert described_data(data) == described_data(data)
        told.add(described_data(data))
    assert len(told) == 3
