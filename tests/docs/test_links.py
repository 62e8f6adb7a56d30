"""What the documents link to is there, heading by heading."""

import re

import pytest

from docs.pages import DOCUMENTS, ROOT

LINK = re.compile(r"\[([^][]*)\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


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


def section(path, heading: str) -> str:
    """The text under a heading, up to the next one of its rank or above; without one, the page."""
    lines = path.read_text().splitlines()
    found = [(i, line) for i, line in enumerate(lines) if re.match("#+ ", line)]
    for (i, line), after in zip(found, [*found[1:], None], strict=True):
        if anchor(line.lstrip("# ")) == heading:
            return "\n".join(lines[i : after[0] if after else None])
    assert not heading, f"{path.name} has no heading {heading}"
    return "\n".join(lines)


def answered(first, asked: str, answer: str, clicks: int) -> bool:
    """Whether links that say what is asked lead to the answer in so many clicks."""
    places = {(first, "")}
    for _ in range(clicks):
        led = set()
        for page, heading in places:
            for words, link, to in LINK.findall(section(page, heading)):
                target = (page.parent / link).resolve() if link else page
                if re.search(asked, words, re.I) and target.suffix == ".md" and target.exists():
                    led.add((target, to))
        if any(re.search(answer, section(page, heading)) for page, heading in led if heading):
            return True
        places = led
    return False


QUESTIONS = {
    "which GPU for 7B": ("gpu", r"\| Qwen2.5-7B \|.* 4 \| 2 \|"),
    "how do I add a method": ("add a (method|row)", r'METHODS\["grpo_wide"\] = '),
    "which learning rate": ("learning rate", r"start ACPO at a third"),
}


@pytest.mark.parametrize("first", ["README.md", "docs/index.md"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_readers_question_is_answered_within_two_clicks(question, first):
    asked, answer = QUESTIONS[question]
    assert answered(ROOT / first, asked, answer, clicks=2), f"no link of {first} leads there"
    assert not answered(ROOT / first, asked, "an answer that is nowhere", clicks=2)
