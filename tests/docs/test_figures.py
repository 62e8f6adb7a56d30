"""Every figure of README and docs is what the file it cites says."""

import json
import re

import pytest
from typer.testing import CliRunner

from acpo.cli import app
from docs.claims import CLAIMS, load
from docs.pages import DOCUMENTS, ROOT

CITED = re.compile(r"results/[\w./-]*?\.(?:json|jsonl|csv)\b")
NOT_THERE = {"results/update.json"}
"""Files a benchmark would write: named in a command, cited nowhere."""

COMMANDS_ONLY = {
    "results/diagnose/quickstart.json",
    "results/diagnose/blame-quickstart.json",
}
"""Files that hold the commands; the figures stand in the files beside them."""


def squeezed(text):
    return " ".join(text.split())


@pytest.mark.parametrize(
    "document, file, texts", CLAIMS, ids=lambda value: getattr(value, "__name__", None)
)
def test_claim(document, file, texts):
    page = squeezed((ROOT / document).read_text())
    missing = [text for text in texts(load(file)) if squeezed(text) not in page]
    told = "\n  ".join(missing)
    assert not missing, (
        f"{document} is stale, or {file} is. From the file follows, word for word:\n  {told}\n"
        f"Write that, or change `{texts.__name__}` in tests/docs/claims.py if the sentence changed."
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_every_cited_file_is_held_to(document):
    name = str(document.relative_to(ROOT))
    held = {file for page, file, _ in CLAIMS if page == name}
    commands = re.findall(r"--(?:out|output) (\S+)", document.read_text())
    cited = set(CITED.findall(document.read_text())) - NOT_THERE - COMMANDS_ONLY
    missing = [
        file
        for file in sorted(cited)
        if file not in held
        and not (file in commands and not (ROOT / file).exists())
        and not (
            file.endswith("/runs.jsonl") and file.replace("runs.jsonl", "summary.json") in held
        )
        and not (name == "docs/compare.md" and file == "results/sampling.json")
    ]
    assert not missing, (
        f"{name} cites {', '.join(missing)}, and no test compares its figures: add a claim to "
        "tests/docs/claims.py that computes the sentence or table row from the file"
    )


def test_files_of_the_readme_say_how_they_were_made():
    for link in set(re.findall(r"\((results/[\w.-]+\.json)\)", (ROOT / "README.md").read_text())):
        text = json.dumps(load(link))
        assert '"command"' in text, f"{link} does not name its command"
        assert re.search(r'"(gpu|device|machine|cpu)": "', text), f"{link} names no machine"


def test_the_plan_is_the_doctors():
    output = CliRunner().invoke(app, ["doctor", "--plan", "2048"]).output
    rows = [line for line in output.splitlines() if line.startswith("| Qwen")]
    page = (ROOT / "docs/settings.md").read_text()
    stale = [row for row in rows if row not in page]
    assert len(rows) == 6 and not stale, "docs/settings.md: copy `acpo doctor --plan 2048`"
    seven = next(row for row in rows if "7B" in row).split("|")
    words = {"1": "one", "2": "two", "4": "four", "8": "eight"}
    large, medium = words[seven[-2].strip()], words[seven[-3].strip()]
    index = (ROOT / "docs/index.md").read_text()
    assert f"{large} of 141 GB, or {medium} of 80 GB" in index


def test_a_stale_figure_is_found(tmp_path):
    (document, file, texts), *_ = CLAIMS
    changed = load(file)
    changed["train_seconds_max"] = 99
    page = squeezed((ROOT / document).read_text())
    assert squeezed(texts(changed)[0]) not in page
