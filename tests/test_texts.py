import pytest

from acpo.texts import folder_name


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-8B-Base", "Qwen_Qwen3-8B-Base"),
        ("./runs/mine/", "runs_mine"),
        (".", "here"),
        ("..", "above"),
        ("日本", "日本"),
        ("_._", "model"),
        ("/", "model"),
    ],
)
def test_folders_of_results_are_named_after_models(tmp_path, monkeypatch, model, name):
    """Never by no name, which would be the folder of all models."""
    (tmp_path / "above" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "above" / "here")
    assert folder_name(model) == name
