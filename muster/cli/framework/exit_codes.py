"""``muster exit-codes``."""

import typer

from muster.cli.framework.exits import Exit


def exit_codes() -> None:
    """List the exit codes."""
    for code in Exit:
        typer.echo(f"{code.value:>4}  {code.name.lower().replace('_', ' ')}")
