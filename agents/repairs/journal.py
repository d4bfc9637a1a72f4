"""What the agent was given to do, on disk before it begins: whoever starts after a kill tells how it went."""

import os
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from muster.domain.repairs import RepairVerb


class Given(Struct, frozen=True, kw_only=True):
    """One order. ``outcome``, ``words``: how it went; None while it is under way."""

    repair_id: str
    gpu_uuid: str
    verb: str
    boot_id: str
    outcome: Literal["done", "failed"] | None = None
    words: str = ""

    def settled(self, boot_id: str) -> "Given":
        """As the next life of the agent, in ``boot_id``, finds it: a reboot is proved by it, all else was cut short."""
        if self.outcome is not None:
            return self
        if self.verb == RepairVerb.REBOOT and boot_id != self.boot_id:
            return msgspec.structs.replace(self, outcome="done", words="the host came back in another boot")
        words = f"the {self.verb} was interrupted: the agent ended during it"
        return msgspec.structs.replace(self, outcome="failed", words=words)


class Journal:
    """One file, replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Given | None:
        """None: nothing was given. What cannot be read counts as nothing: the server then takes it as lost."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Given)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def write(self, given: Given) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(self._path.name + ".new")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(given))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)
