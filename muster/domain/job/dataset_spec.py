"""A dataset that a job names: its path on the hosts, and how it is checked before the job starts."""

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from pydantic import Field

from muster.domain.strict import AbsolutePath, Name, StrictModel

_NO_LETTER: Final = re.compile(r"[^A-Z0-9]")


class DatasetCheck(StrEnum):
    """The check of a dataset before the program starts.

    ``sizes``: each file of the manifest exists with its size. ``checksums``: each file is also read back and is equal.
    """

    SIZES = "sizes"
    CHECKSUMS = "checksums"


class Dataset(StrictModel):
    """A folder or file on the hosts.

    ``manifest`` None: the dataset's own manifest, where it has one (``muster data manifest`` writes it). Without a
    manifest, only the path is checked: it must exist.
    """

    name: Name
    path: AbsolutePath
    manifest: AbsolutePath | None = None
    verify: DatasetCheck = Field(default=DatasetCheck.SIZES, strict=False)

    @property
    def variable(self) -> str:
        """Return the name of the environment variable that holds the dataset's path."""
        return f"MUSTER_DATASET_{_NO_LETTER.sub('_', self.name.upper())}"


def require_each_once(datasets: Sequence[Dataset]) -> None:
    """Raise ValueError where two datasets would use the same variable of the program's environment."""
    named: dict[str, str] = {}
    for dataset in datasets:
        if (other := named.get(dataset.variable)) is not None:
            raise ValueError(f"{other} and {dataset.name} are both {dataset.variable}: give one of them another name")
        named[dataset.variable] = dataset.name


def environment_of(datasets: Sequence[Dataset]) -> dict[str, str]:
    """Return the variables by which the program finds its datasets: one for each, and one with all of them as JSON."""
    if not datasets:
        return {}
    paths = {dataset.name: dataset.path for dataset in datasets}
    return {**{dataset.variable: dataset.path for dataset in datasets}, "MUSTER_DATASETS": json.dumps(paths)}
