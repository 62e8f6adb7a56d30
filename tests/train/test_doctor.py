import json
from pathlib import Path

import pytest
import torch
from transformers import TrainingArguments
from typer.testing import CliRunner

from acpo.cli import app
from acpo.train.launch import train
from train.standin import ascii_tokenizer, flags, save_standin, write_problems

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def examine(tmp_path):
    """Run `acpo doctor` on a recipe with a tiny model; its exit code and output."""
    model = save_standin(tmp_path / "model")

    def run(path=RECIPES / "paper" / "qwen3-8b-base.yaml", arguments=(), **options):
        options = {
            "model_name_or_path": model,
            "data": write_problems(tmp_path / "problems.jsonl", 200),
            "output_dir": tmp_path / "run",
            "max_completion_length": 64,
            **options,
        }
        result = CliRunner().invoke(app, ["doctor", str(path), *arguments, *flags(**options)])
        return result.exit_code, result.output

    return run


def test_a_sound_recipe(examine):
    code, output = examine(arguments=["--processes", "8"])
    assert code == 0, output
    for expected in (
        "200 rows, left out: 0 without an answer",
        "200 of 200 gold answers earn a reward",
        "an empty completion earns none",
        "a rollout is 128 problems x 8 completions = 1024",
        "8 updates per rollout, 128 completions each",
        "the last update of a rollout is 7 step(s) away",
        "takes 8 updates",
        "ready to train",
    ):
        assert expected in output


def test_the_quickstart_as_it_is(tmp_path):
    folder = tmp_path / "runs" / "quickstart"
    arguments = ["doctor", str(RECIPES / "quickstart.yaml"), "--output_dir", str(folder)]
    result = CliRunner().invoke(app, arguments)
    assert not folder.parent.exists(), "it says what training will do, and does nothing of it"
    assert result.exit_code == 0, result.output
    assert "200 of 200 gold answers earn a reward" in result.output
    assert (
        "1000 held-out problems is measured before and after, and every 10 updates."
        in result.output
    )


def test_the_prompt_is_shown_as_the_run_will_lay_it_out(examine, tmp_path):
    tokenizer = ascii_tokenizer()
    tokenizer.chat_template += "{% if thinks is false %}<no thoughts>{% endif %}"
    tokenizer.save_pretrained(tmp_path / "model")
    _, output = examine(chat="true", chat_template_kwargs='{"thinks": false}')
    assert "<assistant><no thoughts>" in output.replace("\n", "")


def test_too_few_problems(examine):
    code, output = examine(max_problems=100, generation_batch_size=1024)
    assert code == 2
    assert "100 prompts, but one rollout takes 128" in " ".join(output.split())


def test_a_machine_of_several_gpus_is_planned_for_with_a_number_of_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda arguments: 2))
    arguments = ["doctor", str(RECIPES / "quickstart.yaml"), *flags(output_dir=tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and "with --processes N" in " ".join(result.output.split())
    for processes in ("1", "2"):
        result = CliRunner().invoke(app, [*arguments, "--processes", processes])
        assert result.exit_code == 0, result.output


def test_too_few_problems_for_so_many_processes(tmp_path):
    options = flags(output_dir=tmp_path, max_problems=100)
    arguments = ["doctor", str(RECIPES / "quickstart.yaml"), "--processes", "2", *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert "100 prompts, but one rollout takes 128" in " ".join(result.output.split())


def test_gold_answers_that_earn_nothing(examine, tmp_path):
    code, output = examine(reward_funcs="train.standin.never")
    assert code == 1
    assert "0 of 200 gold answers earn a reward" in output
    assert "200 gold answers earn none, such as '3'" in output


def test_gold_answers_that_cannot_be_judged(examine, tmp_path):
    file = tmp_path / "unreadable.jsonl"
    golds = ["3"] * 199 + ["a)} nonsense {"]
    rows = [{"problem": f"{i}?", "answer": gold} for i, gold in enumerate(golds)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, output = examine(data=file)
    assert code == 0
    assert "199 of 200 gold answers earn a reward" in output
    assert "1 gold answers cannot be judged, such as 'a)} nonsense {'" in output


def test_a_reward_for_nothing(examine):
    code, output = examine(reward_funcs="train.standin.lottery")
    assert code == 1
    assert "an empty completion earns a reward" in output


def test_a_reward_that_raises(examine):
    code, output = examine(reward_funcs="train.standin.broken")
    assert code == 1
    assert "'broken' raised KeyError" in output


def test_a_second_reward_that_raises(examine):
    both = ["--reward_funcs", "train.standin.thrifty", "train.standin.broken"]
    code, output = examine(arguments=both)
    assert code == 1
    assert "'broken' raised KeyError" in output


def test_a_recipe_for_a_gpu_where_there_is_none(examine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, output = examine()
    assert code == 0
    assert "no GPU here" in output and output.endswith("ready to train where there is a GPU\n")
    code, output = examine(use_cpu=True, use_vllm=False)
    assert code == 0
    assert "no GPU here" not in output and output.endswith("ready to train\n")


@pytest.mark.parametrize(("steps", "rollouts"), [(1, 5), (2, 3)])
def test_parts_of_a_pass_are_counted_as_training_counts_them(tmp_path, steps, rollouts):
    options = flags(
        **{"output_dir": tmp_path, "max_problems": 26, "max_steps": -1, "num_train_epochs": 0.75},
        **{"num_generations": 4, "per_device_train_batch_size": 16, "held_out": 0},
        **{"steps_per_generation": steps, "report": False},
    )
    result = CliRunner().invoke(app, ["doctor", str(RECIPES / "quickstart.yaml"), *options])
    assert result.exit_code == 0, result.output
    assert f"It samples {rollouts} rollouts" in result.output
    assert "takes 5 updates" in result.output
    assert train(RECIPES / "quickstart.yaml", options).updates == 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"save_strategy": "epoch"}, "a checkpoint after every pass over the problems and at the"),
        ({"save_strategy": "steps", "save_steps": 0.3}, "checkpoints every 3 updates and at the"),
        ({"save_strategy": "steps", "save_steps": 4}, "checkpoints every 4 updates and at the end"),
        ({"save_strategy": "best", "metric_for_best_model": "eval_reward"}, "whenever eval_reward"),
        ({"eval_strategy": "steps", "eval_steps": 0.25}, "before and after, and every 3 updates."),
        ({"eval_strategy": "epoch"}, "before and after, and after every pass over the problems."),
        ({"eval_strategy": "no"}, "8 held-out problems is measured before and after."),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_when_it_saves_and_measures(tmp_path, options, said):
    options = {"max_steps": 10, "held_out": 8, "num_generations_eval": 1, **options}
    options |= {"output_dir": tmp_path, "max_problems": 100}
    arguments = ["doctor", str(RECIPES / "quickstart.yaml"), *flags(**options)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert said in result.output


@pytest.mark.parametrize("sampler", ["generate", "static"])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_the_static_sampler_is_recommended_to_who_has_another_and_a_gpu(examine, sampler, on_cpu):
    cpu = {"use_cpu": "true", "bf16": "false"} if on_cpu else {}
    code, output = examine(use_vllm="false", sampler=sampler, **cpu)
    assert code == 0, output
    assert ("sampler=static beat vLLM" in output) == (sampler == "generate" and not on_cpu)
