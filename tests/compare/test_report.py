"""What the report says of studies that did not go well; results are made up, none is run."""

import base64
import json
import math
import re
import shlex
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from acpo.cli import app
from acpo.compare import plan, runner
from acpo.compare.report import latex, markdown, write_report
from acpo.compare.runner import progress
from acpo.compare.store import (
    alone,
    merge_results,
    pack_verdicts,
    read_results,
    refuse_difference,
    spec_hash,
    unpack_verdicts,
    write_results,
)
from acpo.compare.study_file import read_study
from acpo.compare.summary import summarise
from acpo.errors import ACPOError

KEPT = Path(__file__).parents[2] / "results" / "compare"
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
        "spec": run.spec(),
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
    runs = []
    for task in study.tasks:
        runs += [*plan.sweep_runs(study, task, {}), *plan.start_runs(study, task)]
        for row in task.rows:
            runs += plan.study_runs(study, task, row, 1e-4)
    return {run.name: result(run) for run in runs}


def report(study, found):
    summary = summarise(study, found)
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


def test_no_verdict_where_nothing_was_learnt(study):
    found = results(study)
    _, rows = report(replace(study, least_gain=0.01), found)
    assert rows["acpo"]["verdict"] == "better"
    summary, rows = report(replace(study, least_gain=0.9), found)
    assert rows["acpo"]["verdict"] == rows["grpo"]["verdict"] == ""
    assert "**no verdicts**: rows are told apart only where" in markdown(summary)
    assert "at least 90 points over the start" in markdown(summary)


def test_pass_at_k_is_compared_seed_by_seed(study):
    """Two seeds: 1 - 0.5 and 0.75 - 0.75 at k = 1, and all is solved at 4; one seed without."""
    found = results(study)
    verdicts = {
        "acpo": ([[True] * 4, [True] * 4], [[True] * 4, [True, True, False, False]]),
        "sapo": ([[True, True, False, False]] * 2, [[True] * 4, [True, True, False, False]]),
    }
    for row, seeds in verdicts.items():
        for seed, kept in enumerate(seeds):
            measured = {"value": 0.5, "verdicts": pack_verdicts(kept)}
            found[f"a/study/{row}-lr0.0001-seed{seed}"]["pass_at"] = measured
    _, rows = report(study, found)
    assert rows["acpo"]["difference"]["pass_at"] == {}
    for row in verdicts:
        del found[f"a/study/{row}-lr0.0001-seed2"]
    summary, rows = report(study, found)
    apart = rows["acpo"]["difference"]["pass_at"]
    assert [one["value"] for one in apart.values()] == pytest.approx([0.25, 1 / 12, 0.0])
    assert apart["1"]["seeds"] == 2 and not rows["grpo"]["difference"]["pass_at"]
    text = markdown(summary)
    assert "| row | pass@1 | pass@2 | pass@4 |\n" in text and "| ACPO | +25.0 [" in text
    assert text.count("Differences to SAPO in pass@k, paired:") == 1


def test_sweeps_shorter_than_the_runs_are_told(study):
    for updates, told in ((40, False), (39, True)):
        short = replace(study, sweep=replace(study.sweep, updates=updates))
        text = markdown(report(short, results(short))[0])
        assert ("a rate that leads early may fall back" in text) == told
    nothing_to_choose = replace(short, sweep=replace(short.sweep, learning_rates=(1e-4,)))
    text = markdown(report(nothing_to_choose, results(nothing_to_choose))[0])
    assert "may fall back" not in text


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


def test_other_problems_under_the_same_name_are_told(study):
    found = results(study)
    for name, run in found.items():
        run["held_out"] = "changed" if name == "a/study/acpo-lr0.0001-seed2" else "h"
    summary, rows = report(study, found)
    assert "measured on 2 different sets of held-out problems" in markdown(summary)
    assert rows["acpo"]["difference"]["seeds"] == 2 and rows["grpo"]["difference"]["seeds"] == 3
    for run in found.values():  # runs from before it was written down
        run.pop("held_out")
    found["a/study/acpo-lr0.0001-seed2"]["held_out"] = "h"
    assert report(study, found)[1]["acpo"]["difference"]["seeds"] == 3


