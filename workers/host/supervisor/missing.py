"""Parts of a start that a person has to supply: without them a further start on the same host ends the same way.

A fault names its part as ``lacks``, and the exit record has it under the same name. Another host may have the part.
"""

from __future__ import annotations

BUNDLE = "bundle"
CHECKPOINTS = "checkpoint folder"
DATASET = "dataset"
ENGINE = "container engine"
ENVIRONMENT = "environment"
IMAGE = "image"
MOUNT = "mount"
PROGRAM = "program"
PYTHON = "interpreter"
SECRET = "secret"  # noqa: S105  # the name of a part
SECRETS = "secrets"
TORCH = "torch"
WORKING_FOLDER = "working folder"


def lacks_of(fault: BaseException) -> str | None:
    """Return the missing part that a fault names; None if a further start on this host may succeed."""
    lacks = getattr(fault, "lacks", None)
    return lacks if isinstance(lacks, str) else None
