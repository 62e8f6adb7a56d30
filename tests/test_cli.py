"""The command line: light to start, and `acpo methods`."""

import json
import os
import resource
import subprocess
import sys
import warnings

import pytest
import rich.text
import typer
from typer.testing import CliRunner

from acpo.cli import OneLineErrors, app, packaged_recipes
from acpo.errors import ACPOWarning
from acpo.objectives import METHODS
from commandline import acpo, refused


def modules_loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(out.stdout.split())


def test_import_and_help_are_light():
    loaded = modules_loaded_by(
        "import acpo, acpo.cli\n"
        "from typer.testing import CliRunner\n"
        "assert CliRunner().invoke(acpo.cli.app, ['--help']).exit_code == 0"
    )
    assert not loaded & {"torch", "transformers", "trl", "numpy", "sympy"}


def test_a_trace_of_plain_prompts_does_without_trl():
    words = "trace", "package:acpo/tasks/checkpoints/chain", "--task", "chain", "--n", "1"
    options = "--group", "2", "--max-tokens", "4", "--device", "cpu", "--output", "trace"
    loaded = modules_loaded_by(
        "import os, sys, tempfile\n"
        "from acpo.cli import app\n"
        "os.chdir(tempfile.mkdtemp())\n"
        f"app({[*words, *options]!r}, standalone_mode=False)"
    )
    assert "torch" in loaded and "trl" not in loaded


def test_what_the_system_refuses_is_one_line(tmp_path):
    commands = typer.Typer(cls=OneLineErrors)
    commands.command("list")(lambda: print(list((tmp_path / "nothing").iterdir())))
    commands.command("other")(lambda: None)
    result = CliRunner().invoke(commands, ["list"])
    assert result.exit_code == 2
    assert f"error: {tmp_path / 'nothing'}: No such file or directory" in result.output


def test_methods_table_as_json():
    result = CliRunner().invoke(app, ["methods", "--json"])
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert list(rows) == list(METHODS)
    paper = {
        "sapo": ("1", "1"),
        "fixed": ("2", "1"),
        "positive_only": ("2+δ", "1"),
        "nonpositive_only": ("1", "1-δ"),
        "acpo_no_routing": ("2+δ", "1-δ"),
        "shannon": ("ē", "1-ē"),
        "shannon_offset": ("2+ē", "1-ē"),
        "global_sg": ("sg[δ]", "1-sg[δ]"),
        "global_sg_offset": ("2+sg[δ]", "1-sg[δ]"),
        "global_sg_x3": ("3sg[δ]", "3(1-sg[δ])"),
        "acpo": ("2+δ | 3sg[δ]", "1-δ | 3(1-sg[δ])"),
    }
    assert {name: (rows[name]["c+"], rows[name]["c-"]) for name in paper} == paper
    assert rows["dapo"]["aggregation"] == "token mean"
    assert rows["acpo"]["options"]["tau_neg"] == 1.05


def test_methods_table_for_people():
    result = CliRunner().invoke(app, ["methods"], env={"COLUMNS": "240"})
    assert result.exit_code == 0
    assert all(name in result.stdout for name in METHODS)
    assert "sg[min(w, cap)]" in result.stdout, "brackets are text, not markup"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_explained(name):
    result = CliRunner().invoke(app, ["methods", name], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert METHODS[name].title in result.stdout and "what A is multiplied by" in result.stdout
    assert METHODS[name].constants, "every number has a source"
    for word in (METHODS[name].formula, METHODS[name].notes, METHODS[name].constants):
        assert word in result.stdout


def test_what_a_method_multiplies():
    def curve(name, index=0):
        result = CliRunner().invoke(app, ["methods", name, "--json"])
        return json.loads(result.stdout)["curves"][index]

    acpo = curve("acpo")
    for p, up, down in zip(acpo["at"], acpo["positive"], acpo["nonpositive"], strict=True):
        assert up == pytest.approx(3 * (1 - p)) and down == pytest.approx((1 + 2 / 1.05) * p)
    assert curve("grpo")["positive"] == pytest.approx([1.0] * 20)
    low = curve("low_prob")
    assert low["positive"] == pytest.approx([0.2 * p + 0.8 for p in low["at"]])
    clip = curve("grpo", 1)
    expected = [0.0 if w > 1.2 else w for w in clip["at"]]
    assert clip["positive"] == pytest.approx(expected)


def test_errors_hold_nothing_that_a_terminal_obeys(tmp_path):
    (tmp_path / "a\x1b[2Jb.jsonl").write_text("{}\n")
    arguments = ["diagnose", "blame", str(tmp_path), "--annotations"]
    result = CliRunner().invoke(app, [*arguments, str(tmp_path / "a\x1b[2Jb.jsonl")])
    assert (
        result.exit_code == 2 and "\x1b" not in result.output and "a [2Jb.jsonl:1" in result.output
    )


def test_an_unknown_method_is_refused_with_the_nearest():
    result = CliRunner().invoke(app, ["methods", "acop"])
    assert result.exit_code == 2 and "did you mean 'acpo'" in result.output


def walk(command, path=()):
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, (*path, name))


def test_brackets_in_help_are_not_swallowed_as_markup():
    for path, command in walk(typer.main.get_command(app)):
        for parameter in command.params:
            help_text = getattr(parameter, "help", None) or ""
            shown = rich.text.Text.from_markup(help_text).plain
            assert shown == help_text, f"acpo {' '.join(path)}: {help_text}"


def test_warnings_of_ours_are_one_line_and_obey_no_file(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    CliRunner().invoke(app, ["methods", "acpo"], catch_exceptions=False)
    hostile = "columns acc\x1b[31m\n\x1b]0;title\x07"
    ours, other = (
        warnings.formatwarning(kind(hostile), kind, "file.py", 1)
        for kind in (ACPOWarning, UserWarning)
    )
    assert ours == "warning: columns acc [31m  ]0;title \n"
    assert other.startswith("file.py:1: UserWarning: columns acc") and "\x1b" not in other


def test_init_leaves_no_half_recipe(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        assert "cannot be written" in refused("init", tmp_path / "recipes")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    acpo("init", tmp_path / "recipes")  # keeps what is there
    for path in (tmp_path / "recipes").rglob("*.yaml"):
        there = packaged_recipes() / path.relative_to(tmp_path / "recipes")
        assert path.read_bytes() == there.read_bytes()


def test_a_terminal_without_some_letters_gets_the_others():
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "acpo", "methods"]
    result = subprocess.run(command, capture_output=True, env=environment, timeout=60)
    assert result.returncode == 0 and b"acpo" in result.stdout, result.stderr[-500:]


@pytest.mark.parametrize(
    "words", [("init", ""), ("view", "x", "-o", ""), ("trace", "x", "--output=")]
)
def test_an_empty_place_is_not_the_folder_one_is_in(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    assert "is empty: give a name" in refused(*words)
    assert not list(tmp_path.iterdir())
