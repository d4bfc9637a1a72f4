"""The command line of the wake-up listener: the launcher writes it, and the listener reads it.

It does not import Celery, which a launcher does not load. Both ends stand here, and arguments have names and types, so
that the type checker sees a caller that leaves one out.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

BROKER_VARIABLE: Final = "MUSTER_BROKER_URL"
"""Variable of the broker's address, which is in the environment so that it shows in no process list."""
_MODULE: Final = "workers.wakeup.listener"


@dataclass(frozen=True, slots=True)
class ListenerArguments:
    """Arguments of the listener. ``launcher_pid``: the process that starts the listener, and with which it ends."""

    node_id: str
    wakeup_socket: Path
    launcher_pid: int

    def command(self) -> list[str]:
        return [sys.executable, "-m", _MODULE, self.node_id, str(self.wakeup_socket), str(self.launcher_pid)]

    @classmethod
    def read(cls, arguments: list[str]) -> Self:
        """Read them as ``command`` wrote them.

        Raises:
            ValueError: there are more or fewer.
        """
        node_id, wakeup_socket, launcher_pid = arguments
        return cls(node_id, Path(wakeup_socket), int(launcher_pid))
