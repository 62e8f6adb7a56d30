"""The site's navigation and its generated pages; `make docs` builds it and checks the links."""

import dataclasses
import importlib.util

import pytest
import yaml

from acpo import ACPOConfig
from acpo.train.recipe import TaskArguments
from docs.pages import ROOT


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs/site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries(nav):
    for item in nav:
        for value in item.values():
            yield from [value] if isinstance(value, str) else entries(value)


def test_every_page_is_in_the_navigation_once():
    pages = list(entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    written = {path.name for path in (ROOT / "docs").glob("*.md")}
    made = {"reference/commands.md", "reference/options.md", "reference/api.md"}
    assert sorted(pages) == sorted(written | made), "name every page of docs/ in nav of mkdocs.yml"


def test_the_reference_has_every_option(site):
    page = site.options_page()
    for part in (ACPOConfig, TaskArguments):
        missing = [
            field.name
            for field in dataclasses.fields(part)
            if field.init and f"| `{field.name}` |" not in page
        ]
        assert not missing


def test_every_option_of_ours_says_what_it_means(site):
    from trl import GRPOConfig

    inherited = {field.name for field in dataclasses.fields(GRPOConfig)}
    own = [field for field in dataclasses.fields(ACPOConfig) if field.name not in inherited]
    assert not [field.name for field in own if not field.metadata.get("help")]


def test_the_reference_has_every_command(site):
    page = site.commands_page()
    for command in ("init", "train", "doctor", "eval run", "annotate propose", "data verl"):
        assert f"## `acpo {command}`" in page
    assert "--max-tokens" in page and "--stop-after" in page


def test_api_names_are_there(site):
    for module, names in site.API.values():
        loaded = importlib.import_module(module)
        assert not [name for name in names if not hasattr(loaded, name)]


def test_links_out_of_docs_lead_to_copies(site):
    lead = site.on_page_markdown
    assert lead("![a](../results/view.json)") == "![a](results/view.json)"
    assert (
        lead("[b](../results/first-error/README.md#x)") == "[b](results/first-error/README.md.txt)"
    )
    assert lead("see [c](../tests/conftest.py).") == "see c."
