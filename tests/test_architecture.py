"""The arrows between our modules point one way and never in a circle; some never import torch."""

import ast
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "acpo"

# Who may import whom, among our own packages. A new package declares itself here.
ALLOWED = {
    "errors": set(),
    "intervals": set(),
    "htmlpage": set(),
    "texts": set(),
    "vllm_version": {"errors"},
    "servers": {"errors"},
    "wire": set(),
    "jsonl": {"errors"},
    "linefile": {"errors"},
    "yamlfile": {"errors", "jsonl"},
    "record_columns": {"errors", "linefile", "texts"},
    "records": {"errors", "record_columns", "jsonl", "linefile"},
    "objectives": {"errors"},
    "head": {"errors", "objectives"},
    "checkpoints": {"errors", "jsonl"},
    "verify": {"errors", "jsonl", "linefile", "servers", "wire"},
    "tasks": {"errors", "jsonl", "linefile", "verify", "yamlfile"},
    "scoring": {"errors", "objectives", "head"},
    "sampling": {"errors", "head"},
    "engines": {
        *("errors", "objectives", "head", "sampling"),
        *("jsonl", "linefile", "verify", "records", "scoring", "vllm_version"),
    },
    "evaluate": {
        *("errors", "jsonl", "linefile", "intervals", "verify", "tasks"),
        *("objectives", "head", "records", "scoring", "sampling", "checkpoints"),
        *("servers", "texts", "vllm_version", "wire"),
    },
    "train": {
        *("errors", "intervals", "jsonl", "linefile", "verify", "tasks", "engines"),
        *("checkpoints", "texts", "vllm_version", "yamlfile"),
    },
    "trace": {
        *("errors", "jsonl", "objectives", "records", "scoring", "checkpoints"),
        *("tasks", "evaluate", "train", "texts"),
    },
    "annotate": {"errors", "jsonl", "linefile", "records", "servers", "tasks", "texts", "wire"},
    "diagnose": {
        *("errors", "intervals", "jsonl", "linefile", "records", "objectives", "annotate"),
        *("texts", "htmlpage", "method_columns"),
    },
    "compare": {
        *("errors", "intervals", "jsonl", "linefile", "objectives"),
        *("htmlpage", "tasks", "evaluate", "train", "yamlfile"),
    },
    "methods_table": {"objectives"},
    "method_columns": {"errors", "objectives", "records", "scoring"},
    "viewer": {
        *("errors", "jsonl", "linefile", "records", "annotate", "method_columns", "texts"),
    },
    "verl": {"engines"},
}
LAZY = dict.fromkeys(("acpo.ACPOConfig", "acpo.ACPOTrainer"), "acpo.engines.trl")
TORCH_FREE = (
    "errors",
    "servers",
    "intervals",
    "jsonl",
    "linefile",
    "yamlfile",
    "record_columns",
    "records",
    "verify",
    "evaluate",
    "viewer",
    "annotate",
)


MOST_LINES = 400
MOST_FUNCTION_LINES = 50


def modules() -> dict[str, Path]:
    """Every file of the package, by the name it is imported under."""
    found = {}
    for file in SOURCE.rglob("*.py"):
        parts = file.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = file
    return found


def imports_of(file: Path, known: Collection[str]) -> set[str]:
    """Our own modules that a file imports anywhere: at its top, in a function, for types only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(LAZY.get(name, name if name in known else node.module))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return found & set(known)


def circles(arrows: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules each of which imports, over others, itself."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = arrows[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    everywhere = {name: reached(name) for name in arrows}
    found: list[set[str]] = []
    for name, others in everywhere.items():
        circle = {other for other in others if name in everywhere[other]}
        if circle and circle not in found:
            found.append(circle)
    return found


def test_circles_are_found():
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"f"}}
    assert circles(arrows) == [{"a", "b", "c"}, {"f"}]


def test_no_module_imports_itself_over_others():
    known = modules()
    arrows = {name: imports_of(file, known) - {name} for name, file in known.items()}
    assert circles(arrows) == []


def test_no_file_is_longer_than_a_person_reads():
    lengths = {name: len(file.read_text().splitlines()) for name, file in modules().items()}
    assert {name: n for name, n in lengths.items() if n > MOST_LINES} == {}


def test_no_function_is_longer_than_a_screen():
    lengths: dict[str, int] = {}
    for module, file in modules().items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                name = f"{module.removeprefix('acpo.')}.{node.name}"
                lengths[name] = node.end_lineno - node.lineno + 1
    assert {name: n for name, n in lengths.items() if n > MOST_FUNCTION_LINES} == {}


def test_a_class_has_one_meaning_in_the_whole_house():
    places: dict[str, list[str]] = {}
    for module, file in modules().items():
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def packages() -> list[str]:
    found = {name.split(".")[1] for name in modules() if "." in name}
    return sorted(found - {"__main__", "cli"})


def imported_by(package: str) -> set[str]:
    """Our own packages that a package's files import, at any depth of nesting."""
    known = modules()
    files = [file for name, file in known.items() if name.split(".")[1:2] == [package]]
    names = set().union(*(imports_of(file, known) for file in files))
    return {name.split(".")[1] for name in names if "." in name} - {package}


@pytest.mark.parametrize("package", packages())
def test_arrows(package):
    assert package in ALLOWED, f"declare what {package} may import"
    assert imported_by(package) == ALLOWED[package]


@pytest.mark.parametrize("package", [p for p in TORCH_FREE if p in packages()])
def test_no_torch(package):
    code = f"import acpo.{package}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
