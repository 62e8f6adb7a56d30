"""Every example in the table of conventions of docs/verify.md."""

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parents[2] / "docs" / "verify.md"
HEADING = "| answer | right for | wrong for | because |\n|---|---|---|---|\n"
EXAMPLES = re.compile(r"(?:`[^`]+`(?:, (?=`)|$))*")


class Example(NamedTuple):
    answer: str
    gold: str
    right: bool


def table() -> list[list[str]]:
    """The cells of every row, without the reasons."""
    body = PAGE.read_text(encoding="utf-8").split(HEADING)[1].split("\n\n")[0]
    return [[cell.strip() for cell in row.split("|")[1:4]] for row in body.splitlines()]


def examples() -> list[Example]:
    found = []
    for row in table():
        answers, right, wrong = (re.findall("`([^`]+)`", cell) for cell in row)
        for answer in answers:
            found += [Example(answer, gold, True) for gold in right]
            found += [Example(answer, gold, False) for gold in wrong]
    return found


def test_cells_hold_examples_alone():
    assert [cell for row in table() for cell in row if not EXAMPLES.fullmatch(cell)] == []
    assert len(examples()) >= 150


def test_the_page_says_what_the_verifier_does(pool):
    told = examples()
    verdicts = pool.verify_all((f"\\boxed{{{example.answer}}}", example.gold) for example in told)
    expected = ["correct" if example.right else "incorrect" for example in told]
    given = [verdict.outcome.value for verdict in verdicts]
    differing = [(*e, g) for e, w, g in zip(told, expected, given, strict=True) if w != g]
    assert differing == []
