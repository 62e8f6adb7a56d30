"""Every command of README and docs: run as written at a small size, or parsed where it says
`# needs: GPU` (hub, server, ...) or has a PLACEHOLDER."""

import importlib.util
import os
import re
import tomllib

import pytest
import typer
from typer.testing import CliRunner

from acpo.cli import app
from acpo.errors import ACPOError
from acpo.train.recipe import option_groups, read_recipe
from docs.pages import DOCUMENTS, ROOT, commands, inline_commands, program
from docs.standins import furnish

UsageError = typer.BadParameter.__mro__[1]
RECIPE_COMMANDS = ("train", "doctor", "compare")
SMALL = {
    "train": "--max_steps 1 --held_out 8 --per_device_eval_batch_size 8"
    " --per_device_train_batch_size 16 --steps_per_generation 1 --use_cpu true",
    "trace": "--n 4 --group 4",
    "eval": "--limit 2 --k 2",
}
"""Appended to what is run: the same command at a size for tests."""

MARK = (
    "If it needs a GPU, a hub, a server or a large file, say so in the text: put `# needs: GPU` "
    "(or hub, server, ...) behind the command or on the first line of its block; it is then only "
    "parsed."
)


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_commands(document):
    faults = []
    for command in commands(document):
        try:
            check(command)
        except AssertionError as error:
            faults.append(f"{command}\n    {error}")
    for text in inline_commands(document):
        try:
            check_options(text.split()[1:])
        except AssertionError as error:
            faults.append(f"{document.name}: `{text}`\n    {error}")
    assert not faults, "\n".join(["commands that do not work as written:", *faults])


def check(command):
    name, arguments = program(command)
    if name == "acpo":
        check_acpo(arguments, command)
    elif name == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert {word for word in arguments if "=" not in word} <= set(targets), "no such target"
    elif name == "pip":
        check_pip(arguments)
    elif name == "python":
        check_python(arguments, command)
    elif name in ("accelerate", "torchrun"):
        if "--config_file" in arguments:
            config = arguments[arguments.index("--config_file") + 1]
            assert (ROOT / config).is_file(), f"{config} is missing"
        check_acpo(arguments[arguments.index("acpo") + 1 :], command)
    elif name and name.startswith("recipes/"):
        assert os.access(ROOT / name, os.X_OK), f"{name} is missing or cannot be executed"
    else:
        known = name in ("cat", "ray", "git", "cd", "source") or (name or "").startswith(".venv/")
        assert known, "is no command this test knows; output belongs in a block of its own"


def check_acpo(arguments, command):
    check_options(arguments)
    if command.pattern:
        return
    leaf, rest = descend(arguments)
    try:
        leaf.make_context("acpo", list(rest))
    except UsageError as error:
        raise AssertionError(error.format_message()) from error
    if command.needs:
        if arguments[0] in ("train", "doctor"):
            path, *overrides = [word for word in rest if word != "--dry-run"]
            try:
                read_recipe(path, ["--use_cpu", "true", "--bf16", "false", *overrides])
            except ACPOError as error:
                raise AssertionError(str(error)) from error
        return
    small = SMALL.get(arguments[0], "").split()
    if arguments[0] == "eval" and arguments[1] in ("compare", "table"):
        small = []
    result = CliRunner().invoke(app, [*arguments, *small])
    assert result.exit_code == 0, f"ended with {result.exit_code}: {last_lines(result)}\n    {MARK}"


def last_lines(result):
    error = result.exception
    told = "" if isinstance(error, (SystemExit, type(None))) else repr(error)
    return " ".join((result.output[-400:] + told).split())


def descend(arguments):
    """The command that arguments end in, and what is left for it."""
    command, rest = typer.main.get_command(app), list(arguments)
    while hasattr(command, "commands"):
        if command.name == "eval" and rest and rest[0] not in command.commands:
            rest.insert(0, "run")  # what is no verb is a model
        name = rest.pop(0) if rest else ""
        if not name or name.startswith("-") or name.isupper():
            break  # the group's own help, or `acpo diagnose NAME`
        assert name in command.commands, f"no such command: {name}"
        command = command.commands[name]
    return command, rest


def check_options(arguments):
    """Every `--option` is one of the command's, or of a recipe where it takes those."""
    words = [word.strip("[]") for word in arguments]
    leaf, rest = descend(words)
    known = {name for item in leaf.params for name in (*item.opts, *item.secondary_opts)}
    known |= {"--help", "--key"}
    if leaf.name in RECIPE_COMMANDS:
        known |= {f"--{name}" for group in option_groups().values() for name, _ in group}
    asked = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
    assert asked <= known, f"no such option: {', '.join(sorted(asked - known))}"


def check_pip(arguments):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in arguments[1:]:
        assert not re.match(r"acpo\b(?!.*\.whl)", word), (
            "acpo is on no package index: write `pip install .` (in a clone) or name the wheel"
        )
        for extra in re.findall(r"^\.\[([\w,]+)\]", word):
            assert set(extra.split(",")) <= set(extras["optional-dependencies"]), "no such extra"


def check_python(arguments, command):
    if arguments[0] == "-m":
        module = arguments[1]
        if module == "acpo":
            return check_acpo(arguments[2:], command)
        if module.startswith("verl."):
            assert command.needs, "verl has an environment of its own. " + MARK
            return None
        assert importlib.util.find_spec(module), f"no module {module}"
        return None
    script = ROOT / arguments[0]
    assert script.is_file(), f"{arguments[0]} is missing"
    text = script.read_text()
    flags = [word for word in arguments[1:] if word.startswith("--")]
    if "--recipe" in flags:  # the rest are the recipe's
        options = {f"--{name}" for group in option_groups().values() for name, _ in group}
        flags = [flag for flag in flags if flag not in options]
    unknown = [flag for flag in flags if f'"{flag}"' not in text]
    assert not unknown, f"{arguments[0]} has no {', '.join(unknown)}"


def test_nothing_is_advertised_from_an_index():
    """Neither in documents nor in what commands say."""
    sources = [*DOCUMENTS, *(ROOT / "src").rglob("*.py"), *(ROOT / "recipes").rglob("*.yaml")]
    told = [
        path.name for path in sources if re.search(r"pip install '?\"?acpo\[", path.read_text())
    ]
    assert not told, "acpo is on no package index: name the package itself, or `pip install .`"


def test_the_checks_can_fail(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "    acpo train recipes/none.yaml\n\ntext\n\n"
        "    acpo trace MODEL --tokens 4\n\ntext\n\n    pip install acpo[vllm]\n\ntext\n\n"
        "    make coffee\n\ntext\n\n    acpo train recipes/quickstart.yaml --lr 1  # needs: GPU\n"
        "\ntext\n\n    python benchmarks/head.py --fast\n"
    )
    found = [
        c._replace(block=c.block._replace(document=ROOT / "README.md")) for c in commands(page)
    ]
    assert len(found) == 6
    for command in found:
        with pytest.raises(AssertionError):
            check(command)
