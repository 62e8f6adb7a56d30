"""What a user installs: the wheel and the sdist hold the recipes, and work in an empty folder."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import acpo
from acpo.cli import app, packaged_recipes
from docs.pages import ROOT

RECIPES = {str(path.relative_to(ROOT)) for path in (ROOT / "recipes").rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Both archives, of one build."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def test_archives_are_whole(built):
    wheel, sdist = built
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {f"acpo/{name}" for name in RECIPES} <= inside
    package = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src/acpo").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert package <= inside, "package data is missing from the wheel"
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*RECIPES, "LICENSE", "README.md", "pyproject.toml"} <= names
    assert not [name for name in names if name.startswith(("tests/", "results/"))]


def test_the_wheel_works_in_an_empty_folder(built, tmp_path):
    wheel, _ = built
    place, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(place), str(wheel)], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "acpo", *words]
        done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    assert run("--version").strip() == f"acpo {acpo.__version__}"
    run("init")
    assert {str(p.relative_to(empty)) for p in empty.rglob("*") if p.is_file()} == RECIPES
    small = "--max_steps 1 --held_out 8 --per_device_eval_batch_size 8 --report false"
    small += " --per_device_train_batch_size 16 --steps_per_generation 1"
    run("train", "recipes/quickstart.yaml", *small.split())
    assert (empty / "runs/quickstart/model.safetensors").is_file()


def test_init_keeps_what_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "recipes" / "quickstart.yaml"
    mine.parent.mkdir()
    mine.write_text("mine")
    result = CliRunner().invoke(app, ["init"])
    assert result.exit_code == 0 and "1 kept" in result.output
    assert mine.read_text() == "mine"
    assert (tmp_path / "recipes/studies/tiny.yaml").is_file()
    assert CliRunner().invoke(app, ["init", "recipes/quickstart.yaml"]).exit_code == 2


def test_the_version_stands_in_one_place():
    """CITATION.cff and CHANGELOG.md, which nothing generates, follow it."""
    assert "version" not in re.findall(r"^(\w+) =", (ROOT / "pyproject.toml").read_text(), re.M)
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {acpo.__version__}\n" in citation, "CITATION.cff has another version"
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## {acpo.__version__}" in changes, "CHANGELOG.md has no entry for this version"


def test_errors_lead_to_recipes_that_are_there():
    result = CliRunner().invoke(app, ["train", "none.yaml"])
    assert result.exit_code == 2 and "'none.yaml' is not a file; `acpo init`" in result.output
    assert "Traceback" not in result.output
    assert (Path(packaged_recipes()) / "quickstart.yaml").is_file()
