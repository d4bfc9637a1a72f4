"""A value of an option that cannot be read, by the option's name."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


def unfit(option: str, words: str) -> typer.BadParameter:
    """``words``: its fault, and what is accepted."""
    return typer.BadParameter(words, param_hint=f"'{option}'")


@contextmanager
def value_of(option: str) -> Iterator[None]:
    """A ``ValueError`` within is one of this option's value."""
    try:
        yield
    except ValueError as fault:
        raise unfit(option, str(fault)) from None
