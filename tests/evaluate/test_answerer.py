"""Who answered belongs to a run; a question that always fails does not end it."""

import json

import pytest
import torch

from acpo.checkpoints import load_model
from acpo.errors import ACPOError
from acpo.records import Trace
from acpo.train.doctor import examine
from acpo.train.launch import prepare, train
from acpo.train.recipe import read_recipe
from evaluate.runs import acpo, add, lines, sums
from evaluate.server import serving
from train.standin import flags, save_standin, write_problems

ONE_WORKER = ("--workers", 1)


def evaluate(server, folder, *more, k=1, count=6):
    data = sums(folder / "sums.jsonl", count)
    run = ("eval", "tiny", "--base-url", server.url, "--benchmarks", data, *ONE_WORKER, "--k", k)
    done = acpo(*run, "--output", folder / "run", *more)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_a_new_server_under_an_old_output_is_refused(tmp_path):
    with serving(add) as server:
        assert evaluate(server, tmp_path)[0] == 0
    with serving(lambda prompt, seed: "wrong") as other:
        status, said = evaluate(other, tmp_path)
    assert status == 2 and "base_url" in said and "use another --output" in said
    settings = lines(tmp_path / "run" / "sums.jsonl")[0]["settings"]
    assert settings["base_url"] == server.url and settings["served"] == {"id": "tiny"}


def test_other_weights_behind_the_same_url_are_refused(tmp_path):
    with serving(add) as server:
        server.card = {"root": "weights-a", "created": 1, "permission": [{"id": "random"}]}
        assert evaluate(server, tmp_path)[0] == 0
        server.card = {"root": "weights-a", "created": 2}
        assert evaluate(server, tmp_path)[0] == 0, "what changes with every start says nothing"
        server.card = {"root": "weights-b"}
        status, said = evaluate(server, tmp_path)
    assert status == 2 and "served=" in said and "weights-b" in said


def test_a_changed_fingerprint_is_refused(tmp_path):
    with serving(add) as server:
        server.fingerprint = "fp_1"
        assert evaluate(server, tmp_path, "--limit", 3)[0] == 0
        server.fingerprint = "fp_2"
        status, said = evaluate(server, tmp_path)
        assert status == 2 and "says it is 'fp_2', and samples of 'fp_1' are kept" in said
        server.fingerprint = "fp_1"
        assert evaluate(server, tmp_path)[0] == 0


def test_a_folder_has_one_model(tmp_path):
    """Else its average would be of none."""
    with serving(add) as server:
        assert evaluate(server, tmp_path)[0] == 0
        drawn = server.number
        more = ("--benchmarks", sums(tmp_path / "more.jsonl", 2), "--output", tmp_path / "run")
        run = ("--base-url", server.url, *ONE_WORKER, "--k", 1, *more)
        done = acpo("eval", "other", *run)
        said = " ".join(done.stderr.split())
        assert done.returncode == 2 and "sums has model='tiny', more has model='other'" in said
        assert server.number == drawn and not (tmp_path / "run" / "more.jsonl").exists()
        assert acpo("eval", "tiny", *run, "--max-tokens", 99).returncode == 0, "only the model"


def stubborn(status):
    """A server that never answers `What is 2 + 3?`."""

    def faults(payload):
        return status if "is 2 + 3" in payload["messages"][-1]["content"] else None

    return faults


@pytest.mark.parametrize("status", ["400", "500"])
def test_one_question_that_always_fails_does_not_block_the_report(tmp_path, status):
    with serving(add) as server:
        server.payload_faults = stubborn(status)
        quick = ("--retries", 0, "--concurrency", 2)
        code, said = evaluate(server, tmp_path, *quick, k=2)
        assert code == 0, said
        assert "2 samples could not be drawn and are left out (questions 2)" in said
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        entry = summary["benchmarks"]["sums"]
        assert entry["questions"] == 6 and entry["mean"]["value"] == 1.0
        assert entry["pass"] == {"1": None, "2": None}, "not that of the other five questions"
        failed = entry["failed"]
        assert failed["counted_as"] == "exclude"
        assert [(one["question"], one["sample"]) for one in failed["samples"]] == [
            ("2", 0),
            ("2", 1),
        ]
        assert f"status {status}" in (tmp_path / "run" / "report.md").read_text()
        before = server.number
        code, said = evaluate(server, tmp_path, *quick, "--failed", "wrong", k=2)
        assert code == 0 and "count as wrong" in said
        assert server.number == before + 2, "only what is missing is asked again"
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        entry = summary["benchmarks"]["sums"]
        assert entry["questions"] == 6 and entry["mean"]["value"] == pytest.approx(5 / 6)
        server.payload_faults = lambda payload: None
        code, said = evaluate(server, tmp_path, *quick, k=2)
        assert code == 0 and "could not be drawn" not in said


