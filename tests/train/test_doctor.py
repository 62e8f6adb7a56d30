import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from acpo.cli import app
from train.standin import ascii_tokenizer, flags, save_standin, write_problems

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def examine(tmp_path):
    """Run `acpo doctor` on a recipe with a tiny model; its exit code and output."""
    model = save_standin(tmp_path / "model")

    def run(path=RECIPES / "paper" / "qwen3-8b-base-acpo.yaml", arguments=(), **options):
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
    arguments = ["doctor", str(RECIPES / "quickstart.yaml"), "--output_dir", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
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
    assert code == 1
    assert "100 problems are fewer than the 128 of one rollout" in output


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


def test_a_sampler_is_recommended_from_measured_numbers_alone():
    from acpo.train.plan import MeasuredRollout, sampler_advice

    table = (
        MeasuredRollout(100_000_000, static=900.0, vllm=300.0, gpu="a GPU"),
        MeasuredRollout(1_000_000_000, static=200.0, vllm=400.0, gpu="a GPU"),
    )
    assert sampler_advice(120_000_000, measured=()) is None
    assert "sampler=static is the faster" in sampler_advice(120_000_000, measured=table)
    assert "400 with use_vllm: use_vllm=true" in sampler_advice(600_000_000, measured=table)
    assert sampler_advice(8_000_000_000, measured=table) is None, "nothing near it was measured"
