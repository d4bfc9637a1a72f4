"""Options that several commands of ``muster agent`` have, and the check that they fit together."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.framework.exits import CommandError, Exit


class SimulatedModel(StrEnum):
    H100 = "h100"
    A100 = "a100"
    H200 = "h200"


Simulated = Annotated[SimulatedModel | None, typer.Option(help="GPUs that do not exist, in place of this host's.")]
NumSimulated = Annotated[int | None, typer.Option(min=1, max=72, help="How many simulated GPUs (8).")]
Faults = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="File of simulated faults.")]
DcgmLevel = Annotated[
    int | None,
    typer.Option(min=1, max=4, help="With `dcgmi diag -r` of this level; what fails there fails the burn-in."),
]


def num_simulated(
    simulated: SimulatedModel | None, gpus: int | None, faults: Path | None, dcgm_diag: int | None = None
) -> int | None:
    """Return the number of simulated GPUs; None for this host's own.

    Raises:
        CommandError: an option is for GPUs of the other kind.
    """
    if simulated is not None and dcgm_diag is not None:
        raise CommandError("--dcgm-diag is for real GPUs", "Leave out --simulated.", Exit.USAGE)
    if simulated is None and (faults is not None or gpus is not None):
        raise CommandError("--gpus and --faults are for simulated GPUs", "Add --simulated h100.", Exit.USAGE)
    return None if simulated is None else gpus or 8
