"""The arrows between our modules point one way, and some never import torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "acpo"

# Who may import whom, among our own packages. A new package declares itself here.
ALLOWED = {
    "errors": set(),
    "intervals": set(),
    "jsonl": {"errors"},
    "linefile": {"errors"},
    "record_columns": {"errors", "linefile"},
    "records": {"record_columns", "linefile"},
    "objectives": {"errors"},
    "head": {"errors", "objectives"},
    "checkpoints": {"errors"},
    "verify": {"errors", "jsonl", "linefile"},
    "tasks": {"errors", "jsonl", "verify"},
    "scoring": {"errors", "objectives", "head"},
    "sampling": {"errors", "head"},
    "engines": {
        *("errors", "objectives", "head", "sampling"),
        *("verify", "tasks", "records", "scoring"),
    },
    "evaluate": {
        *("errors", "jsonl", "linefile", "intervals", "verify", "tasks"),
        *("objectives", "head", "records", "scoring", "sampling", "checkpoints"),
    },
    "train": {
        *("errors", "intervals", "objectives", "head", "verify", "tasks", "engines"),
        "checkpoints",
    },
    "trace": {
        *("errors", "objectives", "records", "scoring"),
        *("verify", "tasks", "evaluate", "train", "checkpoints"),
    },
    "annotate": {"errors", "linefile", "records", "tasks", "viewer"},
    "diagnose": {"errors", "intervals", "records", "objectives", "annotate"},
    "compare": {
        *("errors", "intervals", "jsonl", "objectives", "sampling"),
        *("verify", "tasks", "engines", "evaluate", "train", "checkpoints"),
    },
    "catalogue": {"errors", "objectives"},
    "replay": {"errors", "objectives", "records", "scoring"},
    "viewer": {"errors", "records"},
    "verl": {"engines"},
}
LAZY = dict.fromkeys(("ACPOConfig", "ACPOTrainer"), "acpo.engines")
TORCH_FREE = (
    "errors",
    "intervals",
    "jsonl",
    "linefile",
    "record_columns",
    "records",
    "verify",
    "evaluate",
    "viewer",
    "annotate",
)


def packages() -> list[str]:
    found = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in SOURCE.rglob("*.py")}
    return sorted(found - {"__init__", "__main__", "cli"})


def imported_by(package: str) -> set[str]:
    """Our own packages that a package's files import, at any depth of nesting."""
    single = SOURCE / f"{package}.py"
    files = [single] if single.exists() else list((SOURCE / package).rglob("*.py"))
    names: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module}
                if node.module == "acpo":
                    names |= {LAZY.get(a.name, f"acpo.{a.name}") for a in node.names}
    ours = {name.split(".")[1] for name in names if name.startswith("acpo.")}
    return ours - {package}


@pytest.mark.parametrize("package", packages())
def test_arrows(package):
    assert package in ALLOWED, f"declare what {package} may import"
    assert imported_by(package) <= ALLOWED[package]


@pytest.mark.parametrize("package", [p for p in TORCH_FREE if p in packages()])
def test_no_torch(package):
    code = f"import acpo.{package}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
