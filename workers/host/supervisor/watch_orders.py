"""Requests of the host's watch, by files: a stack of each rank, and messages for the control plane.

These are a hang, and how long phases take.
"""

from __future__ import annotations

from pathlib import Path

from workers.host.supervisor import files
from workers.host.supervisor.control_files import WatchedFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workers.host.supervisor.program import Program


_MESSAGES = {"stalled": files.STALLED, "learnt": files.LEARNT}


class WatchOrders:
    """Requests in ``collect.json``, ``stalled.json``, ``learnt.json``; ``turn`` acts on new ones and never waits."""

    def __init__(self, folder: Path) -> None:
        self._collect_file = WatchedFile(folder / files.COLLECT)
        self._messages = {kind: WatchedFile(folder / name) for kind, name in _MESSAGES.items()}

    def turn(self, program: Program) -> None:
        """Pass new requests on, and write what the sensors have reported."""
        sensors, training = program.watch_socket, program.train_socket
        if sensors is None or not sensors.is_open:
            return
        sensors.turn()
        if (request := self._collect_file.news()) is not None:
            sensors.report({"type": "collect", "id": request.get("id")})
        if training is None or not training.is_open:
            return
        for kind, file in self._messages.items():
            if (message := file.news()) is not None:
                training.store({**message, "type": kind}, None)
