"""`acpo verify` at a shell."""

import json
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from acpo.cli import app
from acpo.errors import ACPOError
from acpo.linefile import LineFile
from acpo.verify import Outcome, Verdict
from acpo.verify.batch import Verdicts
from commandline import refused
from conftest import require_tool
from verify.sandboxed import ADD


@pytest.fixture
def kept_pool(pool, monkeypatch):
    """Workers that outlive a run: each imports a computer algebra system when it starts."""
    monkeypatch.setattr("acpo.verify.math.MathPool", lambda *_, **__: nullcontext(pool))


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_math_file(tmp_path):
    rows = [
        {"completion": "\\boxed{1/2}", "answer": "0.5"},
        {"completion": "\\boxed{x+x}", "answer": "2x"},
        {"completion": "\u2028", "answer": "1"},
        {"completion": "\\boxed{1}", "answer": None},
    ]
    out = tmp_path / "out.jsonl"
    shown = run("math", write(tmp_path / "in.jsonl", rows), "--output", out, "--workers", 1)
    counts = {
        line.split("│")[1].split()[0]: int(line.split("│")[2])
        for line in shown.splitlines()
        if "│" in line
    }
    assert counts["correct"] == 2
    assert counts["incorrect"] == counts["unparseable_gold"] == 1
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["reward"] for row in written] == [1.0, 1.0, 0.0, None]
    assert [row["outcome"] for row in written][-1] == "unparseable_gold"
    assert written[0]["answer"] == "0.5"


@pytest.mark.usefixtures("kept_pool")
def test_math_file_in_digits(tmp_path):
    """The same rows judged the other way are judged again: the judge is part of a verdict."""
    rows = [{"completion": f"\\boxed{{{answer}}}", "answer": "12"} for answer in ("12", "5 + 7")]
    source, out = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    for options, rewards in ([], [1.0, 1.0]), (["--in-digits"], [1.0, 0.0]):
        run("math", source, "--output", out, "--workers", 1, *options)
        assert [json.loads(line)["reward"] for line in out.read_text().splitlines()] == rewards


def test_the_output_is_rewritten_after_the_last_verdict_is_kept(tmp_path, monkeypatch):
    keep = Verdicts._add

    def keep_late(self, *verdict):
        time.sleep(0.3)
        keep(self, *verdict)

    def judge(*pair):
        time.sleep(0.3)
        return Verdict(Outcome.CORRECT)

    monkeypatch.setattr(Verdicts, "_add", keep_late)
    rows, out = [{"answer": "1"}, {"answer": "2"}], tmp_path / "out.jsonl"
    pairs = [("\\boxed{1}", "1")] * 2
    with ThreadPoolExecutor(1) as pool, Verdicts(rows, pairs, {}, out) as verdicts:
        verdicts.judge(lambda *pair: pool.submit(judge, *pair))
        verdicts.report()
    assert [json.loads(line)["answer"] for line in out.read_text().splitlines()] == ["1", "2"]


@pytest.mark.usefixtures("kept_pool")
def test_fields_are_named_in_errors(tmp_path):
    path = write(tmp_path / "in.jsonl", [{"text": "\\boxed{1}", "gold": "1"}])
    assert "--text-field" in run("math", path, code=2)
    assert "--gold-field" in run("math", path, "--text-field", "text", code=2)
    run("math", path, "--text-field", "text", "--gold-field", "gold")


@pytest.mark.parametrize("content", ["", "{", "[1]", "\xff"])
def test_files_that_are_no_jsonl(tmp_path, content):
    path = tmp_path / "in.jsonl"
    path.write_bytes(content.encode("latin-1"))
    assert "in.jsonl" in run("math", path, code=2).replace("\n", "")
    assert "none.jsonl" in run("math", tmp_path / "none.jsonl", code=2).replace("\n", "")


@pytest.mark.sandbox
def test_code_file(tmp_path):
    require_tool(shutil.which("bwrap") is not None, "bubblewrap")
    problems = write(tmp_path / "problems.jsonl", [{**ADD, "id": 5}])
    rows = [{"id": 5, "completion": f"def add(a, b): return a {sign} b"} for sign in "+-"]
    path, out = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    run("code", path, "--problems", problems, "--output", out)
    assert [json.loads(line)["reward"] for line in out.read_text().splitlines()] == [1.0, 0.0]
    run("code", write(tmp_path / "whole.jsonl", [{**ADD, **row} for row in rows]))
    other = write(tmp_path / "other.jsonl", [{"id": 6, "completion": ""}])
    assert "id='6'" in run("code", other, "--problems", problems, code=2)


