"""What the end of a run says and suggests."""

from dataclasses import replace

from acpo.train.report import Report, summary


def test_a_run_of_the_suggested_method_is_not_suggested_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [
        "acpo train r.yaml --method grpo --output_dir runs/grpo",
        "acpo diagnose dynamics runs/acpo runs/grpo --output out",
    ]
    for method, said in {"acpo": "--method grpo", "grpo": "diagnose dynamics"}.items():
        report = Report("r.yaml", "model", method, 0, 1, 1, 1.0, 1.0)
        assert said in summary(report, [], [], commands)


def test_updates_that_changed_nothing_are_told():
    report = Report("r.yaml", "model", "sapo", 0, 5, 5, 1.0, 1.0)
    assert "changed nothing" not in summary(report, [], [], None)
    said = summary(replace(report, skipped_updates=2), [], [], None)
    assert "5 updates of sapo in 1 s\n2 of them changed nothing" in said
