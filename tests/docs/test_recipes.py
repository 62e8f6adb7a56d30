"""What recipes promise: a next step that was not just taken, accuracy along the way, and studies
that go on from the runs they have."""

import json
import re

import pytest
import yaml
from typer.testing import CliRunner

from acpo.cli import app
from acpo.compare.plan import sweep_runs
from acpo.compare.store import spec_hash
from acpo.compare.study_file import read_study
from acpo.records import RUN_LOG
from acpo.train.recipe import read_recipe
from acpo.train.report import Report, summary
from docs.pages import ROOT

RECIPES = ROOT / "recipes"


def test_the_next_step_is_one_not_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    steps = read_recipe(RECIPES / "quickstart.yaml").task.try_next
    report = Report("recipes/quickstart.yaml", "m", "acpo", 0, 1, 1, 1.0, 1.0)
    assert "--method grpo" in summary(report, [], [], steps)
    (tmp_path / "runs/quickstart-grpo").mkdir(parents=True)
    told = summary(report, [], [], steps)
    assert "--method grpo" not in told and "acpo diagnose dynamics" in told
    (tmp_path / "diagnose/quickstart").mkdir(parents=True)
    assert "try next" not in summary(report, [], [], steps)


def test_the_quickstart_page_shows_what_is_printed(tmp_path):
    page = (ROOT / "docs/quickstart.md").read_text()
    options = [str(RECIPES / "quickstart.yaml"), "--output_dir", str(tmp_path)]
    told = CliRunner().invoke(app, ["doctor", *options]).output
    (note,) = re.findall(r"^ +ok +(.* held out)$", told, re.M)
    assert f"\n    {note}\n" in page
    assert f"`{RUN_LOG}`" in page and f"/{RUN_LOG}`" in (ROOT / "docs/training.md").read_text()


@pytest.mark.parametrize("name", ["quickstart", "qwen2.5-0.5b-gsm8k", "gym-countdown"])
def test_recipes_with_held_out_problems_measure_accuracy_along_the_way(name):
    recipe = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    assert recipe["held_out"] > 0 and recipe["eval_strategy"] == "steps"
    assert recipe["max_steps"] >= 4 * recipe["eval_steps"], "a curve has points"


def test_a_study_knows_the_runs_it_has():
    """Options of the recipe that are not a run's (evaluation on the way) change no hash."""
    file = ROOT / "results/compare/qwen2.5-0.5b-gsm8k/runs.jsonl"
    kept = {row["run"]: row for row in map(json.loads, file.read_text().splitlines())}
    name = "four/sweep/sapo-lr3e-06-seed100"
    where = ("model_name_or_path", "data", "held_out_data")
    overrides = {key: kept[name]["spec"]["recipe"][key] for key in where}
    study = read_study(RECIPES / "studies/qwen2.5-0.5b-gsm8k.yaml", overrides)
    (task,) = [task for task in study.tasks if task.name == "four"]
    planned = {run.name: spec_hash(run.spec()) for run in sweep_runs(study, task, {})}
    assert planned[name] == kept[name]["hash"]
