import json
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, TrainerState
from typer.testing import CliRunner

from acpo import ACPOTrainer
from acpo.cli import app
from acpo.errors import ACPOError
from acpo.train.accuracy import BeforeAndAfter
from acpo.train.doctor import examine
from acpo.train.launch import TrainingClock, _hub_data, train
from train.standin import flags, save_standin
from train.test_data import ENDLESS

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    """The quickstart, shorter and bolder."""
    folder = tmp_path_factory.mktemp("run")
    options = flags(output_dir=folder, max_steps=12, learning_rate=1e-3, held_out=400)
    options += flags(max_problems=1000)
    result = CliRunner().invoke(app, ["train", str(QUICKSTART), *options])
    assert result.exit_code == 0, result.output
    return folder, result.output


def test_it_learns(short_run):
    report = json.loads((short_run[0] / "report.json").read_text())
    assert (report["updates"], report["problems"], report["method"]) == (12, 400, "acpo")
    assert 0.35 < report["before"]["value"] < 0.6
    assert report["after"]["value"] - report["before"]["value"] > 0.15
    assert report["train_seconds"] > 0


def test_it_says_so(short_run):
    folder, output = short_run
    report = json.loads((folder / "report.json").read_text())
    assert f"before  {report['before']['value']:.1%}" in output
    assert f"after   {report['after']['value']:.1%}" in output
    assert "update 1/12  accuracy " in output
    assert "update layout: padded (no variable-length attention on cpu)" in output
    assert "a held-out problem: " in output
    assert "wrong from step " in output
    assert output.index("try next:") < output.index("acpo train recipes/quickstart.yaml --method")


def test_the_clock_stands_still_during_evaluation(monkeypatch):
    clock = TrainingClock()
    for at, event in [(1, "epoch_begin"), (4, "step_end"), (9, "evaluate"), (11, "step_end")]:
        monkeypatch.setattr(time, "perf_counter", lambda at=at: float(at))
        monkeypatch.setattr(time, "process_time", lambda at=at: 2.0 * at)
        getattr(clock, f"on_{event}")(None, TrainerState(global_step=2), None)
    assert clock.first == 2
    assert (clock.seconds, clock.cpu_seconds) == (5.0, 10.0)


def test_it_leaves_a_model_and_a_picture(short_run):
    folder, _ = short_run
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "log_history" in (folder / "trainer_state.json").read_text()
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() == 99_776


def shortest(folder, **more):
    options = {"max_steps": 1, "held_out": 8, "max_problems": 100, "eval_strategy": "no", **more}
    return flags(output_dir=folder, per_device_eval_batch_size=8, **options)


def test_the_model_is_saved_before_what_may_fail(tmp_path, monkeypatch):
    def fails(probe):
        raise RuntimeError("the reward function of the last evaluation")

    monkeypatch.setattr(BeforeAndAfter, "finish", fails)
    with pytest.raises(RuntimeError, match="the last evaluation"):
        train(QUICKSTART, shortest(tmp_path))
    assert (tmp_path / "model.safetensors").is_file()
    assert not (tmp_path / "trainer_state.json").exists(), "it is not finished"


def test_an_upload_that_fails_leaves_model_and_report_and_is_made_again(tmp_path, monkeypatch):
    pushed = []

    def push(trainer, **options):
        pushed.append(options)
        if len(pushed) == 1:
            raise OSError("no hub")

    monkeypatch.setattr(ACPOTrainer, "init_hf_repo", lambda trainer, *args: None)
    monkeypatch.setattr(ACPOTrainer, "push_to_hub", push)
    options = [*shortest(tmp_path), *flags(push_to_hub=True, save_strategy="steps", save_steps=1)]
    monkeypatch.setattr(ACPOTrainer, "_push_from_checkpoint", lambda trainer, folder: None)
    with pytest.raises(OSError, match="no hub"):
        train(QUICKSTART, options)
    assert (tmp_path / "model.safetensors").is_file() and (tmp_path / "report.json").is_file()
    train(QUICKSTART, [*options, *flags(resume_from_checkpoint="true")])
    assert pushed == [{"dataset_name": None}] * 2
    assert (tmp_path / "trainer_state.json").is_file()


def test_the_data_set_a_model_card_names_is_of_the_hub():
    task = SimpleNamespace(problems="openai/gsm8k")
    for data, source, named in (
        (None, task, "openai/gsm8k"),
        ("me/own", task, "me/own"),
        ("/home/me/secret.jsonl", task, None),
        (None, SimpleNamespace(problems=None), None),
    ):
        recipe = SimpleNamespace(task=SimpleNamespace(data=data))
        assert _hub_data(SimpleNamespace(recipe=recipe, data=SimpleNamespace(task=source))) == named