def test_starts_are_compared_whatever_they_would_have_trained_on(study):
    """An endless task makes as many problems as a run needs, and a start needs one batch."""
    found = results(study)
    for name, run in found.items():
        run["problems"] = "few" if "/start/" in name else f"of seed {run['spec']['seed']}"
    summary, rows = report(study, found)
    assert rows["acpo"]["gain"]["seeds"] == 3 and "trained on different" not in markdown(summary)
    found["a/study/acpo-lr0.0001-seed2"]["problems"] = "others"
    summary, rows = report(study, found)
    assert rows["acpo"]["difference"]["seeds"] == 2
    assert re.search(
        "runs of one seed trained on different problems.*: seeds 2\n", markdown(summary)
    )


@pytest.mark.parametrize("phase", [plan.SWEEP, plan.START, plan.MATCHED])
def test_another_model_is_told_wherever_it_was(study, phase):
    study = replace(study, matched=("grpo",))
    found = results(study)
    for run in made(found, study, step_lengths=[0.1]).ready:
        found[run.name] = result(run)
    assert "different models" not in markdown(report(study, found)[0])
    next(one for one in found.values() if one["spec"]["phase"] == phase)["start_model"] = "another"
    assert "runs started from 2 different models" in markdown(report(study, found)[0])


def made(found, study, **more):
    """Where a study stands whose SAPO runs had this, too."""
    for name, one in found.items():
        if "/study/sapo-" in name:
            one.update(more)
    return progress(study, found)


@pytest.mark.parametrize("more", [{"failed": "diverged"}, {"step_lengths": []}])
def test_what_nothing_can_match_is_not_waited_for(study, more):
    study = replace(study, matched=("grpo",))
    found = results(study)
    base = found.pop("a/study/sapo-lr0.0001-seed1")
    state = made(found, study, **{"step_lengths": [0.1], **more})
    assert (state.runs - state.done, len(state.ready)) == (2, 1), "SAPO's run, and one behind it"
    found["a/study/sapo-lr0.0001-seed1"] = {**base, "step_lengths": [0.1]}
    state = progress(study, found)
    assert [run.name for run in state.ready] == ["a/matched/grpo-lr0.0001-seed1"]
    assert state.runs == state.done + 1
    assert re.search("no run can match SAPO's .*: seeds 0, 2\n", markdown(report(study, found)[0]))


def test_only_runs_of_the_study_are_counted(study):
    found = results(study)
    before = report(study, found)[0]
    found["a/study/dapo-lr0.1-seed0"] = found["a/study/grpo-lr0.0001-seed0"]
    after = report(study, found)[0]
    assert after == before and before["runs"] == len(found) - 1


def test_rows_without_runs_are_not_counted_as_compared(study):
    found = results(study)
    every = report(study, found)[0]["tasks"]["a"]["comparisons"]
    found = {name: one for name, one in found.items() if "/study/grpo" not in name}
    assert report(study, found)[0]["tasks"]["a"]["comparisons"] == every - 1 > 0


def test_the_report_counts_the_comparisons_that_holms_p_allows_for(study):
    found = results(study)
    summary, rows = report(study, found)
    every = len(rows) - 1
    assert f"With {every} rows compared with SAPO, about" in markdown(summary)
    found = {name: one for name, one in found.items() if "/study/grpo" not in name}
    summary, rows = report(study, found)
    rows = [row for row in rows.values() if row["difference"]]
    first = min(rows, key=lambda row: row["difference"]["p_value"])
    assert first["p_holm"] == pytest.approx(every * first["difference"]["p_value"])
    said = f"With {every} rows to compare with SAPO, 1 of them without runs for it, about "
    assert said + f"{0.05 * every:.1f} of the" in markdown(summary)


def test_only_problems_that_are_shared_out_are_unseen(study):
    summary, _ = report(study, {})
    assert "on seeds 7 and problems made from them; 40 updates" in markdown(summary)
    tasks = [replace(task, options={"task": "gsm8k"}) for task in study.tasks]
    summary, _ = report(replace(study, tasks=tuple(tasks)), {})
    assert "20% of the training problems, which no study run sees" in markdown(summary)


def test_a_sweep_that_is_not_there_did_not_fail(study):
    found = results(study)
    del found["a/sweep/grpo-lr0.001-seed7"]
    found["a/sweep/acpo-lr0.001-seed7"]["failed"] = "diverged"
    text = markdown(report(study, found)[0])
    assert re.search(r"\| GRPO \| [\d.]+ \| missing \|", text), "and no rate is chosen"
    assert re.search(r"\| ACPO \| \*\*[\d.]+\*\* \| failed \|", text)


