"""The vLLM benchmarks run, part by part, with the stand-in in vLLM's place."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evaluate.tinymodel import save

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("vllm")
    save(folder / "model")
    for name, first in (("train", 0), ("test", 100)):
        rows = [{"problem": f"{i} + 1?", "answer": str(i + 1)} for i in range(first, first + 16)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(
        "def odd(completion_ids, **_):\n    return [sum(ids) % 2 for ids in completion_ids]\n"
    )
    return folder


def command(place: Path, *more: str) -> list[str]:
    given = {
        "--recipe": str(ROOT / "recipes" / "qwen2.5-0.5b-gsm8k.yaml"),
        "--model_name_or_path": str(place / "model"),
        "--data": str(place / "train.jsonl"),
        "--held_out_data": str(place / "test.jsonl"),
        "--out": str(place / "out"),
        "--logging_steps": "1",
        "--reward_funcs": str(place / "rewards.py:odd"),
    }
    words = [word for pair in given.items() for word in pair]
    return [sys.executable, str(ROOT / "benchmarks" / "vllm_colocated.py"), "--tiny", *words, *more]


PATHS = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "fakevllm")])
ADDED = {"PYTHONPATH": PATHS, "ACPO_COMMIT": "abc1234"}


def read(place: Path, name: str) -> dict:
    found = json.loads((place / "out" / f"vllm_{name}.json").read_text())
    assert "error" not in found, found
    assert found["environment"]["commit"] == "abc1234" and found["environment"]["date"]
    assert "vllm_" in found["environment"]["command"]
    assert found["environment"]["packages"]["vllm"] == "0.25.1"
    return found


def test_every_part_of_one_engine_and_a_killed_run_resumed(place):
    words = ["--folder", str(place / "run"), "--max_steps", "400", "--method", "acpo"]
    words += [
        "--save_strategy",
        "steps",
        "--save_steps",
        "1",
        "--engine",
        '{"enforce_eager": true}',
    ]
    words += ["--benchmarks", str(place / "test.jsonl"), "--limit", "6", "--batch", "4"]
    words += ["--server", "http://127.0.0.1:9/v1", "--mark", str(place / "mark")]
    first = ["--parts", "rollout,evaluate,mark,gap,train"]
    process = subprocess.Popen(command(place, *words, *first), env=os.environ | ADDED, cwd=place)
    saved = place / "run" / "checkpoint-2"
    deadline = time.monotonic() + 900
    while process.poll() is None and not saved.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert saved.exists() and (place / "mark").exists()
    check_parts(place)
    again = ["--parts", "rollout:0.001,train", "--label", "_again", "--resume", "--stop-after", "1"]
    subprocess.run(
        command(place, *words, *again),
        env=os.environ | ADDED, cwd=place, check=True, timeout=900,
    )  # fmt: skip
    trained = read(place, "train_again")
    assert trained["resumed_at"] >= 2 and trained["stopped"]
    assert trained["updates"] == trained["resumed_at"] + 1
    assert trained["curve"][0]["update"] == 1, "the curve of the whole run"
    assert trained["before"]["samples"] == trained["after"]["samples"] == 4
    slow = json.loads((place / "out" / "vllm_rollout_again.json").read_text())
    assert slow["error"] == "TimeoutError: took more than 0.001 s", "and the next part ran"


def check_parts(place: Path) -> None:
    rollout = read(place, "rollout")
    assert rollout["group"] == 4 and rollout["max_new_tokens"] == 8
    for name in ("vllm", "static"):
        assert len(rollout[name]["seconds"]) == 3 and rollout[name]["tokens_per_second"]
    assert rollout["dynamic_sampling"]["rows"] == 16
    gap = read(place, "gap")
    assert gap["gap"]["difference"]["q100"] < 1e-4, "one model, both in float32"
    assert gap["rounding"]["mode"]["aligned_to_mismatched"] == 0
    assert sum(gap["histogram"]["counts"]) == gap["gap"]["tokens"]
    near = gap["cosines"]["acpo"]
    assert near["vllm, vllm sequence_mask"] == pytest.approx(1, abs=1e-3)
    assert near["static 1, static 2"] < 0.999, "other draws"
    evaluated = read(place, "evaluate")
    assert evaluated["test"]["samples"] == 6 and evaluated["test"]["kept_when_broken_off"] == 2
    assert evaluated["transformers"]["samples"] == 6 and evaluated["trace"]["seconds"] > 0
    assert "error" in evaluated["server"], "nobody listens"


def test_a_step_on_vllm_is_measured(place, monkeypatch):
    """TRL gives vLLM the model's own name, which one made from a configuration does not have.

    The engine has a process of its own; the one that starts it is this one.
    """
    out, script = place / "step.json", str(ROOT / "benchmarks" / "step.py")
    words = ["--tiny", "--engines", "acpo-vllm", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [script, *words, "--engine", '{"enforce_eager": true}'])
    for name, value in ADDED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    runpy.run_path(script, run_name="__main__")
    (row,) = json.loads(out.read_text())["rows"]
    assert "error" not in row, row
    assert row["parts"]["sampling"] > 0 and row["vllm_options"] == {"enforce_eager": True}
