"""Phases of a rank's program, from its start to its end."""

from enum import StrEnum


class Phase(StrEnum):
    """What a rank does now. A program declares its phase with ``run.phase``, or the sensor infers it.

    ``compile`` is the time in a compiler of torch; ``data`` the wait for the next batch.
    """

    START = "start"
    IMPORT = "import"
    RESTORE = "restore"
    FIRST_STEP = "first_step"
    STEP = "step"
    DATA = "data"
    COMPILE = "compile"
    EVALUATION = "eval"
    SAVE = "save"
    END = "end"
