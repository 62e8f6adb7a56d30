"""What `make docs` adds to the pages: the reference, made from the code, and the files linked to.

Links such as ../results/x.json lead out of docs/; the site has copies of those files. Links to
other files of the repository (tests, sources) become plain text, since the site has none.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("results/", "examples/")
LINK = re.compile(r"\[([^][]*)\]\(\.\./([^)#\s]+)(?:#[^)\s]+)?\)")
API = {
    "The loss": ("acpo.objectives", ["dense_loss", "group_advantages", "get_method", "Method"]),
    "The head": ("acpo.head", ["fused_policy_loss", "TokenTerms", "token_stats"]),
    "The trainer": ("acpo.engines.trl", ["ACPOConfig", "ACPOTrainer"]),
    "Tasks": ("acpo.tasks", ["Task"]),
    "Verdicts": ("acpo.verify", ["verify_math", "verify_code", "Verdict", "MathPool", "CodePool"]),
    "Traces": ("acpo.records", ["Trace"]),
}


def on_files(files: "Files", config: Any) -> "Files":
    """Add generated pages, and copies of what pages link to."""
    from mkdocs.structure.files import File

    for name, text in (
        ("reference/options.md", options_page()),
        ("reference/commands.md", commands_page()),
        ("reference/api.md", api_page()),
    ):
        files.append(File.generated(config, name, content=text))
    linked = set()
    for page in (ROOT / "docs").glob("*.md"):
        linked |= {path for _, path in LINK.findall(page.read_text()) if path.startswith(COPIED)}
    for path in sorted(linked):
        if (ROOT / path).is_file():
            files.append(File.generated(config, _copy(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Lead links out of docs/ to the copies; of other links keep the words."""
    return LINK.sub(_lead, markdown)


def _lead(match: re.Match[str]) -> str:
    words, path = match[1], match[2]
    copied = path.startswith(COPIED) and (ROOT / path).is_file()
    return f"[{words}]({_copy(path)})" if copied else words


def _copy(path: str) -> str:
    """Where the site keeps a file: Markdown as text, so that it is not taken for a page."""
    return f"{path}.txt" if path.endswith(".md") else path


def options_page() -> str:
    """Every option of a recipe, ours first."""
    from acpo.train.recipe import option_groups

    lines = [
        "# Every option of a recipe",
        "",
        "Options of `ACPOConfig` are under *Method and update*.",
    ]
    for title, options in option_groups().items():
        lines += ["", f"## {title}", "", "| option | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {_cell(text)} |" for name, text in options]
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """Every command with its arguments and options."""
    from acpo.cli import app

    lines = ["# Every command's options", ""]
    for path, command in _walk(typer.main.get_command(app)):
        lines += [f"## `acpo {' '.join(path)}`", "", (command.help or "").strip(), ""]
        rows = [
            f"| `{', '.join(item.opts)}` | {_cell(getattr(item, 'help', None) or '')} |"
            for item in command.params
            if "--help" not in item.opts
        ]
        if rows:
            lines += ["| argument or option | meaning |", "|---|---|", *rows, ""]
    return "\n".join(lines) + "\n"


def _walk(command: Any, path: tuple[str, ...] = ()) -> Any:
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name in command.list_commands(None):
        yield from _walk(children[name], (*path, name))


def api_page() -> str:
    """The names people import."""
    lines = ["# API", ""]
    for title, (module, names) in API.items():
        lines += [f"## {title}", ""]
        lines += [f"::: {module}.{name}" + "\n" for name in names]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    escaped = " ".join(str(text).split()).replace("|", "\\|")
    return re.sub(r"([<>*_\[\]{}])", r"\\\1", escaped)
