"""`acpo` as it is typed."""

from typer.testing import CliRunner

from acpo.cli import app

REFUSED, INTERRUPTED = 2, 130


def acpo(*arguments: object, status: int = 0) -> str:
    """What the command prints; it has to end with this status."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    return result.output


def refused(*arguments: object) -> str:
    """What the command says where it refuses, however the terminal breaks it."""
    return " ".join(acpo(*arguments, status=REFUSED).split())