@pytest.mark.parametrize("sampler", ["generate", "static"])
def test_training_is_the_same_whatever_is_held_out(tmp_path, sampler):
    models = []
    for held_out in (8, 16):
        folder = tmp_path / str(held_out)
        options = flags(output_dir=folder, max_steps=2, held_out=held_out, max_problems=500)
        options += flags(sampler=sampler, per_device_train_batch_size=16, eval_strategy="no")
        train(QUICKSTART, [*options, *flags(per_device_eval_batch_size=8, learning_rate=1e-2)])
        models.append(load_file(folder / "model.safetensors"))
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_a_resumed_run_reports_the_accuracy_it_started_from(tmp_path):
    options = {
        "output_dir": tmp_path,
        "held_out": 50,
        "max_problems": 100,
        "per_device_train_batch_size": 16,
        "steps_per_generation": 1,
        "save_strategy": "steps",
        "save_steps": 1,
    }
    first = train(QUICKSTART, flags(**options, max_steps=1))
    resumed = flags(**options, max_steps=2, resume_from_checkpoint="true")
    assert examine(QUICKSTART, resumed)
    second = train(QUICKSTART, resumed)
    assert (first.updates, second.updates) == (1, 2)
    assert (first.timed_updates, second.timed_updates) == (1, 1)
    assert second.before == first.before
    assert second.problems == 50
    left = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert train(QUICKSTART, resumed) == second
    assert {path: path.read_bytes() for path in left} == left
    other = flags(**{**options, "held_out": 60}, max_steps=3, resume_from_checkpoint="true")
    result = CliRunner().invoke(app, ["train", str(QUICKSTART), *other])
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["before"], report["problems"]) == (None, 60)
    assert "accuracy on 60 held-out problems" in result.output
    assert "  before  " not in result.output and f"{report['after']['value']:.1%}" in result.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("saves", ["steps", "no"])
def test_a_run_that_is_stopped_says_what_is_kept(tmp_path, monkeypatch, number, saves):
    def interrupted(clock, args, state, control, **kwargs):
        if state.global_step == 2:
            signal.raise_signal(number)

    monkeypatch.setattr(TrainingClock, "on_step_end", interrupted)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    options = shortest(tmp_path, max_steps=3, save_strategy=saves, save_steps=1)
    result = CliRunner().invoke(app, ["train", str(QUICKSTART), *options])
    assert result.exit_code == 128 + number
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith("stopped at update 2 of 3; ")
    kept = "checkpoint-1 is kept: the same command with --resume_from_checkpoint true goes on"
    assert (kept if saves == "steps" else "the same command starts anew") in line
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


def test_a_finished_run_is_left_as_it_is_and_an_older_model_is_not(tmp_path):
    options = {"output_dir": tmp_path, "held_out": 0, "max_problems": 100, "report": False}
    options |= {"per_device_train_batch_size": 16, "steps_per_generation": 1}
    options |= {"save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant"}

    def run(steps):
        return train(QUICKSTART, flags(**options, max_steps=steps, resume_from_checkpoint="true"))

    first = run(1)
    model, state = tmp_path / "model.safetensors", tmp_path / "trainer_state.json"
    written = [path.stat().st_mtime_ns for path in (model, state)]
    assert run(1).updates == first.updates == 1
    assert [path.stat().st_mtime_ns for path in (model, state)] == written
    older = state.read_text()
    run(2)
    state.write_text(older)  # as if killed before the model was saved
    model.unlink()
    run(2)
    assert model.is_file()


def test_a_run_on_an_endless_task_may_be_made_longer(tmp_path):
    """It goes on with problems it has not seen, to the weights of a run that was long at once."""
    file = tmp_path / "own.py"
    file.write_text(ENDLESS)
    recipe = tmp_path / "recipe.yaml"
    options = {"model_name_or_path": save_standin(tmp_path / "model"), "task": f"{file}:words"}
    options |= {"use_cpu": True, "bf16": False, "report_to": "none", "learning_rate": 1e-3}
    options |= {"num_generations": 4, "per_device_train_batch_size": 16, "save_strategy": "steps"}
    options |= {"max_completion_length": 8, "save_steps": 1, "lr_scheduler_type": "constant"}
    recipe.write_text(json.dumps(options))

    def seen(folder, steps, *more):
        train(recipe, [*flags(output_dir=tmp_path / folder, max_steps=steps), *more])
        log = Path(f"{file}.log")
        asked = log.read_text().split()
        log.unlink()
        return list(dict.fromkeys(asked))

    whole = seen("whole", 3)
    first = seen("cut", 2)
    rest = seen("cut", 3, "--resume_from_checkpoint", "true")
    assert (len(first), len(rest)) == (8, 4) and first + rest == whole
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    with pytest.raises(ACPOError, match=r"train_dataset: .endless: .*seed 42.* there"):
        seen("cut", 4, *flags(resume_from_checkpoint="true", max_prompt_tokens=25))


def test_held_out_groups_must_not_be_split(tmp_path):
    with pytest.raises(ACPOError, match="per_device_eval_batch_size=500"):
        train(
            QUICKSTART,
            flags(
                output_dir=tmp_path, num_generations_eval=3, eval_strategy="no", max_problems=100
            ),
        )
