"""Requests of the host's watch, by files: a stack of each rank, and a message about a hang for the control plane."""

from __future__ import annotations

from pathlib import Path

from workers.host.supervisor import files
from workers.host.supervisor.control_files import WatchedFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workers.host.supervisor.program import Program


class WatchOrders:
    """Requests in ``collect.json`` and ``stalled.json``; ``turn`` acts on new ones, and waits for nothing."""

    def __init__(self, folder: Path) -> None:
        self._collect_file = WatchedFile(folder / files.COLLECT)
        self._stalled_file = WatchedFile(folder / files.STALLED)

    def turn(self, program: Program) -> None:
        """Pass new requests on, and write what the sensors have reported."""
        sensors, training = program.watch_socket, program.train_socket
        if sensors is None or not sensors.is_open:
            return
        sensors.turn()
        if (request := self._collect_file.news()) is not None:
            sensors.report({"type": "collect", "id": request.get("id")})
        if training is not None and training.is_open and (message := self._stalled_file.news()) is not None:
            training.store({**message, "type": "stalled"}, None)
