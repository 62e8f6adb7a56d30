"""The scripts of recipes/verl as verl's configuration, without running verl."""

import shlex
import subprocess
import sys
from pathlib import Path

from hydra import compose, initialize_config_module
from omegaconf import DictConfig

FOLDER = Path(__file__).resolve().parents[3] / "recipes" / "verl"
SCRIPTS = sorted(
    path.name for path in FOLDER.glob("*.sh") if path.name not in ("common.sh", "ray-start.sh")
)
ROWS = ("8020", "acpo", "acpo_no_routing", "dapo", "grpo", "gtpo", "sapo")


def arguments(script: str, tmp_path: Path, *more: str, **variables: str) -> list[str]:
    """What a script would give `python -m verl.trainer.main_ppo`."""
    spy = tmp_path / "python"
    spy.write_text(f"#!{sys.executable}\nimport sys\nprint('\\0'.join(sys.argv[1:]), end='')\n")
    spy.chmod(0o755)
    done = subprocess.run(
        ["bash", str(FOLDER / script), *more],
        env={"PYTHON": str(spy), "PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    module, *overrides = done.stdout.split("\0")[1:]
    assert module == "verl.trainer.main_ppo"
    return overrides


def manual() -> list[str]:
    """What the command at the top of docs/verl.md gives it."""
    page = (FOLDER.parents[1] / "docs" / "verl.md").read_text()
    command = page.partition("    python -m verl.trainer.main_ppo")[2].partition("\n\n")[0]
    return shlex.split(command.replace("\\\n", " "))


def configuration(overrides: list[str]) -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides)
