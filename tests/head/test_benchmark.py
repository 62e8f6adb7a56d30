"""The head's benchmark runs where there is no GPU."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_both_paths_on_a_cpu(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import head

    for run in (head.ours(), head.naive):
        assert head.on_cpu(run, (8, 4, 16))["seconds"] > 0