def test_a_sweep_is_shown_where_it_was_made(study):
    text = markdown(report(study, results(study))[0])
    assert text.count("Sweep (") == 1
    assert text.index("Sweep (") < text.index("\n## b-a") < text.index("chosen on a.")


def test_only_routed_acpo_equals_the_control_at_first(study):
    text = markdown(report(study, results(study))[0])
    assert "- ACPO minus the control global_sg_x3 (what steps away from w = 1 contribute)" in text
    assert "- ACPO w/o routing minus the control global_sg_x3, each at its own" in text


def test_a_report_is_made_again_from_the_raw_runs(study, tmp_path):
    found = results(study)
    kept = tmp_path / "kept"
    write_results(found, kept / "runs.jsonl")
    arguments = ["compare", str(study.path), "--output", str(kept), "--report-only"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0 and f"{len(found)} runs" in done.output
    text = (kept / "report.md").read_text()
    assert "- better: ACPO; ACPO w/o routing" in text and "missing" not in text
    assert read_results(kept) == found
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert {"report.md", "page.html", "differences-a.pdf", "runs.jsonl"} <= set(before)
    (kept / "runs.jsonl").write_text('{"run": 3}\n')
    with pytest.raises(ACPOError, match=r"runs.jsonl:1 is not the result of a run"):
        read_results(kept)


@pytest.mark.parametrize(
    "damage",
    [
        {"accuracy": {"value": 0.99, "verdicts": pack_verdicts([[True, False], [False, False]])}},
        {"seconds": -1.0},
        {"tokens": -1},
    ],
)
def test_numbers_that_contradict_each_other_are_no_result(study, tmp_path, damage):
    name, first = next(iter(results(study).items()))
    whole = {"value": 0.25, "verdicts": pack_verdicts([[True, False], [False, False]])}
    write_results({name: {**first, "accuracy": whole}}, tmp_path / "runs.jsonl")
    assert read_results(tmp_path)[name]["accuracy"] == whole
    write_results({name: {**first, **damage}}, tmp_path / "runs.jsonl")
    with pytest.raises(ACPOError, match=r"runs.jsonl:1 is not the result of a run"):
        read_results(tmp_path)


def test_a_report_takes_no_run_back_that_ends_meanwhile(study, tmp_path, monkeypatch):
    found = results(study)
    first = dict(list(found.items())[:-1])
    write_results(first, tmp_path / "runs.jsonl")

    def slow(summary, folder):
        write_results(found, folder / "runs.jsonl")  # as the command at work there does

    monkeypatch.setattr(runner, "write_report", slow)
    arguments = ["compare", str(study.path), "--output", str(tmp_path), "--report-only"]
    with alone(tmp_path):
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0 and read_results(tmp_path) == found


@pytest.mark.parametrize("kept", sorted(KEPT.iterdir()), ids=lambda path: path.name)
def test_kept_reports_are_what_their_runs_say(kept):
    study = read_study(KEPT.parents[1] / "recipes" / "studies" / f"{kept.name}.yaml")
    found = read_results(kept)
    progress(study, found)
    summary = summarise(study, found)
    assert markdown(summary) == (kept / "report.md").read_text()
    assert latex(summary) == (kept / "table.tex").read_text()
    assert json.loads(json.dumps(summary)) == json.loads((kept / "summary.json").read_text())


def test_differences_stay_within_what_is_possible(study):
    found = results(study)
    for seed, value in enumerate((0.0, 1.0, 0.0)):
        verdicts = pack_verdicts([[bool(value)]])
        found[f"a/study/grpo-lr0.0001-seed{seed}"] |= {
            "accuracy": {"value": value},
            "pass_at": {"value": value, "verdicts": verdicts},
            "curve": [{"step": 1, "accuracy": value}],
        }
        found[f"a/study/sapo-lr0.0001-seed{seed}"] |= {
            "pass_at": {"value": 0.0, "verdicts": pack_verdicts([[False]])},
            "curve": [{"step": 1, "accuracy": 0.5}],
        }
    _, rows = report(study, found)
    apart = rows["grpo"]["difference"]
    assert apart["low"] == apart["area"]["low"] == -1.0 and apart["pass_at"]["1"]["high"] == 1.0
    assert rows["grpo"]["accuracy"]["low"] == 0.0


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


def test_a_sweep_goes_on_beyond_an_end_while_the_best_lies_there(study):
    study = replace(study, sweep=replace(study.sweep, extend=2))
    task, row = study.tasks[0], study.tasks[0].rows[0]
    score = {1e-3: 0.5, 1e-4: 0.6, 1e-5: 0.7, 1e-6: 0.8, 1e-7: 0.9}
    found, tried = {}, []
    while not plan.choose(study, task, row, found).finished:
        for run in plan.sweep_runs(study, task, found):
            if run.row == row.name and run.name not in found:
                tried.append(run.learning_rate)
                curve = [{"step": 1, "accuracy": score[run.learning_rate]}]
                found[run.name] = result(run, curve=curve)
    assert tried == [1e-4, 1e-3, 1e-5, 1e-6], "two beyond the end, and no more"
    choice = plan.choose(study, task, row, found)
    assert (choice.learning_rate, choice.at_edge) == (1e-6, True)
    found["a/sweep/sapo-lr1e-06-seed7"]["failed"] = "diverged"
    choice = plan.choose(study, task, row, found)
    assert (choice.learning_rate, choice.at_edge) == (1e-5, False)
    assert choice.scores[1e-6] is None
    for name in found:
        found[name]["failed"] = "diverged"
    assert plan.choose(study, task, row, found).learning_rate == 1e-6, "the smallest"


def test_of_one_rate_no_run_is_asked_for(study):
    study = replace(study, sweep=replace(study.sweep, learning_rates=(1e-4,)))
    task, row = study.tasks[0], study.tasks[0].rows[0]
    assert not list(plan.sweep_runs(study, task, {}))
    assert plan.choose(study, task, row, {}) == plan.Choice(1e-4, {})
    summary, _ = report(study, results(study))
    text = markdown(summary)
    assert "Every row at 0.0001, without a sweep." in text
    assert "Sweep (" not in text and "Learning rates are" not in text


def test_rates_that_are_near_have_none_beyond(study):
    """0.00101, one step on and to two digits, is 0.001 again: the study waited for it for ever."""
    study = replace(study, sweep=replace(study.sweep, extend=2, learning_rates=(1e-3, 1.01e-3)))
    task, row = study.tasks[0], study.tasks[0].rows[0]
    found = {
        run.name: result(run, curve=[{"step": 1, "accuracy": run.learning_rate}])
        for run in plan.sweep_runs(study, task, {})
    }
    assert plan.choose(study, task, row, found).learning_rate == 1.01e-3


def test_a_rollout_without_a_verdict_chooses_no_learning_rate(study):
    task, row = study.tasks[0], study.tasks[0].rows[0]
    found = {}
    for run in plan.sweep_runs(study, task, {}):
        silent = run.learning_rate == 1e-4
        points = [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, math.nan] if silent else [0.5] * 8
        curve = [{"step": at, "accuracy": point} for at, point in enumerate(points)]
        found[run.name] = result(run, curve=curve)
    assert plan.choose(study, task, row, found).learning_rate == 1e-3


def test_files_of_two_machines_are_merged_by_writing_one_behind_the_other(study, tmp_path):
    found = results(study)
    names = sorted(found)
    for place, part in (("one", names[:20]), ("two", names[10:])):
        kept = {name: {**found[name], "finished": place} for name in part}
        write_results(kept, tmp_path / place / "runs.jsonl")
    both = tmp_path / "both"
    both.mkdir()
    parts = [(tmp_path / place / "runs.jsonl").read_text() for place in ("two", "one")]
    (both / "runs.jsonl").write_text("".join(parts))
    merged = read_results(both)
    assert sorted(merged) == names
    assert merged[names[15]]["finished"] == "one", "as it first finished"
    lines = parts[0].replace('"held_out": 8', '"held_out": 9', 1)
    (both / "runs.jsonl").write_text(lines + parts[0])
    with pytest.raises(ACPOError, match=r"held_out=9 there, 8 in the study"):
        read_results(both)


def test_of_two_machines_matched_runs_the_first_sapos_are_kept(study, tmp_path):
    study = replace(study, matched=("grpo",))
    lines, notes = [], []
    for when, length in (("1", 0.1), ("2", 0.2)):
        found = results(study)
        for run in made(found, study, step_lengths=[length] * 40).ready:
            found[run.name] = result(run, step_lengths=list(run.step_lengths))
        found = {name: {**one, "finished": when} for name, one in found.items()}
        write_results(found, tmp_path / "runs.jsonl")
        lines.append((tmp_path / "runs.jsonl").read_text())
    for text in ("".join(lines), "".join(lines[::-1])):
        (tmp_path / "runs.jsonl").write_text(text)
        merged = read_results(tmp_path, notes.append)
        assert sorted(merged) == sorted(found)
        assert {one["finished"] for one in merged.values()} == {"1"}
        assert not progress(study, merged).ready
    assert len(notes) == 2 * 6 and "seed0 is left out: it matched updates of a SAPO" in notes[0]


def test_matched_runs_without_their_sapo_are_kept_for_it(study, tmp_path):
    study = replace(study, matched=("grpo",))
    found = results(study)
    for run in made(found, study, step_lengths=[0.1] * 40).ready:
        found[run.name] = result(run, step_lengths=list(run.step_lengths))
    sapo = {name: one for name, one in found.items() if "/study/sapo-" in name}
    write_results({k: v for k, v in found.items() if k not in sapo}, tmp_path / "runs.jsonl")
    notes = []
    for _ in range(2):
        assert not any("/matched/" in name for name in merge_results(tmp_path, notes.append))
    with (tmp_path / "runs.jsonl").open("a") as file:
        for name, one in sapo.items():
            file.write(json.dumps({"run": name, **one}) + "\n")
    assert merge_results(tmp_path) == read_results(tmp_path) == found
    assert not (tmp_path / "left_out.jsonl").exists() and len(notes) == 2 * 6


def test_runs_of_another_study_are_no_report(study, tmp_path):
    found = {name.replace("a/", "c/", 1): one for name, one in results(study).items()}
    write_results(found, tmp_path / "out" / "runs.jsonl")
    arguments = ["--report-only", "--output", str(tmp_path / "out")]
    told = CliRunner().invoke(app, ["compare", str(study.path), *arguments])
    assert told.exit_code == 2 and "holds no runs of study.yaml to report" in told.output
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["runs.jsonl"]


def test_models_may_be_kept_from_now_on(study):
    run = next(plan.start_runs(study, study.tasks[0]))
    refuse_difference(run.spec(), replace(run, keeps_model=True).spec(), "here")


def test_the_command_of_a_report_can_be_typed(study):
    values = {"warmup_steps": None, "method_options": {"alpha": 0.02}, "note": "a b", "run": "1"}
    command = summarise(replace(study, overrides=values), {})["command"]
    assert runner.parse_overrides(shlex.split(command)[3:]) == values


def test_long_values_are_told_in_short(study):
    run = next(plan.start_runs(study, study.tasks[0]))
    old, new = (replace(run, step_lengths=[length] * 999).spec() for length in (0.1, 0.2))
    with pytest.raises(ACPOError) as error:
        refuse_difference(old, new, "here")
    assert "step_lengths=[0.1, 0.1" in str(error.value) and len(str(error.value)) < 300


def test_the_place_of_data_and_model_is_no_part_of_a_run(study):
    spec = next(plan.start_runs(study, study.tasks[0])).spec()
    moved = {**spec, "recipe": {**spec["recipe"], "data": "/elsewhere", "model_name_or_path": "y"}}
    other = {**spec, "recipe": {**spec["recipe"], "task": "gsm8k"}}
    assert spec_hash(spec) == spec_hash(moved) != spec_hash(other)


def test_a_start_has_no_learning_rate_and_a_run_that_trains_has(study):
    def at(rate, run):
        spec = run.spec()
        return {**spec, "recipe": {**spec["recipe"], "learning_rate": rate}}

    task = study.tasks[0]
    start, trained = next(plan.start_runs(study, task)), next(plan.sweep_runs(study, task, {}))
    refuse_difference(at(1e-6, start), at(3e-6, start), "here")
    with pytest.raises(ACPOError, match="learning_rate=1e-06 there"):
        refuse_difference(at(1e-6, trained), at(3e-6, trained), "here")


def test_damaged_verdicts_are_refused():
    verdicts = [[True, False], [], [True]]
    assert unpack_verdicts(pack_verdicts(verdicts)) == [[True, False], [], [True]]
    whole = pack_verdicts(verdicts)
    cut = base64.b64encode(base64.b64decode(whole)[:-5]).decode()
    endless = base64.b64encode(zlib.compress(b"0" * 20_000_000)).decode()
    for packed in ("x", "AAAA", "é", cut, endless):
        with pytest.raises(ACPOError, match="damaged"):
            unpack_verdicts(packed)
