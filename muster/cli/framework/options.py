"""Errors about an option's value that cannot be read, with the option's name; and an option of several commands."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from muster.cli.framework.field_help import field_help

DespiteBudget = Annotated[str | None, typer.Option(help=field_help("despite_budget"))]


def unfit(option: str, words: str) -> typer.BadParameter:
    """Return the error. ``words``: the fault, and what is accepted."""
    return typer.BadParameter(words, param_hint=f"'{option}'")


@contextmanager
def value_of(option: str) -> Iterator[None]:
    """Turn a ``ValueError`` in the block into an error about this option's value."""
    try:
        yield
    except ValueError as fault:
        raise unfit(option, str(fault)) from None
