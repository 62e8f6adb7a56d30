"""`acpo <verb>`. Verbs import what they need when called, so that `acpo --help` is instant."""

from typing import Annotated

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


@app.command()
def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """List every method: gate, credit, routing, aggregation, reference."""
    from acpo.catalogue import print_methods

    print_methods(as_json)
