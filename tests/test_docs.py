"""What the documents say is there is there, and the README's first code runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    text = document.read_text()
    links = re.findall(r"\]\(([^)#\s]+)", text)
    missing = [
        link
        for link in links
        if "://" not in link and not (document.parent / link).resolve().exists()
    ]
    assert not missing


def test_readme_loss_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    names: dict = {}
    exec(blocks[0], names)
    assert names["loss"].item() != 0
    assert names["logits"].grad.abs().sum() > 0


def test_readme_trainer_names_exist():
    import acpo
    from acpo.verify.rewards import math_reward

    assert acpo.ACPOTrainer and acpo.ACPOConfig and callable(math_reward())