def test_without_bubblewrap_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    path = write(tmp_path / "in.jsonl", [{**ADD, "completion": "x"}])
    assert "apt-get install bubblewrap" in run("code", path, code=2).replace("\n", " ")


@pytest.mark.filterwarnings("ignore::acpo.errors.ACPOWarning")
def test_unsafe_local_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    path = write(tmp_path / "in.jsonl", [{**ADD, "completion": "def add(a, b): return a + b"}])
    assert "with your rights" in run("code", path, "--unsafe-local")
    assert "exclude each other" in run(
        "code", path, "--unsafe-local", "--remote", "http://x", code=2
    )


def test_the_output_folder_is_looked_at_first(tmp_path):
    path = write(tmp_path / "in.jsonl", [{"completion": "\\boxed{1}", "answer": "1"}])
    shown = run("math", path, "--output", tmp_path / "none" / "out.jsonl", code=2)
    assert "there is no folder" in shown.replace("\n", " ")


@pytest.mark.usefixtures("kept_pool")
def test_conversations_and_missing_completions(tmp_path):
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "\\boxed{1}"}]
    rows = [{"completion": chat, "answer": "1"}, {"completion": None, "answer": "1"}]
    out = tmp_path / "out.jsonl"
    run("math", write(tmp_path / "in.jsonl", rows), "--output", out)
    assert [json.loads(line)["reward"] for line in out.read_text().splitlines()] == [1.0, 0.0]


def test_two_problems_of_one_name_are_an_error(tmp_path):
    twice = write(tmp_path / "problems.jsonl", [{**ADD, "id": 5}, {**ADD, "id": 5, "more": 1}])
    path = write(tmp_path / "in.jsonl", [{"id": 5, "completion": ""}])
    assert "id='5'" in run("code", path, "--problems", twice, code=2)


@pytest.mark.usefixtures("kept_pool")
def test_a_second_run_goes_on_where_the_first_stopped(tmp_path):
    rows = [{"completion": f"\\boxed{{{n}}}", "answer": "1", "n": n} for n in (1, 2, 1)]
    rows.append(rows[0])
    path, out = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    run("math", path, "--output", out)
    lines = out.read_text().splitlines()
    assert [json.loads(line)["n"] for line in lines] == [1, 2, 1, 1]
    kept = {**json.loads(lines[1]), "detail": "from before"}
    broken = {**json.loads(lines[2]), "outcome": "infra_error", "reward": None}
    out.write_text(f"{json.dumps(kept)}\n{json.dumps(broken)}\n{lines[0][:20]}")
    run("math", path, "--output", out)
    again = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["n"] for row in again] == [1, 2, 1, 1]
    assert [row["reward"] for row in again] == [1.0, 0.0, 1.0, 1.0]
    assert again[1]["detail"] == "from before"
    other = write(tmp_path / "other.jsonl", [{"completion": "", "answer": "1"}])
    assert "no verdict on a row of this file" in run("math", other, "--output", out, code=2)
    assert len(out.read_text().splitlines()) == 4


def rewards(out) -> list:
    return [json.loads(line)["reward"] for line in out.read_text().splitlines()]


@pytest.mark.usefixtures("kept_pool")
def test_what_is_judged_otherwise_is_judged_again(tmp_path):
    row = {"completion": "\\boxed{1}", "answer": "2", "solution": "1", "second": "\\boxed{2}"}
    path, out = write(tmp_path / "in.jsonl", [row]), tmp_path / "out.jsonl"
    run("math", path, "--output", out)
    assert rewards(out) == [0.0]
    run("math", path, "--output", out, "--gold-field", "solution")
    assert rewards(out) == [1.0]
    run("math", path, "--output", out, "--gold-field", "solution", "--text-field", "second")
    assert rewards(out) == [0.0]
    said = {**json.loads(out.read_text()), "detail": "from before"}
    out.write_text(json.dumps(said) + "\n")
    options = ("--gold-field", "solution", "--text-field", "second")
    run("math", path, "--output", out, *options)
    assert "from before" in out.read_text()
    run("math", path, "--output", out, *options, "--cpu-seconds", 3)
    assert "from before" not in out.read_text()


