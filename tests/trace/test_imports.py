"""Other trainers' rollouts become traces; files that are not theirs are told so."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from acpo.cli import app
from acpo.errors import ACPOError
from acpo.method_columns import method_columns
from acpo.records import Trace
from acpo.trace.imports import read_rollouts

CHAIN = "package:acpo/tasks/checkpoints/chain"
PROMPTS = ["3+6+6+6*6*5:", "9*7-8*4+1-2:"]
TEXTS = ["3+6=9+6=5+6=1*6=6*5=0", "3+6=8+6=4+6=0*6=0*5=0", "9*7=3"]


def run(*arguments, ok=True):
    result = CliRunner().invoke(app, ["import", *map(str, arguments)])
    assert (result.exit_code == 0) == ok, result.output
    return result.output


def verl(folder):
    """One file per step, as verl's trainers dump them; groups of two and of one."""
    folder.mkdir()
    for step in (1, 2):
        rows = [
            {"input": PROMPTS[0], "output": TEXTS[0], "gts": "0", "score": 1.0, "step": step},
            {"input": PROMPTS[0], "output": TEXTS[1], "gts": "0", "score": 0.0, "step": step},
            {"input": PROMPTS[1], "output": TEXTS[2], "gts": "9", "score": 0.0, "step": step},
        ]
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def trl(folder):
    (folder / "completions").mkdir(parents=True)
    table = {
        "step": [5, 5],
        "prompt": [PROMPTS[0], PROMPTS[0]],
        "completion": TEXTS[:2],
        "chain_reward": [1.0, 0.0],
        "format_reward": [0.5, None],
        "advantage": [0.7, -0.7],
    }
    pq.write_table(pa.table(table), folder / "completions" / "completions_00005.parquet")
    return folder


@pytest.mark.parametrize(("make", "steps"), [(verl, [1, 1, 1, 2, 2, 2]), (trl, [5, 5])])
def test_rollouts_become_a_trace_of_the_same_texts(tmp_path, make, steps):
    source = make(tmp_path / "theirs")
    run(source, "--model", CHAIN, "--output", tmp_path / "t", "--device", "cpu")
    trace = Trace.open(tmp_path / "t")
    rows = trace.rollouts.to_pylist()
    assert [row["step"] for row in rows] == steps
    assert [row["completion"] for row in rows[:2]] == TEXTS[:2]
    assert rows[0]["prompt"] == PROMPTS[0] and rows[0]["prompt_id"] == rows[1]["prompt_id"]
    assert rows[0]["reward"] == (1.0 if make is verl else 1.5) and rows[0]["advantage"] > 0
    assert trace.header["retokenised"] is True and "old_logp" not in trace.columns
    assert np.isfinite(method_columns(trace, "acpo").update).all()
    assert "holds a trace already" in run(
        source, "--model", CHAIN, "--output", tmp_path / "t", ok=False
    )


BAD = {
    "1.jsonl": "{not json}\n",
    "2.jsonl": '{"output": "x"}\n',
    "3.jsonl": '{"input": "p", "output": 3}\n',
    "4.jsonl": '{"input": "p", "output": "x", "score": "high"}\n',
    "5.jsonl": '{"input": "p", "output": "x", "step": -1}\n',
    "completions_1.parquet": "PAR1 and no more",
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_are_not_theirs(tmp_path, name):
    (tmp_path / name).write_text(BAD[name])
    with pytest.raises(ACPOError, match=name):
        read_rollouts(tmp_path)


def test_pickles_are_not_opened(tmp_path):
    (tmp_path / "rollout_0.pt").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ACPOError, match="neither verl's"):
        read_rollouts(tmp_path)
