"""What the end of a run suggests."""

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
