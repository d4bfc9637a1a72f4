"""``muster completion``."""

from typing import Annotated, Final, Literal

import typer

PROGRAM: Final = "muster"


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Which shell.")]) -> None:
    """Print the script that completes commands, options and ids of jobs, GPUs, nodes, … in a shell.

    bash and zsh: `eval "$(muster completion bash)"` in ~/.bashrc or ~/.zshrc. fish: `muster completion fish | source`.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # by which Typer itself does it

    from muster.cli.framework.app import COMPLETE

    typer.echo(get_completion_script(prog_name=PROGRAM, complete_var=COMPLETE, shell=shell))
