"""What the agent was given to do, on disk before it begins: whoever starts after a kill tells how it went.

One verb is under way at most; beside it there may be some that ended, and whose GPUs still tell of the fault.
"""

import os
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from muster.domain.evidence.repairs import RepairVerb


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

    def read(self) -> tuple[Given, ...]:
        """In the order in which they were given. What cannot be read counts as nothing: to the server it is lost.

        An older release kept one order, and not in a list.
        """
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=tuple[Given, ...] | Given)
        except (FileNotFoundError, msgspec.MsgspecError):
            return ()
        return (found,) if isinstance(found, Given) else found

    def write(self, given: Given) -> None:
        """In place of what it says of this order."""
        held = {each.repair_id: each for each in self.read()}
        self._replace(tuple({**held, given.repair_id: given}.values()))

    def forget(self, repair_id: str) -> None:
        self._replace(tuple(each for each in self.read() if each.repair_id != repair_id))

    def _replace(self, held: tuple[Given, ...]) -> None:
        if not held:
            self._path.unlink(missing_ok=True)
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(self._path.name + ".new")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(held))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
