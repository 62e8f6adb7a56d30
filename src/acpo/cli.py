"""`acpo <verb>`. Verbs import what they need when called, so that `acpo --help` is instant."""

import typer

app = typer.Typer(
    name="acpo",
    help="Token-level credit for reinforcement learning with verifiable rewards.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def main() -> None:
    """Token-level credit for reinforcement learning with verifiable rewards."""
