"""Steps and branches apart, against the raw columns."""

import numpy as np
import pytest

from acpo.diagnose.alignment import alignment
from acpo.diagnose.dynamics import dynamics
from acpo.diagnose.tokens import describe
from acpo.diagnose.trends import trends
from acpo.errors import ACPOError
from acpo.records import Trace, TraceWriter
from diagnose.test_dynamics import make_run

SIGNS = {"Â > 0": 1, "Â < 0": -1, "Â = 0": 0}


@pytest.fixture
def trace(tmp_path):
    """Three steps, each surer than the last; positive completions surer than negative ones."""
    rng = np.random.default_rng(0)
    with TraceWriter(tmp_path / "t", {"source": "train"}) as writer:
        for step in (0, 5, 10):
            rows, p_max = [], []
            for prompt in range(6):
                for sample, advantage in enumerate((1.0, -1.0, 0.0)):
                    name = f"{step}-{prompt}"
                    rows.append({"prompt_id": name, "sample": sample, "tokens": 40})
                    rows[-1]["advantage"] = advantage
                    sure = 0.5 + 0.03 * step + 0.1 * advantage
                    p_max += list(np.clip(rng.normal(sure, 0.05, 40), 0.4, 0.99))
            most = np.array(p_max)
            p = np.where(rng.random(len(most)) < most, most, (1 - most) / 2)
            columns = {"logp": np.log(p), "log_pmax": np.log(most), "entropy": 2 * (1 - most)}
            columns["token_id"] = np.zeros(len(most), dtype=np.int32)
            writer.append(rows, columns, step=step)
    return Trace.open(tmp_path / "t")


def raw(trace, step=None):
    """Flat columns with step and sign of the advantage, by plain loops."""
    columns = trace.tokens("logp", "log_pmax", "entropy")
    rows = trace.rollouts.to_pylist()
    steps = np.concatenate([[row["step"]] * row["tokens"] for row in rows])
    signs = np.concatenate([[row["advantage"]] * row["tokens"] for row in rows])
    near = np.exp(columns["log_pmax"]) - np.exp(columns["logp"]) <= 1e-6
    return steps, signs, near, 1 - np.exp(columns["log_pmax"]), columns["entropy"]


def test_every_step_and_branch_has_its_own_numbers(trace):
    finding = trends(trace)
    steps, signs, near, delta, entropy = raw(trace)
    assert len(finding.rows) == 3 * 4
    for row in finding.rows:
        own = steps == row["step"]
        if row["branch"] != "all":
            own &= signs == SIGNS[row["branch"]]
        assert row["tokens"] == own.sum() and row["prompts"] == 6
        assert row["aligned"] == pytest.approx(near[own].mean())
        assert row["delta"] == pytest.approx(delta[own].mean(), abs=1e-6)
        assert row["entropy"] == pytest.approx(entropy[own].mean(), rel=1e-6)
        assert row["delta_low"] < row["delta"] < row["delta_high"]
    assert "Â > 0, step 0 to 10: mode-aligned" in " ".join(finding.facts)
    assert len(finding.figure.axes) == 4


def test_intervals_of_shares_end_at_1_and_those_of_entropy_do_not(tmp_path):
    most = np.full(80, -0.01)
    p = most.copy()
    p[0] -= 3.0  # the one token beside the mode
    columns = {"logp": p, "log_pmax": most, "entropy": np.repeat([0.9, 1.1], 40)}
    columns["token_id"] = np.zeros(80, dtype=np.int32)
    rows = [{"prompt_id": str(n), "sample": 0, "tokens": 40, "advantage": 1.0} for n in range(2)]
    with TraceWriter(tmp_path / "t", {"source": "train"}) as writer:
        for step in (0, 5):
            writer.append(rows, columns, step=step)
    for row in trends(Trace.open(tmp_path / "t")).rows:
        assert row["aligned"] < row["aligned_high"] == 1.0
        assert row["entropy_high"] > 1.1


def test_coverage_is_split_by_branch(trace):
    finding = alignment(trace)
    _, signs, near, _, _ = raw(trace)
    first = {row["branch"]: row for row in finding.rows if row["threshold"] == 1e-6}
    assert set(first) == {"all", *SIGNS}
    for name, sign in SIGNS.items():
        assert first[name]["coverage"] == pytest.approx(near[signs == sign].mean())
    assert first["Â > 0"]["coverage"] > first["Â < 0"]["coverage"] + 0.1
    assert finding.tables[0].head == ["gap", "all", *SIGNS]
    assert any("by the completion's advantage" in fact for fact in finding.facts)


def test_what_pools_steps_says_so(trace):
    assert "steps 0 to 10, 3 pooled" in describe(trace)
    assert "steps 0 to 10, 3 of them" in trends(trace).source
    assert "step 5, " in describe(trace.of_step(5))
    with pytest.raises(ACPOError, match="holds step 5 only"):
        trends(trace.of_step(5))


def test_two_evaluations_are_points_and_no_curve(tmp_path):
    finding = dynamics([make_run(tmp_path / "run")])
    assert any("logged at 2 steps only" in f and "eval_steps" in f for f in finding.facts)
    accuracy, entropy = (axes.get_lines()[0] for axes in finding.figure.axes[:2])
    assert accuracy.get_linewidth() == 0 and accuracy.get_marker() != "None"
    assert entropy.get_linewidth() > 0


def diverged(path, *, step, tokens):
    """A step of which nothing is left, added to the trace."""
    with TraceWriter(path, {"source": "train"}) as writer:
        row = {"prompt_id": f"d{step}", "sample": 0, "tokens": tokens, "advantage": 1.0}
        nothing = dict.fromkeys(("logp", "log_pmax", "entropy"), np.full(tokens, np.nan))
        writer.append([row], {**nothing, "token_id": np.zeros(tokens, dtype=np.int32)}, step=step)


def test_steps_without_numbers_are_told_and_blamed_on_no_advantage(trace):
    rows = trends(trace).rows
    diverged(trace.path, step=15, tokens=7)
    diverged(trace.path, step=20, tokens=5)
    diverged(trace.path, step=25, tokens=0)
    finding = trends(Trace.open(trace.path))
    assert finding.rows == rows
    told = " ".join(finding.facts)
    assert "12 tokens without finite statistics were left out" in told
    assert "At 2 of 5 steps, first at step 15, no token has finite statistics" in told
    assert "no token has an advantage" not in told
    assert {row[0] for row in finding.tables[0].rows} == {"0", "5", "10"}


def test_a_course_of_nothing_is_refused(tmp_path):
    for step in (1, 2):
        diverged(tmp_path / "t", step=step, tokens=3)
    with pytest.raises(ACPOError, match="none of its 6 tokens has usable statistics"):
        trends(Trace.open(tmp_path / "t"))
