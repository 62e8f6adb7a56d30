"""`acpo verify` at a shell."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from acpo.cli import app
from conftest import require_tool
from verify.sandboxed import ADD


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
