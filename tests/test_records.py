"""A trace survives its writer's death, refuses what it is not, and reads what is asked of it."""

import fcntl
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acpo.errors import ACPOError
from acpo.records import Trace, TraceWriter, has_begun, run_state

HEADER = {"model": "tiny", "temperature": 1.0, "vocab_size": 16}


def rollouts(*lengths: int) -> list[dict]:
    return [
        {"prompt_id": "q", "sample": i, "prompt": "1+1:", "completion": "é" * n, "tokens": n}
        for i, n in enumerate(lengths)
    ]


def columns(n: int, seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    return {
        "token_id": rng.integers(0, 16, n),
        "delta": rng.random(n).astype(np.float32),
        "is_mode": rng.random(n) < 0.5,
        "piece": [b"\xf0\x9f"] * n,
        "top_ids": rng.integers(0, 16, (n, 3)),
        "tail_p2": rng.random(n),
    }


def write(path: Path, *parts: tuple[int, ...]) -> None:
    with TraceWriter(path, HEADER) as writer:
        for step, lengths in enumerate(parts):
            writer.append(rollouts(*lengths), columns(sum(lengths), step), step=step)


def test_round_trip_keeps_every_value(tmp_path):
    write(tmp_path / "t", (3, 0, 2), (4,))
    trace = Trace.open(tmp_path / "t")
    assert trace.header["model"] == "tiny"
    assert len(trace) == 9
    assert trace.starts.tolist() == [0, 3, 3, 5, 9]
    assert trace.rollouts["step"].to_pylist() == [0, 0, 0, 1]
    assert trace.rollouts["reward"].null_count == 4
    expected = [columns(5, 0), columns(4, 1)]
    for name in ("token_id", "delta", "is_mode", "tail_p2"):
        joined = np.concatenate([part[name] for part in expected])
        np.testing.assert_array_equal(trace.tokens(name)[name], joined)
    top = np.array(trace.table("top_ids")["top_ids"].to_pylist())
    np.testing.assert_array_equal(top, np.concatenate([p["top_ids"] for p in expected]))
    assert trace.table("piece")["piece"][0].as_py() == b"\xf0\x9f"


def test_a_half_written_part_does_not_count_and_the_writer_goes_on(tmp_path):
    path = tmp_path / "t"
    write(path, (3,), (4,))
    header = path / "header.jsonl"
    whole = header.read_bytes()
    for cut in range(whole.index(b"\n") + 1, len(whole)):
        header.write_bytes(whole[:cut])
        committed = whole[:cut].count(b"\n") - 1
        assert len(Trace.open(path).parts) == committed
    write_again = {"token_id": np.arange(4)}
    with TraceWriter(path, HEADER) as writer:
        writer.append(rollouts(4), write_again, step=1)
    assert Trace.open(path).tokens("token_id")["token_id"][-4:].tolist() == [0, 1, 2, 3]


def test_a_trace_cut_off_before_its_first_line_has_not_begun(tmp_path):
    path = tmp_path / "t"
    write(path, (3,))
    header = path / "header.jsonl"
    assert has_begun(path) and not has_begun(tmp_path)
    first = header.read_bytes().index(b"\n")
    for cut in (0, 1, first):
        header.write_bytes(header.read_bytes()[:cut])
        assert not has_begun(path)
        with pytest.raises(ACPOError, match="cut off before it began"):
            Trace.open(path)
        write(path, (2,))
        assert has_begun(path) and len(Trace.open(path)) == 2


def test_a_writer_that_raced_with_a_rewritten_header_is_refused(tmp_path, monkeypatch):
    """Its lock would be on a file that no longer has a name, and its parts would be lost."""
    path = tmp_path / "t"
    write(path, (1,), (2,))
    lock = fcntl.flock

    def late(file, operation):
        monkeypatch.setattr(fcntl, "flock", lock)
        with TraceWriter(path, HEADER) as other:
            other.drop_from(1)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ACPOError, match="another process"):
        TraceWriter(path, HEADER)
    with TraceWriter(path, HEADER) as writer:
        writer.drop_from(0)
        with pytest.raises(ACPOError, match="another process"):
            TraceWriter(path, HEADER)


def test_half_characters_of_a_data_set_are_replaced(tmp_path):
    with TraceWriter(tmp_path / "t", HEADER) as writer:
        writer.append([{**rollouts(1)[0], "answer": json.loads('"4\\ud800"')}], columns(1))
    assert Trace.open(tmp_path / "t").rollouts["answer"].to_pylist() == ["4?"]


def test_text_that_is_none_is_refused(tmp_path):
    write(tmp_path / "t", (1,))
    file = tmp_path / "t" / "rollouts-00000.parquet"
    table = pq.read_table(file)
    broken = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    index = table.schema.get_field_index("prompt")
    pq.write_table(table.set_column(index, "prompt", broken), file)
    with pytest.raises(ACPOError, match=r"(?i)damaged"):
        _ = Trace.open(tmp_path / "t").rollouts


def test_resuming_forgets_later_steps(tmp_path):
    path = tmp_path / "t"
    write(path, (1,), (2,), (3,))
    with TraceWriter(path, HEADER) as writer:
        writer.drop_from(1)
        writer.append(rollouts(5), columns(5), step=1)
    assert [part["tokens"] for part in Trace.open(path).parts] == [1, 5]


