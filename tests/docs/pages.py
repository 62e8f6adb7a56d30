"""The documents as blocks of code, shell commands and inline commands."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
PROGRAMS = (
    *("acpo", "python", "make", "pip", "accelerate", "torchrun", "cat", "ray", "git", "cd"),
    "source",
)
NEEDS = re.compile(r"#\s*needs:\s*(?P<what>.+)$", re.M)
PLACEHOLDER = re.compile(r"\[|\.\.\.|(?<![\w./-])(?:[A-Z][A-Z_]+|N)(?:\.\w+)?(?![\w=])")


class Block(NamedTuple):
    """A code block: where it begins, its language, its text, what it says it needs."""

    document: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    @property
    def needs(self) -> str | None:
        """What the first line says the block needs: `# needs: GPU, hub`."""
        first = next((line for line in self.text.splitlines() if line.strip()), "")
        found = NEEDS.match(first.strip())
        return found["what"].strip() if found else None


class Command(NamedTuple):
    """One shell command of a block."""

    block: Block
    words: tuple[str, ...]
    needs: str | None
    pattern: bool

    @property
    def text(self) -> str:
        return shlex.join(self.words)

    def __str__(self) -> str:
        return f"{self.block.place}: {self.text}"


def blocks(document: Path) -> list[Block]:
    """Every fenced and indented block."""
    tokens = MarkdownIt("commonmark").enable("table").parse(document.read_text())
    return [
        Block(document, (token.map or [0])[0] + 1, token.info.strip(), token.content)
        for token in tokens
        if token.type in ("fence", "code_block")
    ]


def is_shell(block: Block) -> bool:
    """Whether its first command is one."""
    if block.language not in ("", "bash", "sh", "console"):
        return False
    lines = [line for line in block.text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.lstrip().startswith("#")]
    return bool(lines) and _program(lines[0].split()) is not None


def commands(document: Path) -> list[Command]:
    """Every command of every shell block, continuation lines joined."""
    found = []
    for block in filter(is_shell, blocks(document)):
        # A synopsis goes on, indented, on the next line.
        text = re.sub(r"\\\n|\n(?=\s+[\[-])", " ", block.text)
        for line in text.splitlines():
            marked = NEEDS.search(line)
            bare = NEEDS.sub("", line)
            words = shlex.split(bare, comments=True)
            if words:
                needs = marked["what"].strip() if marked else block.needs
                pattern = bool(PLACEHOLDER.search(re.sub(r"(^|\s)#.*", "", bare)))
                found.append(Command(block, tuple(words), needs, pattern))
    return found


def inline_commands(document: Path) -> list[str]:
    """`acpo ...` in running text."""
    text = document.read_text()
    return [
        " ".join(code.split()) for code in re.findall(r"(?<!`)`(acpo [a-z][^`]*)`(?!`)", text, re.S)
    ]


def _program(words: list[str]) -> str | None:
    for word in words:
        if re.fullmatch(r"[A-Z_]+=\S*", word):
            continue
        known = word in PROGRAMS or word.startswith(("recipes/verl/", ".venv/bin/"))
        return word if known else None
    return None


def program(command: Command) -> tuple[str | None, list[str]]:
    """The program of a command and its arguments; variables in front of it are left out."""
    words = list(command.words)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    return _program(words), words[1:]
