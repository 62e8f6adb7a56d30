"""The benchmark of the sampler runs, tells of every leg, and keeps what it found."""

import json
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_leg_is_told_and_kept(tmp_path, monkeypatch, capsys):
    out = tmp_path / "sampling.json"
    sizes = "--rows 3 --group 2 --prompt 5 --tokens 4 --layers 1 --repeats 1 --generate-tokens 2"
    command = [str(ROOT / "benchmarks" / "sampling.py"), "--out", str(out)]
    command += ["--baseline", str(ROOT / "src"), *sizes.split(), "--check-tokens", "3"]
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(sys, "argv", command)
    runpy.run_path(command[0], run_name="__main__")  # the baseline is in a process of its own
    record = json.loads(out.read_text())
    legs = ("static", "uncompiled", "tail", "tail_in_a_quarter", "generate", "baseline")
    told = [line.partition(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert told[:-1] == [*legs, "drawn"]
    assert all(record[leg]["tokens_per_second"] > 0 for leg in legs)
    assert len(record["static"]["seconds"]) == 1 and record["tail"]["tokens"] <= 12
    assert record["same_completions"] == "3 of 3" and record["speedup"] > 0
