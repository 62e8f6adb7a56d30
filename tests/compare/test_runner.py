"""Real studies of seconds: equal rows, a sabotaged one, interruption, and what is refused."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerCallback
from typer.testing import CliRunner

from acpo import ACPOTrainer
from acpo.cli import app
from acpo.compare import runner, store
from acpo.compare.execute import StepLengths, curve, examples, measured, own_problems
from acpo.compare.plan import matched_runs
from acpo.compare.report import write_report
from acpo.compare.runner import Progress, _told, gpu_share, progress, run_missing
from acpo.compare.store import read_results, unpack_verdicts
from acpo.compare.study_file import read_study
from acpo.compare.summary import summarise
from acpo.errors import ACPOError
from acpo.train.accuracy import Sample

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
OPTIONS = """\
recipe: {recipe}
updates: {updates}
seeds: {seeds}
options:
  chain_steps: 3
  max_problems: 400
  held_out: {held_out}
  sampler: static
  per_device_train_batch_size: 16
  steps_per_generation: 4
  max_completion_length: 16
  per_device_eval_batch_size: 200
  num_generations_eval: 2
  logging_steps: 4
"""
UNTIMED = ("seconds", "cpu_seconds", "train_seconds", "finished")


class Interruption(BaseException):
    pass


@pytest.fixture
def inline(monkeypatch):
    """Runs in this process, one after another; `inline.after` of them, then an interruption."""

    class Inline:
        after = 10**9
        ran = 0

    @contextlib.contextmanager
    def pool(workers, *, threads, launcher):
        def submit(function, *arguments):
            if Inline.ran >= Inline.after:
                raise Interruption
            Inline.ran += 1
            future = Future()
            try:
                future.set_result(function(*arguments))
            except Exception as error:
                future.set_exception(error)
            return future

        yield submit

    monkeypatch.setattr(runner, "worker_pool", pool)
    return Inline


def write_study(folder, rows, *, updates=4, seeds="[0, 1]", held_out=20, more=""):
    path = folder / "study.yaml"
    text = OPTIONS.format(recipe=RECIPE, updates=updates, seeds=seeds, held_out=held_out)
    path.write_text(f"{text}methods:\n{rows}{more}")
    return path


def run_all(study, folder, **options):
    results, broken = run_missing(study, folder, workers=1, say=lambda _: None, **options)
    assert not broken
    return results


def untimed(results):
    return {
        name: {key: value for key, value in result.items() if key not in UNTIMED}
        for name, result in results.items()
    }


def test_equal_rows_are_equal_and_a_sabotaged_one_is_worse(tmp_path, inline):
    rows = """\
  - sapo
  - {name: sapo_again, method: sapo, seed_offset: 1000}
  - name: sabotaged
    method: sapo
    options:
      reward_funcs: [compare.sabotage.right, compare.sabotage.negated]
      reward_weights: [0.0, 1.0]
