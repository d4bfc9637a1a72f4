"""The ``muster`` command. Each command loads only its own room."""

from muster.cli.app import main

__all__ = ["main"]
