import subprocess
import sys


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
