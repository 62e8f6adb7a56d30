"""The examples run as written, and learn."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

LOOP = str(Path(__file__).resolve().parents[1] / "examples" / "loop.py")


def test_the_loop_learns():
    command = [sys.executable, LOOP, "--steps", "8", "--prompts", "16"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    rewards = [float(x) for x in re.findall(r"reward ([\d.]+)", result.stdout)]
    ratios = re.findall(r"ratio ([\d.]+) to ([\d.]+)", result.stdout)
    assert len(rewards) == 8 and sum(rewards[-3:]) > sum(rewards[:3])
    assert all(float(low) < 1 < float(high) for low, high in ratios), "the second update is off"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--method", "dr_grpo"], "ratio"),
        (["--prompts", "1", "--group", "1"], "equal in every group: no update"),
    ],
)
def test_the_loop_ends_well(monkeypatch, capsys, options, said):
    monkeypatch.setattr(sys, "argv", [LOOP, "--steps", "1", *options])
    runpy.run_path(LOOP, run_name="__main__")
    assert said in capsys.readouterr().out


def test_rows_that_need_more_than_a_loop_are_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [LOOP, "--method", "8020"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(LOOP, run_name="__main__")
    assert ended.value.code == 2 and "looks at the whole batch first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--method", "acpoo"], "did you mean 'acpo'?"), (["--updates", "0"], "--updates 0 must be")],
)
def test_the_loop_refuses_in_one_line(monkeypatch, capsys, options, said):
    monkeypatch.setattr(sys, "argv", [LOOP, *options])
    with pytest.raises(SystemExit):
        runpy.run_path(LOOP, run_name="__main__")
    assert said in capsys.readouterr().err