"""
    path = write_study(tmp_path, rows, updates=24, seeds="[0, 1, 2]", held_out=100)
    study = read_study(path)
    summary = summarise(study, run_all(study, tmp_path / "out", only=["*/s[at]*"]))
    found = {row["name"]: row for row in summary["tasks"]["main"]["rows"]}
    assert found["sabotaged"]["verdict"] == "worse"
    assert found["sabotaged"]["gain"]["high"] < 0
    assert found["sapo_again"]["verdict"] == "not told apart"
    assert found["sapo_again"]["values"] != found["sapo"]["values"], "its seeds are others"
    assert found["sapo"]["difference"] is None
    write_report(summary, tmp_path / "out")
    page = (tmp_path / "out" / "page.html").read_text()
    assert "sabotaged" in page and "http" not in page.replace("http-equiv", "")
    assert "29.06" in (tmp_path / "out" / "table.tex").read_text()


def test_verdicts_stand_in_the_order_of_the_problems():
    """Each seed evaluates them in an order of its own; the bootstrap draws problems."""
    prompts = ["a", [{"role": "system", "content": "s"}, {"role": "user", "content": "b"}], "c"]
    samples = [Sample(p, "", p != "b") for p in ("b", "a", "b", "a")]
    for order in (samples, samples[::-1]):
        found = measured(order, prompts)
        assert unpack_verdicts(found["verdicts"]) == [[True, True], [False, False], []]
        assert (found["value"], found["problems"], found["samples"]) == (0.5, 2, 4)


def test_some_answers_are_kept_as_text():
    """A wrong judge shows in no number: 504 + 766 was right where 1270 was asked for."""
    prompts = [[{"role": "user", "content": name}] for name in "abcdefgh"]
    samples = [Sample(name, name * 2000 + "$", name == "b") for name in "hgedcba"]
    again = [Sample("b", "another", False)]
    assert examples(samples + again, prompts) == [
        {"ends": name * 999 + "$", "correct": name == "b"} for name in "abcd"
    ]


def test_entries_between_rollouts_are_kept():
    """With more updates per rollout than per entry, every other one has no rewards."""
    history = [
        {"step": 4, "rewards/right/mean": 0.5, "ratio_max": 1.5, "entropy": 0.3},
        {"step": 8, "ratio_max": 20.0, "entropy": 0.2},
        {"step": 8, "eval_loss": 0.1},
    ]
    assert curve(history, "right") == [
        {"step": 4, "accuracy": 0.5, "entropy": 0.3, "ratio_max": 1.5},
        {"step": 8, "entropy": 0.2, "ratio_max": 20.0},
    ]


def test_a_policy_that_diverged_is_a_failed_run(tmp_path, inline, monkeypatch):
    """And no refusal, which would end the study."""

    class Spoiler(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **_):
            with torch.no_grad():
                next(model.parameters()).fill_(torch.nan)

    added = ACPOTrainer.train

    def train(self, *args, **kwargs):
        self.add_callback(Spoiler())
        return added(self, *args, **kwargs)

    monkeypatch.setattr(ACPOTrainer, "train", train)
    study = read_study(write_study(tmp_path, "  - sapo\n", updates=8, seeds="[0]"))
    (run,) = run_all(study, tmp_path / "out", only=["*/study/sapo-*"]).values()
    assert "not finite" in run["failed"] and run.get("accuracy") is None


SWEEP = "sweep: {learning_rates: [1.0e-4, 1.0e-3], seeds: [50], updates: 4}\n"
SAPO = ["*/sapo-*", "*/start/*"]


def test_interrupted_and_resumed_is_the_same(tmp_path, inline):
    study = read_study(write_study(tmp_path, "  - sapo\n", seeds="[0]", more=SWEEP))
    whole = run_all(study, tmp_path / "whole", only=SAPO)
    assert len(whole) == 2 + 1 + 1
    inline.after = inline.ran + 1
    with pytest.raises(Interruption):
        run_all(study, tmp_path / "cut", only=SAPO)
    (tmp_path / "elsewhere").mkdir()  # another machine, to which one file was brought
    shutil.copy(tmp_path / "cut" / "runs.jsonl", tmp_path / "elsewhere")
    assert len(read_results(tmp_path / "cut")) == len(read_results(tmp_path / "elsewhere")) == 1
    inline.after, before = 10**9, inline.ran
    resumed = run_all(study, tmp_path / "elsewhere", only=SAPO)
    assert inline.ran == before + 3, "nothing is run twice"
    assert untimed(resumed) == untimed(whole)


def test_settings_do_not_mix(tmp_path, inline):
    path = write_study(tmp_path, "  - sapo\n", seeds="[0]")
    run_all(read_study(path), tmp_path / "out", only=["*/start/*"])
    path.write_text(
        path.read_text().replace("max_completion_length: 16", "max_completion_length: 20")
    )
    with pytest.raises(ACPOError, match="max_completion_length=16 there, 20 in the study"):
        progress(read_study(path), read_results(tmp_path / "out"))


def test_stop_after_starts_nothing_more_and_reports_what_is_there(tmp_path, inline):
    path = write_study(tmp_path, "  - sapo\n", seeds="[0]")
    out = tmp_path / "out"
    arguments = ["compare", str(path), "--output", str(out), "--stop-after", "0"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "3 runs left" in result.stdout, result.output
    assert "(1 missing)" in (out / "report.md").read_text()


def test_progress_is_told_of_the_runs_that_were_named(tmp_path, inline):
    study = read_study(write_study(tmp_path, "  - sapo\n", seeds="[0]"))
    told = []
    run_missing(study, tmp_path / "out", workers=1, only=["*/start/*"], say=told.append)
    assert "--only */start/*: 1 runs, 0 of them done" in told
    assert any(line.startswith("[1/1] ") for line in told), told
    left = progress(study, read_results(tmp_path / "out"))
    rest = left.runs - left.done
    assert rest and told[-1] == f"the runs of --only are done; {rest} others of the study are left"


def test_hours_are_told_as_hours():
    assert [_told(seconds) for seconds in (59, 61, 3599, 3600, 90_061)] == [
        *("0:59", "1:01", "59:59", "1:00:00", "25:01:01"),
    ]


def test_a_pattern_without_a_run_is_told(tmp_path, inline):
    study = read_study(write_study(tmp_path, "  - sapo\n", seeds="[0]"))
    told = []
    run_missing(study, tmp_path / "out", workers=1, only=["*/strat/*"], say=told.append)
    assert "--only */strat/*: no run that is done or could start has such a name" in told


def test_every_pattern_of_only_counts(tmp_path, inline):
    path, out = write_study(tmp_path, "  - sapo\n", seeds="[0]"), tmp_path / "out"
    arguments = ["compare", str(path), "--output", str(out), "--only", "*/strat/*, */start/*"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "--only */strat/*: no run" in result.stdout, result.output
    assert "--only */start/*: 1 runs, 0 of them done" in result.stdout
    assert [*read_results(out)] == ["main/start/start-seed0"]


def test_a_report_of_nothing_is_refused(tmp_path):
    path = write_study(tmp_path, "  - sapo\n")
    arguments = ["compare", str(path), "--report-only", "--output", str(tmp_path / "wrong")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and "wrong holds no runs of" in result.output
    assert not (tmp_path / "wrong").exists()


def test_a_study_has_its_folder_alone_until_its_last_run_ends(tmp_path):
    """A run that was launched outlives a command that is killed."""
    launcher = f"{sys.executable} {tmp_path / 'sleep.py'}"
    (tmp_path / "sleep.py").write_text(
        "import os, sys, time\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    path = write_study(tmp_path, "  - sapo\n", seeds="[0]", more=f"launcher: {launcher}\n")
    arguments = ["compare", str(path), "--output", str(tmp_path / "out")]
    first = subprocess.Popen([sys.executable, "-m", "acpo", *arguments])
    try:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert first.poll() is None
            time.sleep(0.05)
    finally:
        first.kill()
        first.wait()
    try:
        second = CliRunner().invoke(app, arguments)
        assert second.exit_code == 2 and "or a run it launched, is at work there" in second.output
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    out = tmp_path / "out"
    with pytest.raises(ACPOError, match="at work there"), store.alone(out), store.alone(out):
        raise AssertionError("held twice")


def test_a_part_of_a_study_is_reported_with_what_is_missing(tmp_path, inline):
    path = write_study(tmp_path, "  - sapo\n  - simko\n", seeds="[0]")
    out = tmp_path / "out"
    arguments = ["compare", str(path), "--output", str(out), "--only", "*/simko-*"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert all("/simko-" in name for name in read_results(out))
    assert "holds 1 runs" in result.stdout
    report = (out / "report.md").read_text()
    assert "runs are missing" in report and "(1 missing)" in report


def test_refusals_are_one_line(tmp_path):
    path = write_study(tmp_path, "  - sopa\n")
    result = CliRunner().invoke(app, ["compare", str(path)])
    assert result.exit_code == 2
    assert f"{path}:16: method='sopa' is unknown; did you mean 'sapo'?" in result.output


def test_a_file_is_no_folder_for_the_output(tmp_path):
    path = write_study(tmp_path, "  - sapo\n")
    result = CliRunner().invoke(app, ["compare", str(path), "--output", str(path)])
    assert result.exit_code == 2 and "is a file" in result.output


def test_sweeps_and_studies_share_no_problem():
    sweep, study = (set(own_problems(1000, 0.2, sweep=s)) for s in (True, False))
    assert len(sweep) == 200 and not sweep & study and len(sweep | study) == 1000
    assert own_problems(10, 0.0, sweep=False) is None


def test_updates_of_a_matched_row_are_as_long_as_the_baselines(tmp_path, inline):
    more = "matched: [grpo]\npass_at: {problems: 10, samples: 8}\n"
    study = read_study(write_study(tmp_path, "  - sapo\n  - grpo\n", seeds="[0]", more=more))
    results = run_all(study, tmp_path / "out", only=["*/start/*", "*/sapo-*", "*/grpo-*"])
    assert sorted(results) == [
        "main/matched/grpo-seed0",
        "main/start/start-seed0",
        "main/study/grpo-seed0",
        "main/study/sapo-seed0",
    ]
    free, matched, sapo = (
        results[f"main/{name}-seed0"] for name in ("study/grpo", "matched/grpo", "study/sapo")
    )
    assert matched["step_lengths"] == sapo["step_lengths"] != free["step_lengths"]
    assert len(sapo["step_lengths"]) == 4 and min(sapo["step_lengths"]) > 0
    assert matched["curve"] != free["curve"] or matched["accuracy"] != free["accuracy"]
    assert sapo["pass_at"]["samples"] == 80 and sapo["accuracy"]["samples"] == 40
    assert [type(one["ends"]) for one in sapo["examples"]] == [str] * 4
    table = summarise(study, results)["tasks"]["main"]
    assert [row["name"] for row in table["matched"]] == ["sapo", "grpo"]
    assert set(table["rows"][0]["pass_at"]) == {"1", "2", "4", "8"}
    assert table["matched"][1]["difference"]["seeds"] == 1


def test_steps_that_were_not_measured_have_no_length(tmp_path):
    """A process of FSDP holds a part of the weights; 0 would be taken for a length to match."""
    steps = StepLengths(tmp_path / "steps", [], resumes=False)
    assert steps.lengths(3) == []
    (tmp_path / "steps").write_text("0 0.5\n2 0.25\n")
    assert steps.lengths(3) == [], "of an update that nothing was written of"


def test_start_runs_do_not_stretch_the_estimate(tmp_path):
    study = read_study(write_study(tmp_path, "  - sapo\n", seeds="[0]"))
    start, *_, trained = sorted(progress(study, {}).ready, key=attrgetter("updates"))
    told = []
    clock = runner._Clock(tmp_path, told.append)
    result = {"seconds": 10.0, "accuracy": {"value": 0.5}}
    state = Progress([], 2, 4, 100)
    clock.tell_end(start, result, [], state)
    clock.tell_end(trained, result, [], state)
    assert "left" not in told[0] and "left" in told[1]


def test_runs_at_work_count_when_another_ends(tmp_path):
    """The estimate jumped to many times what was left: only what had ended was counted as made."""
    study = read_study(write_study(tmp_path, "  - sapo\n", seeds="[0, 1, 2]"))
    first, other, late = [run for run in progress(study, {}).ready if run.phase == "study"][:3]
    for run, made in ((other, other.updates), (late, 1)):
        folder = tmp_path / "runs" / run.name
        folder.mkdir(parents=True)
        (folder / "steps.txt").write_text("0 0.5\n" * made)
    told = []
    clock = runner._Clock(tmp_path, told.append)
    clock.began -= 100 * (first.updates + other.updates + 1)  # 100 seconds an update
    state = Progress([], 1, 3, other.updates + late.updates)
    clock.tell_end(first, {"seconds": 10.0}, [other, late], state)
    clock.tell_running([other, late], state)
    left = runner._told(100 * (late.updates - 1))
    assert all(f"about {left} left" in line for line in told), told
    assert f"{other.name} measures  {late.name} 1/{late.updates}" in told[1]


def test_every_worker_has_one_gpu_of_those_that_were_chosen(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [runner.gpu_of(place) for place in range(5)] == ["0", "1", "2", "3", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,MIG-7")
    assert [runner.gpu_of(place) for place in range(3)] == ["2", "MIG-7", "2"]
    for one in ("3", ""):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", one)
        assert runner.gpu_of(1) is None


def test_a_run_whose_launcher_failed_does_not_end_the_study(tmp_path):
    study = read_study(write_study(tmp_path, "  - sapo\n", seeds="[0]"))
    study = replace(study, launcher="false")
    _, broken = run_missing(study, tmp_path / "out", workers=1, say=lambda _: None, only=["*/st*"])
    assert len(broken) >= 2 and all("status 1; see its log.txt" in one for one in broken)


def test_a_matched_row_keeps_its_own_seeds(tmp_path):
    rows = "  - sapo\n  - {name: again, method: grpo, seed_offset: 1000}\n"
    more = "matched: [again]\n"
    study = read_study(write_study(tmp_path, rows, seeds="[0, 1]", more=more))
    (task,) = study.tasks
    again = next(row for row in task.rows if row.name == "again")
    base = {f"main/study/sapo-seed{seed}": {"step_lengths": [0.1 + seed]} for seed in (0, 1)}
    runs = list(matched_runs(study, task, again, base))
    assert [(run.seed, run.step_lengths) for run in runs] == [(1000, [0.1]), (1001, [1.1])]


def test_steps_get_the_length_asked_for(tmp_path):
    import torch

    weights = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    silent = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weights, silent], lr=0.1, weight_decay=0.0)
    steps = StepLengths(tmp_path / "steps.txt", [0.5, 0.25], resumes=False)
    state = SimpleNamespace(global_step=0, is_world_process_zero=True)
    steps.on_train_begin(None, state, None, optimizer=optimizer)
    for step in range(3):
        before = weights.detach().clone()
        weights.grad = torch.tensor([1.0, -2.0, 0.5]) if step != 1 else None
        optimizer.step()
        moved = weights.detach() - before
        if step == 0:  # Adam's first step has the signs of the gradient
            assert moved == pytest.approx([-0.5 / 3**0.5, 0.5 / 3**0.5, -0.5 / 3**0.5])
        state.global_step += 1
    assert steps.lengths(3) == pytest.approx([0.5, 0.0, float(moved.norm())], rel=1e-5)
    with (tmp_path / "steps.txt").open("a") as file:
        file.write("3")  # torn by a kill
    before = steps.lengths(3)
    again = StepLengths(tmp_path / "steps.txt", [], resumes=True)
    with (tmp_path / "steps.txt").open("a") as file:
        file.write("3 0.5\n")
    assert again.lengths(4) == [*before, 0.5]


def test_a_run_that_breaks_does_not_end_the_others(tmp_path, inline, monkeypatch):
    path = write_study(tmp_path, "  - sapo\n  - {name: odd, method: grpo}\n", seeds="[0]")
    real = runner.run_one

    def run_one(run, *arguments):
        if run.row == "odd":
            raise RuntimeError("CUDA out of memory")
        return real(run, *arguments)

    monkeypatch.setattr(runner, "run_one", run_one)
    arguments = [
        "compare",
        str(path),
        "--output",
        str(tmp_path / "out"),
        "--only",
        "*start*,*sapo*,*odd*",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "main/study/odd-seed0: CUDA out of memory; see its log.txt" in result.output
    assert sorted(read_results(tmp_path / "out")) == [
        "main/start/start-seed0",
        "main/study/sapo-seed0",
    ]


def test_runs_that_share_a_gpu_have_memory_of_their_own(tmp_path, monkeypatch):
    study = read_study(write_study(tmp_path, "  - sapo\n"), {"use_cpu": False})
    ready = progress(study, {}).ready
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert gpu_share(4, ready) == 1.0
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert gpu_share(2, ready) == 1.0
    with pytest.raises(ACPOError, match="2 runs share a GPU and max_tokens_per_pack is unset"):
        gpu_share(3, ready)
    budgeted = [replace(r, recipe={**r.recipe, "max_tokens_per_pack": 512}) for r in ready]
    assert gpu_share(3, budgeted) == pytest.approx(0.46)


@pytest.mark.slow
def test_killed_and_resumed_is_the_same(tmp_path, inline):
    """In processes of its own, with two workers; and it is what one process finds and ends."""
    path = write_study(tmp_path, "  - sapo\n", more=SWEEP)
    arguments = ["compare", str(path), "--workers", "2"]
    arguments += ["--output", str(tmp_path / "cut"), "--only", ",".join(SAPO)]
    command = [sys.executable, "-m", "acpo", *arguments]

    def runs(name):
        lines = (tmp_path / name / "runs.jsonl").read_text().splitlines()
        return untimed({row["run"]: row for row in map(json.loads, lines)})

    run_all(read_study(path), tmp_path / "whole", only=SAPO)
    cut = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    kept_runs = tmp_path / "cut" / "runs.jsonl"
    while not kept_runs.exists() or len(kept_runs.read_text().splitlines()) < 2:
        assert cut.poll() is None, "it ended before it could be killed"
        time.sleep(0.05)
    os.killpg(cut.pid, signal.SIGKILL)
    cut.wait()
    kept = runs("cut")  # all that is left where the machine is gone, too
    assert len(kept) >= 2
    CliRunner().invoke(app, arguments, catch_exceptions=False)

    assert runs("cut") == runs("whole") == {**runs("whole"), **kept}
    assert len(runs("whole")) == 2 + 2 + 2
