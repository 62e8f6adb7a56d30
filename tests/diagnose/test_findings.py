"""Every analysis: right numbers, sound files, and a plain word for what cannot be analysed."""

import csv
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from acpo.diagnose import geometry, tokens
from acpo.diagnose.alignment import PAPER, THRESHOLDS, alignment
from acpo.diagnose.coupling import Gate, coupling
from acpo.diagnose.envelope import envelope, moving_average
from acpo.diagnose.gradients import composites, gradients
from acpo.diagnose.mismatch import mismatch
from acpo.diagnose.tokens import clustered_share
from acpo.errors import ACPOError
from acpo.objectives import theory
from acpo.records import Trace, TraceWriter
from diagnose.traces import HEADER, make_trace

ANALYSES = [gradients, mismatch, alignment, envelope]


def everything(trace: Trace) -> tokens.Chunk:
    (chunk,) = tokens.chunks(trace, *geometry.COLUMNS, size=1 << 30)
    return chunk


def numbers(rows, **wanted):
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def test_gradients_count_what_is_there(tmp_path):
    trace = make_trace(tmp_path / "t", parts=1, rollouts=6, length=300)
    finding = gradients(trace)
    chunk = everything(trace)
    t, positive = chunk.scalars, chunk.advantage > 0
    h_max = t.entropy.max()
    assert f"H_max = {h_max:.4f}" in finding.source
    for name, update in composites(t, h_max):
        for group, aligned in (("aligned", t.is_mode), ("mismatched", ~t.is_mode)):
            cosine = update.cosine[aligned & positive]
            rows = numbers(finding.rows, panel="composite_cosine", signal=name, group=group)
            assert sum(row["tokens"] for row in rows) == len(cosine) > 0
            assert sum(row["below_zero"] for row in rows) == (cosine < 0).sum()
            assert min(row["min"] for row in rows) == cosine.min()
    ratio = geometry.shannon(t, h_max).ratio[t.is_mode]
    rows = numbers(finding.rows, panel="norm_ratio", signal="entropy", group="aligned")
    assert sum(row["above_one"] for row in rows) == (ratio > 1).sum() > 0
    total = sum(row["mean"] * row["tokens"] for row in rows)
    assert total / len(ratio) == pytest.approx(ratio.mean())
    fixed = gradients(trace, h_max=2 * h_max)
    again = numbers(fixed.rows, panel="norm_ratio", signal="entropy", group="aligned")
    assert max(row["max"] for row in again) == pytest.approx(ratio.max() / 2)


def test_mismatch_counts_reversals_by_gap(tmp_path):
    trace = make_trace(
        tmp_path / "t", choose="second", rollouts=6, length=200, advantages=(1.0, -1.0, 0.0)
    )
    finding = mismatch(trace)
    unrouted = numbers(finding.rows, branch="non-positive", routing="unrouted")
    reversed_rows = [row for row in unrouted if row["below_zero"]]
    assert reversed_rows
    assert max(row["from"] for row in reversed_rows) < theory.mismatch_reversal_gap(1.05)
    for kind in ("routed", "unrouted"):
        rows = numbers(finding.rows, branch="positive", routing=kind)
        assert sum(row["tokens"] for row in rows) == 2 * 2 * 200
        assert not any(row["below_zero"] for row in rows)
    routed = numbers(finding.rows, branch="non-positive", routing="routed")
    assert sum(row["tokens"] for row in routed) == 2 * 2 * 200, "advantage 0 is left out"
    assert not any(row["below_zero"] for row in routed)


def test_alignment_covers_at_nine_thresholds(tmp_path):
    gaps = np.array([0, 5e-7, 0.005, 0.015, 0.03, 0.08, 0.15, 0.25, 0.4, 0.7])
    p_max = 0.8
    n = 2 * len(gaps)
    columns = {
        "log_pmax": np.full(n, np.log(p_max)),
        "logp": np.log(np.tile(p_max - gaps, 2)),
    }
    trace = make_trace(tmp_path / "t", parts=1, rollouts=2, length=10, change=columns)
    rows = alignment(trace).rows
    coverage = [row["coverage"] for row in rows if row["branch"] == "all"]
    expected = [(gaps <= threshold + 1e-12).mean() for threshold in THRESHOLDS]
    np.testing.assert_allclose(coverage, expected)
    assert len(THRESHOLDS) == len(PAPER) == 9
    ours, papers = alignment(trace).tables
    assert "not measured here" in papers.title
    assert "83.90%" not in {cell for row in ours.rows for cell in row}


