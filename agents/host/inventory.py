"""The RDMA ports that a host has shown: each with the best rate that it ever had while it was up, kept on disk.

The driver does not report the maximum rate of a card's port; this file keeps the highest rate so far. It alone shows
that a card fell off its bus before the agent began. An operator who removes a card, or cables it slower, deletes the
file: it is written again from the ports that are there.
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
    """Inventory of ports. ``rate_gbps``: port → the best rate it was seen up with, Gb/s."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.rate_gbps = _kept_in(file)

    def saw(self, ports: Iterable[Port]) -> None:
        """Write the file where a port is new, or faster than ever. A full disk is logged; memory holds the ports."""
        told = list(ports)
        better = {
            port.name: rate
            for port in told
            if is_rdma(port.name) and port.state.get("state") == ACTIVE
            if (rate := port.state.get("rate_gbps", 0.0)) > self.rate_gbps.get(port.name, -1.0)
        }
        if not better:
            return
        # A driver's update may rename devices: for each new name one missing name is forgotten.
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