def test_when_nothing_is_answered_the_run_ends(tmp_path):
    with serving(add) as server:
        server.faults = lambda number: "400"
        status, said = evaluate(server, tmp_path, "--concurrency", 1, count=3)
        assert status == 2 and "status 400" in said
        (tmp_path / "many").mkdir()
        server.faults = lambda number: "404"
        status, said = evaluate(server, tmp_path / "many", "--concurrency", 1, count=400)
        assert status == 2 and "status 404" in said
        assert 3 < server.number < 3 + 400, "it did not ask them all"


def test_refusals_that_overtake_completions_do_not_end_the_run(tmp_path):
    """A refusal of a prompt that is too long comes at once, a completion takes its time."""

    def long(payload):
        number = int(payload["messages"][-1]["content"].split()[2])
        return "400" if number < 8 else None

    with serving(add) as server:
        server.payload_faults, server.latency = long, 0.5
        status, said = evaluate(server, tmp_path, count=12)
    assert status == 0 and "8 samples could not be drawn" in said
    entry = json.loads((tmp_path / "run" / "summary.json").read_text())["benchmarks"]["sums"]
    assert entry["questions"] == 12 and entry["mean"]["value"] == 1.0


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """A LoRA run on a tiny model, one step long, and its base."""
    folder = tmp_path_factory.mktemp("lora")
    base = save_standin(folder / "base", chat=False)
    recipe = folder / "lora.yaml"
    recipe.write_text(
        "task: custom\nuse_peft: true\nlora_r: 4\nlora_target_modules: [q_proj, v_proj]\n"
    )
    options = {"model_name_or_path": base, "data": write_problems(folder / "p.jsonl", 8)}
    options |= {"output_dir": folder / "run", "use_cpu": True, "bf16": False, "max_steps": 1}
    options |= {"num_generations": 4, "per_device_train_batch_size": 8, "report_to": "none"}
    options |= {"max_completion_length": 4, "learning_rate": 0.5, "save_strategy": "no"}
    options |= {"reward_funcs": "train.standin.lottery"}
    run = prepare(read_recipe(recipe, flags(**options)))
    run.trainer.train()
    run.trainer.save_model(str(folder / "run"))
    assert (folder / "run" / "adapter_config.json").is_file()
    return folder / "run", base, recipe, options


def test_adapters_are_evaluated_on_their_base(adapter, tmp_path):
    run, base, _, _ = adapter
    whole, plain = load_model(str(run)), load_model(base)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(whole.state_dict()[name], plain.state_dict()[name])
    data = sums(tmp_path / "sums.jsonl", 2)
    options = ("--benchmarks", data, "--prompt-format", "plain", "--max-tokens", 4, *ONE_WORKER)
    for model, place in ((run, "lora"), (base, "base")):
        done = acpo("eval", model, *options, "--device", "cpu", "--output", tmp_path / place)
        assert done.returncode == 0, done.stderr
    settings = [lines(tmp_path / p / "sums.jsonl")[0]["settings"] for p in ("lora", "base")]
    assert settings[0]["revision"].endswith(f"+{settings[1]['revision']}"), "both are in it"
    done = acpo(
        *("trace", run, "--task", "custom", "--data", data, "--n", 2, "--group", 2),
        *("--max-tokens", 4, "--device", "cpu", "--output", tmp_path / "trace"),
    )
    assert done.returncode == 0, done.stderr
    assert Trace.open(tmp_path / "trace").rollouts.num_rows == 4


def test_training_goes_on_from_an_adapter(adapter, tmp_path):
    run, _, recipe, options = adapter
    again = {**options, "model_name_or_path": run, "output_dir": tmp_path / "on"}
    for command in (examine, train):
        with pytest.raises(ACPOError, match=r"use_peft=True .* is an adapter already"):
            command(recipe, flags(**again))
    trainer = prepare(read_recipe(recipe, flags(**again, use_peft=False))).trainer
    before = {n: p.clone() for n, p in trainer.model.named_parameters() if p.requires_grad}
    assert before and all("lora_" in name for name in before)
    trainer.train()
    now = dict(trainer.model.named_parameters())
    assert any(not torch.equal(now[name], value) for name, value in before.items())


def test_packaged_models_are_evaluated(tmp_path):
    model = "package:acpo/tasks/checkpoints/chain"
    run = ("eval", model, "--benchmarks", "chain?steps=3", "--limit", 8, "--k", 4)
    options = ("--prompt-format", "plain", "--max-tokens", 16, "--device", "cpu", "--workers", 1)
    done = acpo(*run, *options, "--output", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    entry = json.loads((tmp_path / "run" / "summary.json").read_text())["benchmarks"]["chain"]
    assert 0.2 < entry["mean"]["value"] < 1 and entry["settings"]["model"] == model
    assert [*entry["pass"]] == [*entry["majority_at"]] == ["1", "2", "3", "4"]
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_adapters_without_a_base_are_told(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    done = acpo("eval", tmp_path, "--benchmarks", sums(tmp_path / "s.jsonl", 1))
    assert done.returncode == 2 and "does not name the base model" in " ".join(done.stderr.split())
