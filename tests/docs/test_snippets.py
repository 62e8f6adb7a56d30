"""Every Python snippet of README and docs runs, in order, as one reader would type them; every YAML
block is what the text says it is: a recipe, a study or a file of tasks."""

import pytest
import torch
import yaml

from acpo.compare.study_file import read_study
from acpo.objectives import METHODS
from acpo.tasks.registry import get_task
from acpo.train.recipe import option_groups, read_recipe
from docs.pages import DOCUMENTS, ROOT, blocks
from docs.standins import furnish
from train.standin import save_standin

SMALLER = {
    '"Qwen/Qwen3-0.6B"': "MODEL",
    "max_completion_length=512": "max_completion_length=8, max_steps=1",
    'method="acpo", num_generations=8, learning_rate=1e-6': (
        'method="acpo", num_generations=8, learning_rate=1e-6, max_completion_length=8, max_steps=1'
    ),
}
"""What a snippet that needs a hub is tried with instead; it must be there as written."""


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    rows = dict(METHODS)
    yield
    METHODS.clear()  # of rows that a snippet added
    METHODS.update(rows)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_standin(tmp_path_factory.mktemp("model"))


def hub_rows(*names, **options):
    """`datasets.load_dataset`: files are read, a hub's data set has eight rows."""
    from datasets import Dataset
    from datasets.load import load_dataset

    if names[0] == "json":
        return load_dataset(*names, **options)
    rows = [{"question": f"{i} + 1?", "answer": f"It is\n#### {i + 1}"} for i in range(8)]
    return Dataset.from_list(rows)


def given():
    """Names a fragment may take for granted."""
    hidden = torch.randn(6, 8, requires_grad=True)
    return {
        "hidden": hidden,
        "lm_head": torch.nn.Linear(8, 32, bias=False),
        "tokens": torch.arange(6),
        "advantages": torch.ones(6),
        "weights": torch.full((6,), 1 / 6),
        "old_logp": torch.full((6,), -3.0),
    }


PYTHON = [d for d in DOCUMENTS if any(b.language == "python" for b in blocks(d))]


@pytest.mark.parametrize("document", PYTHON, ids=lambda path: path.stem)
def test_python_runs(document, model, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", hub_rows)
    names = given() | {"MODEL": model}
    if document.stem == "traces":
        make_trace()
    for block in blocks(document):
        if block.language != "python":
            continue
        source = block.text
        if block.needs:
            for text, smaller in SMALLER.items():
                source = source.replace(text, smaller)
            assert source != block.text, (
                f"{block.place} needs {block.needs}: teach SMALLER in {__file__} to run it small"
            )
        try:
            exec(compile(source, block.place, "exec"), names)
        except Exception as error:
            raise AssertionError(
                f"{block.place} does not run as written: {error!r}. Mend it, or, if it needs a "
                "hub, say so in its first line: `# needs: hub`"
            ) from error
    if document.name == "README.md":
        assert names["loss"].item() != 0 and names["logits"].grad.abs().sum() > 0
        assert names["trainer"].state.global_step == 1


def make_trace():
    from typer.testing import CliRunner

    from acpo.cli import app

    small = (
        "trace package:acpo/tasks/checkpoints/chain --task chain --max-tokens 24 --n 2 --group 2"
    )
    assert CliRunner().invoke(app, [*small.split(), "--output", "traces/my"]).exit_code == 0


YAML = [b for d in DOCUMENTS for b in blocks(d) if b.language == "yaml"]


@pytest.mark.parametrize("block", YAML, ids=lambda block: block.place)
def test_yaml_is_read(block, tmp_path):
    content = yaml.safe_load(block.text)
    options = {name for group in option_groups().values() for name, _ in group}
    if "methods" in content:
        (tmp_path / "studies").mkdir()
        (tmp_path / "quickstart.yaml").write_text((ROOT / "recipes/quickstart.yaml").read_text())
        path = tmp_path / "studies" / "study.yaml"
        path.write_text(block.text)
        study = read_study(path)
        for task in study.tasks:
            check_chain_fits({**task.recipe_options, **study.options, **task.options})
    elif set(content) <= options:
        path = tmp_path / "recipe.yaml"
        path.write_text(f"model_name_or_path: any\nuse_cpu: true\nbf16: false\n{block.text}")
        read_recipe(path)
    else:
        path = tmp_path / "tasks_of_the_page.yaml"
        path.write_text(block.text)
        for name in content:
            if "gym" not in content[name]:
                (tmp_path / "my_graders.py").write_text("def grade(text, row):\n    return True\n")
            assert get_task(f"{path}:{name}")


def check_chain_fits(options):
    """A step takes four tokens: where answers are cut off, nothing is learnt."""
    if options.get("task") == "chain":
        needed = 4 * int(options["chain_steps"]) + 2
        assert int(options["max_completion_length"]) >= needed, (
            f"chains of {options['chain_steps']} steps need max_completion_length of {needed}"
        )
