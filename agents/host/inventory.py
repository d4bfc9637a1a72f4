"""The RDMA ports that a host has shown: each with the best rate that it ever had while it was up, kept on disk.

What a card's port can do, its driver does not say; what it did yesterday, this file does. A card that fell off its bus
before the agent began is missed by it alone. Whoever takes a card out, or cables it slower, deletes the file: it is
written anew from what is there.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from agents.host.ports import ACTIVE, Port, is_rdma
from muster.durable import write_durably

PORTS_FILE: Final = "ports.json"
_log = structlog.get_logger(__name__)


class PortInventory:
    """``rate_gbps``: port → the best rate it was seen up with, Gb/s."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.rate_gbps = _kept_in(file)

    def saw(self, ports: Iterable[Port]) -> None:
        """Writes where a port is new, or faster than ever. A disk that takes nothing is told of; memory holds it."""
        told = list(ports)
        better = {
            port.name: rate
            for port in told
            if is_rdma(port.name) and port.state.get("state") == ACTIVE
            if (rate := port.state.get("rate_gbps", 0.0)) > self.rate_gbps.get(port.name, -1.0)
        }
        if not better:
            return
        # A driver's update names devices otherwise: for each name that is new one that is gone is forgotten.
        num_new = len(better.keys() - self.rate_gbps.keys())
        for gone in sorted(self.rate_gbps.keys() - {port.name for port in told})[:num_new]:
            del self.rate_gbps[gone]
        self.rate_gbps |= better
        try:
            write_durably(self._file, msgspec.json.encode(self.rate_gbps))
        except OSError as error:
            _log.warning("ports_not_kept", path=str(self._file), fault=error.strerror)


def _kept_in(file: Path) -> dict[str, float]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, float])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("ports_not_read", path=str(file), fault=str(error))
        return {}