def test_another_header_and_another_writer_are_refused(tmp_path):
    path = tmp_path / "t"
    with TraceWriter(path, HEADER), pytest.raises(ACPOError, match="another process"):
        TraceWriter(path, HEADER)
    with pytest.raises(ACPOError, match=r"temperature=1.0, not 0.5"):
        TraceWriter(path, {**HEADER, "temperature": 0.5})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(ACPOError, match="other files"):
        TraceWriter(tmp_path / "other", HEADER)


def test_missing_columns_name_the_command(tmp_path):
    write(tmp_path / "t", (3,))
    with pytest.raises(ACPOError, match="no entropy, logp: `acpo trace`"):
        Trace.open(tmp_path / "t").tokens("entropy", "logp")
    with TraceWriter(tmp_path / "empty", HEADER):
        pass
    with pytest.raises(ACPOError, match="empty"):
        Trace.open(tmp_path / "empty").tokens("delta")


def test_parts_with_fewer_columns_limit_the_trace(tmp_path):
    with TraceWriter(tmp_path / "t", HEADER) as writer:
        writer.append(rollouts(2), {"token_id": [1, 2], "delta": [0.1, 0.2]})
        writer.append(rollouts(2), {"token_id": [1, 2]})
    assert Trace.open(tmp_path / "t").columns == {"token_id"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"format": "acpo-trace", "version": 2}, "newer"),
        ({"format": "something", "version": 1}, "not a line"),
        ({"format": "acpo-trace", "version": "1"}, "not a line"),
        ([], "not a line"),
    ],
)
def test_foreign_headers_are_refused(tmp_path, line, message):
    (tmp_path / "header.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(ACPOError, match=message):
        Trace.open(tmp_path)


def test_damaged_parts_are_refused(tmp_path):
    with pytest.raises(ACPOError, match="`acpo trace` makes one"):
        Trace.open(tmp_path / "nothing")
    path = tmp_path / "t"
    write(path, (3,), (4,))
    tokens = path / "tokens-00001.parquet"
    whole = tokens.read_bytes()
    tokens.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ACPOError, match="damaged"):
        Trace.open(path).tokens("delta")
    tokens.write_bytes((path / "tokens-00000.parquet").read_bytes())
    with pytest.raises(ACPOError, match="changed"):
        Trace.open(path).tokens("delta")
    tokens.unlink()
    with pytest.raises(ACPOError, match="damaged"):
        Trace.open(path).tokens("delta")


@pytest.mark.parametrize(
    ("rows", "tokens", "message"),
    [
        (rollouts(3), {"token_id": [1]}, "1 rows where the completions have 3"),
        (rollouts(1), {"token_id": [1], "colour": [2]}, "colour"),
        (rollouts(1), {"delta": [0.5]}, "token_id"),
        (rollouts(1), {"token_id": [1], "delta": [0.5, 0.5]}, "do not fit"),
        ([{"prompt_id": "q", "tokens": 1}], {"token_id": [1]}, "no sample"),
        ([{**rollouts(1)[0], "note": "x"}], {"token_id": [1]}, "note"),
        ([{**rollouts(1)[0], "sample": -1}], {"token_id": [1]}, "sample below 0"),
        ([{**rollouts(1)[0], "sample": 10**30}], {"token_id": [1]}, "does not fit"),
    ],
)
def test_what_does_not_fit_is_not_written(tmp_path, rows, tokens, message):
    with TraceWriter(tmp_path / "t", HEADER) as writer:
        with pytest.raises(ACPOError, match=message):
            writer.append(rows, tokens)
        assert not writer.parts
    assert not len(Trace.open(tmp_path / "t"))


def test_killed_at_any_moment_a_trace_is_whole(tmp_path):
    code = (
        "import sys, numpy as np\n"
        "from acpo.records import TraceWriter\n"
        "with TraceWriter(sys.argv[1], {}) as w:\n"
        "    for step in range(10**6):\n"
        "        row = {'prompt_id': 'q', 'sample': 0, 'tokens': 100}\n"
        "        w.append([row], {'token_id': np.full(100, step)}, step=step)\n"
    )
    path, rng = tmp_path / "t", np.random.default_rng()
    committed = 0
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", code, str(path)])
        deadline = time.monotonic() + 60
        while committed_parts(path) <= committed and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.2))
        process.kill()
        process.wait()
        assert committed_parts(path) > committed
        committed = committed_parts(path)
        assert len(Trace.open(path).tokens("token_id")["token_id"]) == 100 * committed


def committed_parts(path: Path) -> int:
    return len(Trace.open(path).parts) if has_begun(path) else 0


@pytest.mark.parametrize("name", ["part", "step", "rollouts", "tokens", "update"])
def test_numbers_no_trace_can_hold_are_refused(tmp_path, name):
    write(tmp_path / "t", (1,))
    header = tmp_path / "t" / "header.jsonl"
    first, part = header.read_text().splitlines()
    header.write_text(f"{first}\n{json.dumps(json.loads(part) | {name: 2**53})}\n")
    with pytest.raises(ACPOError, match="2 is not a line"):
        Trace.open(tmp_path / "t")


def test_the_state_of_a_run_is_the_finished_one_or_of_the_newest_checkpoint_with_one(tmp_path):
    assert run_state(tmp_path / "nowhere") is None
    (tmp_path / "checkpoint-11").mkdir()
    assert run_state(tmp_path) is None
    for name in ("checkpoint-2", "checkpoint-9", "checkpoint-x", "checkpoint-10", "."):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "trainer_state.json").touch()
        of = "checkpoint-9" if name == "checkpoint-x" else name
        assert run_state(tmp_path) == tmp_path / of / "trainer_state.json"
