"""Meetings of a part that is ready with other hosts of its gang, one group at a time, as its launcher orders."""

from __future__ import annotations

import os
import socket

from workers.host.supervisor import files
from workers.host.supervisor.container.containers import has_nvidia
from workers.host.supervisor.control_files import WatchedFile
from workers.host.supervisor.meeting import CALLED_OFF, CANNOT, Meeting
from workers.host.supervisor.order import passed_on_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from workers.host.supervisor.order import Order
    from workers.host.supervisor.order_parts import Preparation

_BACKLOG = 64
_OF_THE_NETWORK = "GLOO_"
"""Prefix of the host's variables, in addition to NCCL's, that name the interface by which hosts of this fleet meet."""


class Meetings:
    """Port for the store of the next group in which this host is the first. Raises OSError without one."""

    def __init__(self, folder: Path, order: Order, preparation: Preparation) -> None:
        self._folder = folder
        self._order = order
        self._preparation = preparation
        self._order_file = WatchedFile(folder / files.MEET)
        self._listening = _listening()
        self._round = 0
        self._running: Meeting | None = None
        self._holds_store = False
        self._has_answered = True

    def facts(self) -> dict[str, Any]:
        """Return the port and devices by which this host can be met."""
        return {"port": self._port(), "has_gpu": has_nvidia() and not self._preparation.is_simulated}

    def turn(self) -> None:
        """Begin new meetings, end cancelled ones, and write the results of finished ones."""
        told = self._order_file.news()
        if told is not None and told["round"] != self._round:
            self.end()
            self._begin(told)
        if told is not None and told.get("is_called_off") and not self._has_answered:
            self.end()
            self._write({"why": CALLED_OFF})
        if self._running is not None and (found := self._running.outcome()) is not None:
            self._write(found)

    def close(self) -> None:
        """End the running meeting and close the port."""
        self.end()
        self._listening.close()

    def end(self) -> None:
        """End the running meeting without a result."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def _begin(self, order: dict[str, Any]) -> None:
        self._round, self._has_answered = int(order["round"]), False
        if order.get("is_called_off"):
            return
        self._holds_store = order["rank"] == 0
        descriptor = self._listening.fileno() if self._holds_store else None
        try:
            self._running = Meeting(self._preparation.python, order, descriptor, self._environment(order))
        except OSError as fault:
            self._write({"why": f"{CANNOT}: {self._preparation.python} cannot be started: {fault.strerror or fault}"})

    def _environment(self, order: dict[str, Any]) -> dict[str, str]:
        """Return the host's own variables alone: the process is ours, and the tenant must not control it."""
        named = {name: value for name, value in os.environ.items() if name.startswith(_OF_THE_NETWORK)}
        visible = self._order.gpus[0] if order["device"] == "cuda" and self._order.gpus else ""
        own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": visible}
        return {"PATH": os.defpath, **passed_on_environment(), **named, **own}

    def _write(self, found: dict[str, Any]) -> None:
        """Write the result with the port of the next store: the used one may still be open elsewhere."""
        self._running, self._has_answered = None, True
        if self._holds_store:
            self._holds_store = False
            self._listening.close()
            self._listening = _listening()
        files.write_json(self._folder / files.MET, {"round": self._round, **found, "port": self._port()})

    def _port(self) -> int:
        port: int = self._listening.getsockname()[1]
        return port


def _listening() -> socket.socket:
    return socket.create_server(("", 0), backlog=_BACKLOG)
