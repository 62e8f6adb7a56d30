"""Runs become curves: seeds are bands, and a folder that is no run is told so."""

import json
from pathlib import Path

import pytest

from acpo.diagnose.dynamics import dynamics, read_run
from acpo.errors import ACPOError


def make_run(path: Path, *, method: str = "acpo", seed: int = 0, steps=(1, 2, 3), lift=0.0) -> Path:
    history = [{"step": 0, "eval_rewards/r/mean": 0.1, "eval_rewards/r/std": 9.0}]
    history += [
        {"step": s, "reward": s / 10 + lift, "entropy": 1 / s, "completions/mean_length": 20.0}
        for s in steps
    ]
    history += [{"step": steps[-1], "eval_rewards/r/mean": 0.5 + lift, "train_loss": 0.1}]
    path.mkdir(parents=True)
    (path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    (path / "report.json").write_text(json.dumps({"method": method, "seed": seed}))
    return path


def value(finding, **wanted):
    (row,) = [r for r in finding.rows if all(r[key] == v for key, v in wanted.items())]
    return row


def test_seeds_of_a_method_are_one_band(tmp_path):
    runs = [make_run(tmp_path / f"a{seed}", seed=seed, lift=0.1 * seed) for seed in range(3)]
    runs.append(make_run(tmp_path / "s", method="sapo"))
    finding = dynamics(runs)
    row = value(finding, group="acpo", curve="reward", step=2)
    assert (row["mean"], row["min"], row["max"], row["runs"]) == pytest.approx((0.3, 0.2, 0.4, 3))
    row = value(finding, group="acpo", curve="accuracy", step=3)
    assert (row["mean"], row["min"], row["max"]) == pytest.approx((0.6, 0.5, 0.7))
    assert value(finding, group="sapo", curve="length", step=1)["mean"] == 20
    assert finding.source == "4 runs: acpo (3 seeds), sapo (1 seed)"
    assert dynamics(runs[:1]).source == "1 run: acpo (1 seed)"
    assert finding.tables[0].rows[0][2] == "0.6 [0.5, 0.7]"
    assert {row["group"] for row in dynamics(runs, by_run=True).rows} == {str(r) for r in runs}


def test_only_common_steps_are_averaged(tmp_path):
    runs = [
        make_run(tmp_path / "a", steps=(1, 2, 3)),
        make_run(tmp_path / "b", seed=1, steps=(2, 4)),
    ]
    steps = [row["step"] for row in dynamics(runs).rows if row["curve"] == "reward"]
    assert steps == [2]
    told = "training reward was logged up to step 4, but by all runs up to step 2 only"
    assert any(told in fact for fact in dynamics(runs).facts)
    apart = [make_run(tmp_path / "c", steps=(1, 3)), make_run(tmp_path / "d", seed=1, steps=(2, 4))]
    with pytest.raises(ACPOError, match="no common step"):
        dynamics(apart)


def test_curves_that_some_runs_did_not_log_say_so(tmp_path):
    runs = [make_run(tmp_path / f"r{seed}", seed=seed) for seed in range(2)]
    state = json.loads((runs[1] / "trainer_state.json").read_text())
    state["log_history"] = [row for row in state["log_history"] if "reward" in row]
    (runs[1] / "trainer_state.json").write_text(json.dumps(state))
    finding = dynamics(runs)
    assert finding.tables[0].rows[0][2] == "0.5 (1 seed only)"
    assert "held-out accuracy 0.1 to 0.5 (1 seed only); entropy" in finding.facts[0]
    shown = [axes.get_legend().get_texts()[0].get_text() for axes in finding.figure.axes]
    assert shown == ["acpo (1 seed)", *["acpo (2 seeds)"] * 3]


def test_a_run_whose_name_begins_as_hidden_ones_do_is_named(tmp_path):
    figure = dynamics([make_run(tmp_path / "a", method="_mine")]).figure
    assert "_mine (1 seed)" in figure.axes[0].get_legend().get_texts()[0].get_text()


def test_what_a_run_calls_itself_can_be_written(tmp_path):
    finding = dynamics([make_run(tmp_path / "a", method="=half \ud800\ra line")])
    finding.write(tmp_path / "out")
    assert (
        (tmp_path / "out" / "dynamics.csv")
        .read_text()
        .split("\n")[1]
        .startswith("'=half   a line,")
    )


def test_equal_seeds_are_refused(tmp_path):
    with pytest.raises(ACPOError, match=r"both acpo with seed 0.*--group-by run"):
        dynamics([make_run(tmp_path / "a"), make_run(tmp_path / "b")])
    with pytest.raises(ACPOError, match="no run"):
        dynamics([])


def test_an_unfinished_run_is_read_from_its_newest_checkpoint(tmp_path):
    run = make_run(tmp_path / "run")
    for step in (2, 10):
        state = {"log_history": [{"step": step, "reward": 0.5}]}
        (run / f"checkpoint-{step}").mkdir()
        (run / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(state))
    (run / "checkpoint-old").mkdir()
    (run / "trainer_state.json").unlink()
    (run / "report.json").unlink()
    read = read_run(run)
    assert read.curves == {"reward": {10: 0.5}}
    assert (read.method, read.seed) == ("run", None)
    assert dynamics([run]).facts == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "damaged"),
        ("[1, 2]", "damaged"),
        ("[" * 100_000, "damaged"),
        ('{"log_history": 3}', "no log_history"),
        ('{"log_history": [3]}', "no log_history"),
        ('{"log_history": []}', "logged none"),
        ('{"log_history": [{"step": 1, "reward": NaN}]}', "logged none"),
        ('{"log_history": [{"step": 1, "reward": 1' + "0" * 400 + "}]}", "logged none"),
        ('{"log_history": [{"step": 1, "reward": 1e308}]}', "logged none"),
        ('{"log_history": [{"step": "1", "reward": 1}]}', "logged none"),
        ('{"log_history": [{"step": -1, "reward": 1}]}', "logged none"),
        ('{"log_history": [{"step": 1' + "0" * 400 + ', "reward": 1}]}', "logged none"),
        ('{"log_history": [{"step": 1, "reward": "high"}]}', "logged none"),
    ],
    ids=lambda text: text[:30],
)
def test_damaged_runs(tmp_path, content, message):
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(ACPOError, match=message):
        dynamics([tmp_path])


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(ACPOError, match=r"holds no trainer_state.json.*acpo train"):
        dynamics([tmp_path])
    with pytest.raises(ACPOError, match="holds no"):
        dynamics([tmp_path / "absent"])
