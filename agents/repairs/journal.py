"""Journal of orders, written before each begins: after a kill, the agent's next process reports the outcome.

At most one verb is in progress; there may also be ended ones whose GPUs still report the fault.
"""

import os
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from muster.domain.evidence.repairs import RepairVerb


class Given(Struct, frozen=True, kw_only=True):
    """One order. ``outcome``, ``words``: its result; None while it is in progress."""

    repair_id: str
    gpu_uuid: str
    verb: str
    boot_id: str
    outcome: Literal["done", "failed"] | None = None
    words: str = ""

    def settled(self, boot_id: str) -> "Given":
        """Return the order as the agent's next process, in ``boot_id``, finds it.

        A new boot proves a reboot; any other verb was interrupted.
        """
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
        """Return the orders as they were given. An unreadable file counts as empty: to the server the order is lost.

        An older release kept one order, and not in a list.
        """
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=tuple[Given, ...] | Given)
        except (FileNotFoundError, msgspec.MsgspecError):
            return ()
        return (found,) if isinstance(found, Given) else found

    def write(self, given: Given) -> None:
        """Replace the entry of this order."""
        held = {each.repair_id: each for each in self.read()}
        self._replace(tuple({**held, given.repair_id: given}.values()))

    def forget(self, repair_id: str) -> None:
        self._replace(tuple(each for each in self.read() if each.repair_id != repair_id))

    def _replace(self, stored: tuple[Given, ...]) -> None:
        if not stored:
            self._path.unlink(missing_ok=True)
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(self._path.name + ".new")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(stored))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
