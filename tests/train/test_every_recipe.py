"""Every recipe builds, and takes one real step with a tiny model in place of its own."""

from pathlib import Path

import pytest
import torch

from acpo.train.launch import prepare, train
from acpo.train.recipe import read_recipe
from train.standin import flags, save_standin, write_problems

RECIPES = Path(__file__).parents[2] / "recipes"
GPU_RECIPES = sorted([*(RECIPES / "paper").glob("*.yaml"), *RECIPES.glob("*-gsm8k.yaml")])


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Options that shrink a recipe to this machine; everything else stays as it is."""
    folder = tmp_path_factory.mktemp("small")
    return {
        "model_name_or_path": save_standin(folder / "model"),
        "data": write_problems(folder / "problems.jsonl", 40),
        "held_out": 0,
        "use_cpu": True,
        "bf16": False,
        "use_vllm": False,
        "generation_batch_size": 32,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "max_completion_length": 12,
        "max_steps": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "learning_rate": 1e-3,
    }


@pytest.mark.parametrize("path", GPU_RECIPES, ids=lambda path: path.stem)
def test_one_step(path, small, tmp_path):
    options = {**small, "output_dir": tmp_path / "run", "reward_funcs": "train.standin.lottery"}
    run = prepare(read_recipe(path, flags(**options)))
    before = {name: p.detach().clone() for name, p in run.trainer.model.named_parameters()}
    run.trainer.train()
    assert run.trainer.state.global_step == 1
    moved = [n for n, p in run.trainer.model.named_parameters() if not torch.equal(p, before[n])]
    assert moved
    assert all(p.isfinite().all() for p in run.trainer.model.parameters())


def test_a_recipe_with_its_own_reward_and_files(small, tmp_path):
    out = tmp_path / "run"
    held = write_problems(tmp_path / "held.jsonl", 6, answer="4")
    report = train(
        RECIPES / "qwen2.5-0.5b-gsm8k.yaml",
        flags(**{**small, "output_dir": out, "held_out": 6, "held_out_data": held}),
    )
    assert report.problems == 6
    assert report.updates == 1
    assert {"curves.png", "report.json", "model.safetensors"} <= {p.name for p in out.iterdir()}
