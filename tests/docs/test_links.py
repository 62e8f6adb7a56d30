"""What the documents link to is there, heading by heading."""

import re

import pytest

from docs.pages import DOCUMENTS, ROOT


def anchor(heading: str) -> str:
    """A heading as GitHub and the site link to it."""
    text = re.sub(r"`|\[([^]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path) -> set[str]:
    return {anchor(line) for line in re.findall(r"^#+ (.+)$", path.read_text(), re.M)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    missing = []
    for link, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", document.read_text()):
        if "://" in link or (document.parent.name == "templates" and "{" in link):
            continue
        target = (document.parent / link).resolve() if link else document
        if not target.exists():
            missing.append(f"{link} is not there")
        elif heading and target.suffix == ".md" and heading not in anchors(target):
            missing.append(f"{link}#{heading}: no such heading in {target.name}")
    assert not missing, f"{document.relative_to(ROOT)}: " + "; ".join(missing)
