"""What the report says of studies that did not go well; results are made up, none is run."""

import re

import pytest

from acpo.compare import plan
from acpo.compare.report import markdown, write_report
from acpo.compare.study import read_study
from acpo.compare.summary import summarise

STUDY = """\
recipe: recipe.yaml
methods: [sapo, acpo, acpo_no_routing, grpo]
updates: 40
seeds: [0, 1, 2]
sweep: {learning_rates: [1.0e-3, 1.0e-4], seeds: [7]}
tasks:
  a: {}
  b-a: {sweep_of: a}
"""
SKILL = {"sapo": 0.5, "acpo": 0.7, "acpo_no_routing": 0.71, "grpo": 0.4, "global_sg_x3": 0.6}


@pytest.fixture
def study(tmp_path):
    (tmp_path / "recipe.yaml").write_text("model_name_or_path: x\ntask: chain\nheld_out: 8\n")
    (tmp_path / "study.yaml").write_text(STUDY)
    return read_study(tmp_path / "study.yaml")


def result(run, **more):
    accuracy = SKILL.get(run.row, 0.3) + 0.01 * run.seed + 0.001 * (ord(run.row[0]) * run.seed % 7)
    return {
        "failed": None,
        "seconds": 1.0,
        "hardware": {"machine": "paper"},
        "versions": {"torch": "0"},
        "start_model": "m",
        "accuracy": None if run.phase == plan.SWEEP else {"value": accuracy},
        "curve": [{"step": 8, "accuracy": accuracy, "reversed": 0.0, "entropy": 0.1, "length": 9}],
        **more,
    }


def results(study):
    runs = [*plan.sweep_runs(study), *plan.start_runs(study)]
    for task in study.tasks:
        for row in task.rows:
            runs += [run for _, run in plan.study_runs(study, task, row, 1e-4)]
    return {run.name: result(run) for run in runs}


def report(study, found):
    summary = summarise(study, found, command="made up")
    return summary, {row["name"]: row for row in summary["tasks"]["a"]["rows"]}


def test_survivors_are_no_verdict(study):
    found = results(study)
    _, rows = report(study, found)
    assert rows["acpo"]["verdict"] == "better" and rows["grpo"]["verdict"] == "worse"
    found["a/study/acpo-lr0.0001-seed1"].update(failed="diverged", accuracy=None)
    summary, rows = report(study, found)
    assert rows["acpo"]["verdict"] == "runs failed"
    text = markdown(summary)
    assert "| 2 (1 failed) |" in text and "- runs failed: ACPO\n" in text
    assert re.search(r"failed runs are in no mean.*: ACPO\n", text)


def test_missing_runs_and_other_models_are_told(study):
    found = results(study)
    assert "provisional" not in markdown(report(study, found)[0])
    del found["a/study/grpo-lr0.0001-seed2"]
    found["a/study/acpo-lr0.0001-seed2"]["start_model"] = "another"
    summary, rows = report(study, found)
    text = markdown(summary)
    assert "| 2 (1 missing) |" in text and "ranks are provisional" in text
    assert "started from 2 different models" in text
    assert rows["acpo"]["difference"]["seeds"] == 2 and len(rows["acpo"]["seeds"]) == 3


def test_a_sweep_that_is_not_there_did_not_fail(study):
    found = results(study)
    del found["a/sweep/grpo-lr0.001-seed7"]
    found["a/sweep/acpo-lr0.001-seed7"]["failed"] = "diverged"
    text = markdown(report(study, found)[0])
    assert "| GRPO | missing | missing |" in text
    assert re.search(r"\| ACPO \| \*\*[\d.]+\*\* \| failed \|", text)


def test_only_routed_acpo_equals_the_control_at_first(study):
    text = markdown(report(study, results(study))[0])
    assert "- ACPO minus the control global_sg_x3 (what steps away from w = 1 contribute)" in text
    assert "- ACPO w/o routing minus the control global_sg_x3, each at its own" in text


def test_every_task_shows_its_own_figures(study, tmp_path):
    summary, _ = report(study, results(study))
    write_report(summary, tmp_path)
    page = (tmp_path / "page.html").read_text()
    assert re.findall(r'alt="([\w-]+)"', page) == [
        "curves-a",
        "differences-a",
        "curves-b-a",
        "differences-b-a",
    ]


def test_runs_that_logged_nothing_have_no_curves(study, tmp_path):
    found = {name: {**one, "curve": []} for name, one in results(study).items()}
    for name in list(found):
        if "/sweep/" in name:
            found[name]["curve"] = [{"step": 8, "accuracy": 0.5}]
    summary, _ = report(study, found)
    write_report(summary, tmp_path)
    assert not list(tmp_path.glob("curves-*")) and (tmp_path / "differences-a.png").is_file()