@pytest.mark.parametrize(
    "content",
    ['{"precious": [1, 2, 3]}', '{"completion": "mine', '{"completion": "a", "answer": "1"}'],
)
def test_what_is_not_ours_is_not_overwritten(tmp_path, content):
    path = write(tmp_path / "in.jsonl", [{"completion": "a", "answer": "1"}])
    out = tmp_path / "results.json"
    out.write_text(content)
    said = run("math", path, "--output", out, code=2)
    assert "there is something else in it" in " ".join(said.split())
    assert out.read_text() == content


@pytest.mark.usefixtures("kept_pool")
def test_the_beginning_of_a_line_of_ours_is_taken_over(tmp_path):
    path = write(tmp_path / "in.jsonl", [{"completion": "\\boxed{1}", "answer": "1"}])
    out = tmp_path / "out.jsonl"
    run("math", path, "--output", out)
    line = out.read_text()
    for cut in (0, 5, 20, line.index("outcome") + 3, len(line) - 1):
        out.write_text(line[:cut])
        run("math", path, "--output", out)
        assert rewards(out) == [1.0]


def interrupted(folder, kind: str, rows: list[dict], enough: int) -> list[dict]:
    """What is on disk after one Ctrl-C, sent when `enough` lines are there."""
    out = folder / "out.jsonl"
    command = [sys.executable, "-m", "acpo", "verify", kind, str(write(folder / "in.jsonl", rows))]
    started = subprocess.Popen(
        [*command, "--output", str(out), "--workers", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A shell's background jobs, the tests among them, are deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    patience = time.monotonic() + 300
    while not out.exists() or len(out.read_text().splitlines()) < enough:
        assert started.poll() is None and time.monotonic() < patience
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    sent = time.monotonic()
    assert started.wait(timeout=60) not in (0, 2)
    assert time.monotonic() - sent < 15  # a second, on a machine of one's own
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_ctrl_c_ends_math(tmp_path):
    hang = {"completion": "\\boxed{\\int (x+y+z+w)^{900} dx}", "answer": "x+1"}
    quick = [{"completion": "\\boxed{1}", "answer": "1"}] * 3
    assert len(interrupted(tmp_path, "math", [hang] * 50 + quick + [hang] * 50, 1)) < 50


@pytest.mark.sandbox
def test_ctrl_c_ends_code(tmp_path):
    require_tool(shutil.which("bwrap") is not None, "bubblewrap")
    sleep = {**ADD, "completion": "import time\ntime.sleep(28)"}
    honest = {**ADD, "completion": "def add(a, b): return a + b"}
    found = interrupted(tmp_path, "code", [honest, *[sleep] * 9], 1)
    assert [row["reward"] for row in found] == [1.0]


def test_a_full_disk_is_one_line(tmp_path, caplog, monkeypatch):
    file, output = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    file.write_text('{"completion": "Answer: 4", "answer": "4"}\n' * 30)

    def full(lines, text):
        if text:  # it opens, and is full at the first verdict
            raise ACPOError(f"{lines.path} cannot be written (No space left on device)")

    monkeypatch.setattr(LineFile, "append", full)
    said = refused("verify", "math", file, "--output", output)
    assert "out.jsonl cannot be written" in said
    assert not caplog.records  # each row had a traceback of its own


def test_verdicts_beside_a_number_keep_its_digits(tmp_path):
    file, output = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    exact, rounded = "0.1234567890123456789", "0.12345678901234568"
    rows = [f'{{"completion": "\\\\boxed{{{one}}}", "answer": {exact}, "far": 1e400}}'
            for one in (exact, rounded)]  # fmt: skip
    file.write_text("\n".join(rows))
    again = tmp_path / "again.jsonl"
    for source, kept in ((file, output), (output, again), (file, output)):
        done = CliRunner().invoke(app, ["verify", "math", str(source), "--output", str(kept)])
        assert done.exit_code == 0, done.output
        lines = [
            json.loads(line, parse_constant=pytest.fail) for line in kept.read_text().splitlines()
        ]
        assert [line["outcome"] for line in lines] == ["correct", "incorrect"]
        assert [(line["answer"], line["far"]) for line in lines] == [(exact, "1e400")] * 2
