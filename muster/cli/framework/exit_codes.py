"""``muster exit-codes``."""

import typer

from muster.cli.framework.exits import Exit


def exit_codes() -> None:
    """What each exit code means."""
    for code in Exit:
        typer.echo(f"{code.value:>4}  {code.name.lower().replace('_', ' ')}")