def test_clustered_intervals_cover():
    """95% intervals of a share that varies by prompt cover it about 95 times in 100."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(600):
        total = rng.integers(50, 150, 40)
        own = np.clip(rng.normal(0.8, 0.1, 40), 0, 1)
        within = rng.binomial(total, own)
        _, low, high = clustered_share(within[:, None], total)
        covered += low[0] <= 0.8 <= high[0]
    assert 0.90 <= covered / 600 <= 0.98
    assert np.isnan(clustered_share(np.array([[3]]), np.array([4]))[1]).all()


def test_envelope_of_a_trace(tmp_path):
    trace = make_trace(tmp_path / "t", length=150)
    finding = envelope(trace)
    assert any(fact.startswith("0 of 1,200 tokens lie outside") for fact in finding.facts)
    assert sum(row["tokens"] for row in finding.extra["tokens"]) == 1200
    rollout = finding.extra["rollout"]
    assert len(rollout) == 150
    delta = np.array([row["delta"] for row in rollout])
    assert np.isnan(rollout[48]["delta_average"])
    assert rollout[49]["delta_average"] == pytest.approx(delta[:50].mean())
    assert rollout[149]["delta_average"] == pytest.approx(delta[100:].mean())
    wrong = make_trace(tmp_path / "w", length=150, change={"entropy": np.full(600, 1.0)})
    delta = wrong.tokens("delta")["delta"].astype(float)
    most = -(1 - delta) * np.log1p(-delta) - delta * np.log(delta / 39)  # the rest spread evenly
    outside = int(((most < 1 - 1e-4) | (-np.log1p(-delta) > 1 + 1e-4)).sum())
    assert 0 < outside < 1200
    assert any(fact.startswith(f"{outside:,} of 1,200 tokens") for fact in envelope(wrong).facts)


def test_certain_tokens_have_no_place_between_the_bounds(tmp_path):
    """Where p_max is 1 the bounds meet: such tokens must not pull the mean place to 0."""
    half = {"log_pmax": np.log(np.full(400, 0.5)), "entropy": np.full(400, 2.0)}
    told = _place(envelope(make_trace(tmp_path / "all", parts=1, change=half)))
    half["log_pmax"][::2], half["entropy"][::2] = 0.0, 0.0
    assert _place(envelope(make_trace(tmp_path / "some", parts=1, change=half))) == told != "0.0%"


def _place(finding):
    return re.search(r"a token lies (\S+) of the way", " ".join(finding.facts))[1]


def test_the_envelope_refuses_a_completion_that_is_not_there(tmp_path):
    trace = make_trace(tmp_path, parts=2)
    for number in (-1, 8):
        with pytest.raises(ACPOError, match="the trace has completions 0 to 7"):
            envelope(trace, rollout=number)


def test_envelope_without_a_trace():
    finding = envelope(support=10)
    table = {row[0]: row[1] for row in finding.tables[0].rows}
    assert table == {"5": "0.7178", "10": "1.1010", "20": "1.5235", "40": "1.9803", "100": "2.6286"}
    assert envelope().tables[0].rows[-1][0] == "151,936"
    with pytest.raises(ACPOError, match="at least 2 tokens"):
        envelope(support=1)


def test_one_rollout_can_be_chosen(tmp_path):
    trace = make_trace(tmp_path / "t", parts=2, rollouts=2, length=30)
    chosen = envelope(trace, rollout=3)
    assert "completion 3 (30 tokens)" in " ".join(chosen.facts)
    last = trace.tokens("delta")["delta"][-30:]
    np.testing.assert_allclose([row["delta"] for row in chosen.extra["rollout"]], last, rtol=1e-6)
    with pytest.raises(ACPOError, match="completions 0 to 3"):
        envelope(trace, rollout=4)


def test_moving_average():
    np.testing.assert_allclose(moving_average(np.array([1.0, 2, 3, 6]), 2), [1.5, 2.5, 4.5])


def test_coupling_counts_reversals(tmp_path):
    """One aligned positive token in four is far off-policy and starts where updates reverse."""
    n = 2 * 8
    w, old = np.tile([1.0, 2.0, 3.0, 3.0], 4), np.tile([0.3, 0.3, 0.3, 0.2], 4)
    columns = {"logp": np.log(w * old), "old_logp": np.log(old), "is_mode": np.ones(n, dtype=bool)}
    trace = make_trace(tmp_path / "t", parts=1, rollouts=2, length=8, change=columns)
    modulation = theory.positive_modulation(w * old, w)
    assert (modulation < 0).sum() == n // 4
    facts = " ".join(coupling(trace).facts)
    assert "2 of 8 aligned positive-advantage tokens (25.0000%)" in facts
    assert "75.00% of 16 tokens" in facts


def test_coupling_on_policy_has_no_reversal(tmp_path):
    trace = make_trace(tmp_path / "t", parts=1)
    logp = trace.tokens("logp")["logp"]
    same = make_trace(tmp_path / "s", parts=1, change={"old_logp": logp})
    facts = " ".join(coupling(same).facts)
    assert "w = 1 by construction" in facts and "off-policy" not in facts
    assert "(0.0000%)" in facts
    of_a_run = {"source": "train"}
    run = make_trace(tmp_path / "r", parts=1, change={"old_logp": logp}, header=of_a_run)
    assert "does not record" in " ".join(coupling(run).facts), "rollouts are scored once"
    of_a_run["updates_per_rollout"] = 1
    one = make_trace(tmp_path / "o", parts=1, change={"old_logp": logp}, header=of_a_run)
    assert "no update is off-policy" in " ".join(coupling(one).facts)
    # The same, but for float32 rounding: confident tokens must not count as reversed.
    noise = np.random.default_rng(0).normal(0, 1e-6, len(logp))
    near = make_trace(tmp_path / "n", parts=1, change={"old_logp": logp + noise})
    assert "(0.0000%)" in " ".join(coupling(near).facts)


def test_coupling_sees_later_updates_where_they_happen(tmp_path):
    """On-policy at the first update of a rollout; at the second one token in four reverses."""
    columns = {"is_mode": np.ones(16, dtype=bool), "token_id": np.zeros(16, dtype=np.int32)}
    old = np.tile([0.3, 0.3, 0.3, 0.2], 4)
    rows = [{"prompt_id": "q", "sample": i, "tokens": 8, "advantage": 1.0 - 2 * i} for i in (0, 1)]
    with TraceWriter(tmp_path / "t", {**HEADER, "source": "train"}) as writer:
        for update, w in enumerate((np.ones(16), np.tile([1.0, 2.0, 3.0, 3.0], 4))):
            ratios = {"logp": np.log(w * old), "old_logp": np.log(old)}
            writer.append(rows, {**columns, **ratios}, step=7, update=update)
    trace = Trace.open(tmp_path / "t").of_step(7)
    assert trace.rollouts.num_rows == 2, "what is scored again is not another completion"
    assert len(trace) == 16 and trace.rollouts["update"].to_pylist() == [0, 0]
    finding = coupling(trace)
    facts = " ".join(finding.facts)
    assert "0 of 8 aligned positive-advantage tokens" in facts
    assert "After 1 further updates w ranges from 1 to 3" in facts
    assert "2 of 8 aligned positive-advantage tokens (25.0000%)" in facts
    assert "construction" not in facts
    first, second = finding.extra["updates"]
    assert (first["moved"], second["moved"]) == (0, 12)
    slope = [float(theory.coupling(w, 1.05)) for w in (1.0, 2.0, 3.0)]
    value = [4 / 1.05 / (1 + np.exp(-1.05 * (w - 1))) for w in (1.0, 2.0, 3.0)]
    gates = np.array(value) / np.array(slope)  # C = f / f'
    assert second["gate_neg"] == pytest.approx((gates * [1, 1, 2]).sum() / 4)


@pytest.mark.parametrize("tau", [0.5, 0.9])
def test_coupling_claims_no_onset_where_updates_reverse_at_once(tau):
    facts = " ".join(coupling(None, Gate(tau_pos=tau)).facts)
    assert "only beyond" not in facts
    at = 3 / (1 + 2 / tau)  # 2 + 1 - p - p C(1) = 0
    assert f"at w = 1 already, where π(y) > {at:.4g}" in facts


def test_coupling_without_a_trace():
    finding = coupling()
    assert any("2.2564" in fact and "0.4432" in fact for fact in finding.facts)
    at_one = min(finding.rows, key=lambda row: abs(row["w"] - 1))
    assert at_one["C_pos"] == pytest.approx(2, abs=0.02)
    with pytest.raises(ACPOError, match=r"tau_pos=0.*positive"):
        coupling(gate=Gate(tau_pos=0))


@pytest.mark.parametrize("analysis", [mismatch, envelope])
def test_files_are_whole_and_the_same_each_time(tmp_path, analysis):
    trace = make_trace(tmp_path / "t")
    contents = []
    for folder in ("a", "b"):
        finding = analysis(trace)
        paths = finding.write(tmp_path / folder, command="acpo diagnose x")
        contents.append({path.name: path.read_bytes() for path in paths})
    assert contents[0] == contents[1]
    name = analysis.__name__
    assert contents[0][f"{name}.png"].startswith(b"\x89PNG")
    assert contents[0][f"{name}.pdf"].startswith(b"%PDF")
    assert b"acpo diagnose x" in contents[0][f"{name}.md"]
    rows = list(csv.DictReader(contents[0][f"{name}.csv"].decode().splitlines()))
    assert len(rows) == len(finding.rows) > 0


@pytest.mark.parametrize("analysis", ANALYSES)
@pytest.mark.parametrize(
    "options",
    [
        {"choose": "mode"},
        {"choose": "second"},
        {"advantages": (None,)},
        {"advantages": (0.0,)},
        {"advantages": (-1.0, None)},
        {"parts": 1, "rollouts": 1, "length": 1},
        {"parts": 1, "rollouts": 1},
        {"vocab": 2},
    ],
    ids=str,
)
def test_lopsided_traces(tmp_path, analysis, options):
    finding = analysis(make_trace(tmp_path / "t", **options))
    assert finding.facts and finding.markdown()


@pytest.mark.parametrize("analysis", [gradients, mismatch])
def test_empty_panels_say_so(tmp_path, analysis):
    finding = analysis(make_trace(tmp_path / "t", choose="mode", advantages=(0.0,)))
    texts = [text.get_text() for axes in finding.figure.axes for text in axes.texts]
    assert texts == ["no such tokens in the trace"] * 2


def test_branches_without_advantages_are_evaluated_everywhere(tmp_path):
    trace = make_trace(tmp_path / "t", advantages=(None,), choose="second")
    finding = mismatch(trace)
    assert any("No completion has an advantage" in fact for fact in finding.facts)
    rows = numbers(finding.rows, branch="positive", routing="unrouted")
    assert sum(row["tokens"] for row in rows) == len(trace)
    zero = mismatch(make_trace(tmp_path / "z", advantages=(0.0,), choose="second"))
    assert not zero.rows
    assert any("no mismatched one has an advantage" in fact for fact in zero.facts)
    asked = mismatch(Trace.open(tmp_path / "z"), every_token=True)
    assert sum(row["tokens"] for row in asked.rows) == 4 * 800
    updates = gradients(Trace.open(tmp_path / "z"), every_token=True).rows
    assert sum(r["tokens"] for r in numbers(updates, panel="composite_cosine")) == 3 * 800


@pytest.mark.parametrize("analysis", [*ANALYSES, coupling])
def test_missing_columns_name_the_command(tmp_path, analysis):
    trace = make_trace(tmp_path / "t", drop=geometry.COLUMNS)
    with pytest.raises(ACPOError, match=r"has no .*`acpo trace`"):
        analysis(trace)


@pytest.mark.parametrize("analysis", [*ANALYSES, coupling])
def test_empty_traces(tmp_path, analysis):
    with TraceWriter(tmp_path / "t", HEADER):
        pass
    with pytest.raises(ACPOError, match="empty"):
        analysis(Trace.open(tmp_path / "t"))


def test_a_vocabulary_of_one_token(tmp_path):
    sure = {name: np.zeros(40) for name in ("logp", "log_pmax", "entropy")}
    sure |= {name: np.zeros(40) for name in geometry.COLUMNS if name.startswith("tail")}
    sure |= {"is_mode": np.ones(40, dtype=bool)}
    trace = make_trace(
        tmp_path / "t", parts=1, rollouts=1, length=40, change=sure, header={"vocab_size": 1}
    )
    with pytest.raises(ACPOError, match="entropy is 0 at every token"):
        gradients(trace)
    with pytest.raises(ACPOError, match="at least 2 tokens"):
        envelope(trace)
    assert "100.00%" in alignment(trace).facts[0]
    assert "none is mismatched" in " ".join(mismatch(trace).facts)


def test_a_vocabulary_that_is_too_small_leaves_all_tokens_outside(tmp_path):
    trace = make_trace(tmp_path / "t", parts=1, rollouts=1, change={"entropy": [3.0] * 100})
    finding = envelope(trace, support=2)
    assert finding.png and "100 of 100 tokens lie outside" in finding.sentence


@pytest.mark.parametrize("size", [None, "many", 0, 2.5, 10**30])
def test_a_header_without_a_vocabulary(tmp_path, size):
    trace = make_trace(tmp_path / "t", header={"vocab_size": size})
    with pytest.raises(ACPOError, match=r"vocab_size=.*--support"):
        envelope(trace)
    assert envelope(trace, support=40).facts


@pytest.mark.parametrize("analysis", ANALYSES)
def test_unusable_tokens_are_left_out_and_counted(tmp_path, analysis):
    values = make_trace(tmp_path / "whole", parts=1).tokens("log_pmax")["log_pmax"].copy()
    values[:3] = np.nan, -np.inf, 0.5
    trace = make_trace(tmp_path / "t", parts=1, change={"log_pmax": values})
    assert any(fact.startswith("3 tokens") for fact in analysis(trace).facts)
    nothing = np.full(400, np.nan)
    with pytest.raises(ACPOError, match="none of its 400 tokens"):
        analysis(make_trace(tmp_path / "n", parts=1, change={"log_pmax": nothing}))


def test_missing_values_are_left_out(tmp_path):
    column = pa.array([None, True, False, None] * 100)
    trace = make_trace(tmp_path / "t", parts=1, change={"is_mode": column})
    assert any("200 tokens were left out" in fact for fact in mismatch(trace).facts)


@pytest.mark.parametrize("analysis", ANALYSES)
def test_truncated_files(tmp_path, analysis):
    trace = make_trace(tmp_path / "t")
    file = tmp_path / "t" / "tokens-00001.parquet"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(ACPOError, match="damaged"):
        analysis(Trace.open(trace.path))


def peak(analysis, trace: Trace) -> int:
    tracemalloc.start()
    try:
        analysis(trace)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_tokens(tmp_path):
    few = make_trace(tmp_path / "few", parts=2, rollouts=4, length=1000)
    many = repeat(few, tmp_path / "many", times=20)
    assert len(many) == 20 * len(few)
    for analysis in ANALYSES:
        analysis(few)  # what is imported and cached once is not the analysis's
        small, large = peak(analysis, few), peak(analysis, many)
        assert large < 1.5 * small + 1_000_000, analysis.__name__


def repeat(trace: Trace, path: Path, *, times: int) -> Trace:
    with TraceWriter(path, HEADER) as writer:
        for _ in range(times):
            for part in tokens.parts_of(trace):
                rows = part.rollouts.drop_columns("step").to_pylist()
                writer.append(rows, part.tokens("token_id", *geometry.COLUMNS, "delta"))
    return Trace.open(path)


def test_chunks_do_not_depend_on_their_size(tmp_path):
    trace = make_trace(tmp_path / "t", parts=3, rollouts=3, length=77)
    for size in (10, 77, 100_000):
        pieces = list(tokens.chunks(trace, "logp", size=size))
        joined = np.concatenate([piece.columns["logp"] for piece in pieces])
        np.testing.assert_array_equal(joined, trace.tokens("logp")["logp"])
        prompt = np.concatenate([piece.prompt for piece in pieces])
        assert prompt.max() == 5 and (np.diff(prompt) >= 0).all()
        advantage = np.concatenate([piece.advantage for piece in pieces])
        assert advantage[:77].tolist() == [1.0] * 77 and advantage[77] == -1.0


def test_tokens_of_a_profile_keep_their_places(tmp_path):
    trace = make_trace(tmp_path / "t", parts=1, rollouts=1, length=30)
    entropy = trace.tokens("entropy")["entropy"].astype(float)
    entropy[[0, 7]] = np.nan
    change = {"entropy": entropy}
    gaps = make_trace(tmp_path / "g", parts=1, rollouts=1, length=30, change=change)
    finding = envelope(gaps)
    kept = [n for n in range(30) if n not in (0, 7)]
    assert [row["token"] for row in finding.extra["rollout"]] == kept
    drawn = finding.figure.axes[2].get_lines()[0]
    assert drawn.get_xdata().tolist() == kept


def test_a_branch_without_tokens_has_no_slope(tmp_path):
    same = make_trace(tmp_path / "t", parts=1, advantages=(1.0,))
    logp = same.tokens("logp")["logp"]
    trace = make_trace(tmp_path / "s", parts=1, advantages=(1.0,), change={"old_logp": logp})
    finding = coupling(trace)
    (row,) = finding.extra["updates"]
    assert row["gate_pos"] == 1 and np.isnan(row["gate_neg"])
    assert finding.tables[1].rows[0][4] == "1 / -"
