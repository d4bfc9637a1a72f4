"""Parts of Muster that are installed here: a wheel has the client alone, the runtime alone, or everything.

The small wheels ``muster-base``, ``muster-client`` and ``muster-train`` have no file in common. The whole distribution
``muster`` has all their files itself, so the two kinds do not belong into one environment.
"""

import importlib.util
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

import muster


class Part(StrEnum):
    """A part that a command may need. The value is a package that only this part brings."""

    TRAIN = "muster.train"
    WHOLE = "muster.db"


_PART_NAMES: Final = {Part.TRAIN: "the runtime muster-train", Part.WHOLE: "the whole of Muster"}
_ADVICE: Final = {
    Part.TRAIN: "Install it together with muster-client, from the page /install of your control plane.",
    Part.WHOLE: "Type it where Muster is installed from its sources: on a machine of the control plane or a GPU host.",
}
_SMALL: Final = ("muster_base-", "muster_client-", "muster_train-")
_INFO: Final = ".dist-info"


@cache
def has(part: Part) -> bool:
    """Return whether the part is installed. Nothing of it is imported."""
    return importlib.util.find_spec(part) is not None


def missing_words(command: str, part: Part) -> str:
    """Return one sentence about what is missing, and one about what to do."""
    return f"{command} needs {_PART_NAMES[part]}, which is not installed here. {_ADVICE[part]}"


def part_of(module: str) -> Part:
    """Return the part that would bring a missing module."""
    return Part.TRAIN if module.startswith(Part.TRAIN) else Part.WHOLE


def conflict_words(place: Path | None = None) -> str | None:
    """Return a warning if the whole of Muster and small wheels are installed in one place; otherwise None.

    ``place``: the folder that holds the package ``muster``. Each installation overwrote files of the other, and
    removing either removes files of both: so it is reported before that happens.
    """
    place = place or Path(muster.__file__).parent.parent
    names = [path.name for path in place.glob("muster[-_]*" + _INFO)]
    small = sorted(name.removesuffix(_INFO).rpartition("-")[0] for name in names if name.startswith(_SMALL))
    if not small or not any(name.startswith("muster-") for name in names):
        return None
    wheels = " ".join(name.replace("_", "-") for name in small)
    return (
        f"muster and {wheels.replace(' ', ', ')} are installed in one environment and overwrite each other's files. "
        f"Keep one: `pip uninstall {wheels}`, then install muster again, which lost files by that."
    )
