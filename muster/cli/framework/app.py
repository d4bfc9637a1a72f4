"""The root of the command, and its edge: every fault ends as a sentence and an exit code."""

import os
import sys
from typing import Annotated, Final

import typer
from typer.exceptions import TyperException

from muster.cli.framework import profile
from muster.cli.framework.branches import BRANCHES
from muster.cli.framework.exits import Exit, close_quietly, print_fault
from muster.cli.framework.installed import Part, conflict_words, has
from muster.cli.framework.tree import LazyGroup

COMPLETE: Final = "_MUSTER_COMPLETE"
"""Variable that the shell's completion script sets to request a completion of the words so far."""


_WHOLE_EPILOG: Final = (
    "New here: `muster up` starts a fleet on this machine, `muster doctor` says what is wrong with it."
)
_CLIENT_EPILOG: Final = (
    "New here: `muster login https://…` signs in to a control plane, `muster doctor` says what is wrong."
)


class Root(LazyGroup):
    branches = BRANCHES


app = typer.Typer(
    name="muster",
    cls=Root,
    help="The control plane by which a GPU cloud governs its fleet.",
    epilog=_WHOLE_EPILOG if has(Part.WHOLE) else _CLIENT_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(is_requested: bool) -> None:  # noqa: FBT001  # Typer's callback signature
    if is_requested:
        from muster import __version__

        typer.echo(f"muster {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    profile_name: Annotated[
        str | None,
        typer.Option("--profile", help="Which control plane; see `muster profile list`.", envvar="MUSTER_PROFILE"),
    ] = None,
    version: Annotated[  # noqa: ARG001  # its callback says it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say the version and end.")
    ] = False,
) -> None:
    """Options before the command."""
    profile.choose(profile_name)


def run() -> int:
    """Run the command and return its exit code. A token in an argument is refused: process lists show arguments."""
    if any(argument.startswith("mst_") or "=mst_" in argument for argument in sys.argv[1:]):
        typer.echo("error: a token stands in the arguments, where every process list shows it", err=True)
        typer.echo("Put it into a file, mode 0600, and name the file in MUSTER_API_KEY_FILE.", err=True)
        return Exit.USAGE
    try:
        _prepare()
        result = app(standalone_mode=False, prog_name="muster")
    except typer.Abort:
        return Exit.INTERRUPTED
    except TyperException as fault:
        show = getattr(fault, "show", None)
        if show is None:
            return print_fault(fault)
        show()
        return Exit.USAGE
    except BrokenPipeError:
        close_quietly()
        return Exit.OK
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        close_quietly()  # as Typer ends a command whose reader went away, with 1
        return Exit.OK
    except (Exception, KeyboardInterrupt) as fault:  # noqa: BLE001  # the command's edge
        return print_fault(fault)
    return result if isinstance(result, int) else Exit.OK


def _prepare() -> None:
    """Make ready for a shell that requests completions; otherwise warn of an environment that is broken."""
    if COMPLETE not in os.environ:
        conflict = conflict_words()
        if conflict is not None:
            typer.echo(f"warning: {conflict}", err=True)
        return
    from typer.completion import completion_init  # type: ignore[attr-defined]  # by which Typer itself does it

    completion_init()
