"""The host's network ports, by sysfs: InfiniBand and RoCE devices, and Ethernet interfaces with hardware beneath.

A port's name is as in the contract (``state_readings.PORT_STATE``): ``mlx5_0/1``, or ``eth0``.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from agents.host.files import folders_in, read_number, read_text
from muster.domain.evidence.state_readings import PORT_COUNTERS

ACTIVE: Final = 4
DOWN: Final = 1
_LINK_UP: Final = 5
_POLLING: Final = 2
_DISABLED: Final = 3
_NUMBERED: Final = re.compile(r"\s*(\d{1,3})\s*:")
_RATE: Final = re.compile(r"\s*(\d{1,6}(?:\.\d{1,3})?)\s*Gb/sec")
_MBPS_PER_GBPS: Final = 1000


@dataclass(frozen=True, slots=True)
class Port:
    """One port at one time. ``folder`` is the place of its counters."""

    name: str
    folder: Path
    state: dict[str, float] = field(default_factory=dict)

    @property
    def is_down(self) -> bool:
        """Known not to be active: a port whose state cannot be read is neither."""
        return self.state.get("state", ACTIVE) != ACTIVE

    def was_up_before(self) -> bool:
        """Return whether the link was up since the card started, by its own counters.

        A port without a cable never was.
        """
        places = (self.folder / "counters" / "link_downed", self.folder / "carrier_up_count")
        return any((read_number(place) or 0) > 0 for place in places)

    def counters(self) -> dict[str, float]:
        """Return its counters among ``PORT_COUNTERS``."""
        places = [self.folder / name for name in ("counters", "hw_counters", "statistics", ".")]
        found: dict[str, float] = {}
        for name in PORT_COUNTERS:
            for place in places:
                count = read_number(place / name)
                if count is not None and count >= 0:
                    found[name] = count
                    break
        return found


Reader = Callable[[], list[Port]]


def ports_under(sys: Path) -> dict[str, Reader]:
    """Return device or interface → the reader of its ports, each of which may hang alone.

    ``sys``: /sys, or a tree of its shape. Raises OSError where the folders themselves cannot be read.
    """
    found: dict[str, Reader] = {}
    for device in folders_in(sys / "class" / "infiniband"):
        if (device / "device" / "physfn").exists():  # a virtual function exists only while a program uses it
            continue
        found[device.name] = partial(_ports_of, device)
    for interface in folders_in(sys / "class" / "net"):
        if (interface / "device").exists():  # bridges, tunnels and containers' ends have none
            found[interface.name] = partial(_interface, interface)
    return found


def rdma_ports_under(root: Path | None) -> frozenset[str]:
    """Return the names of the InfiniBand and RoCE ports that are there, up or down.

    ``root``: where the host's /sys is, or None. A card that does not answer is waited for; an unreadable one shows
    none.
    """
    if root is None:
        return frozenset()
    try:
        readers = ports_under(root / "sys")
        return frozenset(port.name for read in readers.values() for port in read() if is_rdma(port.name))
    except OSError:
        return frozenset()


def is_rdma(name: str) -> bool:
    """Return whether it is of InfiniBand or RoCE.

    The others are interfaces, which may have other names after any boot.
    """
    return "/" in name


def _ports_of(device: Path) -> list[Port]:
    return [Port(f"{device.name}/{port.name}", port, _infiniband(port)) for port in folders_in(device / "ports")]


def _interface(folder: Path) -> list[Port]:
    return [Port(folder.name, folder, _ethernet(folder))]


def _infiniband(port: Path) -> dict[str, float]:
    found = {
        "state": _number(_NUMBERED, port / "state"),
        "physical_state": _number(_NUMBERED, port / "phys_state"),
        "rate_gbps": _number(_RATE, port / "rate"),
    }
    layer = read_text(port / "link_layer", 64)
    if layer is not None:
        found["is_ethernet"] = float(layer.strip() == "Ethernet")
    return {name: value for name, value in found.items() if value is not None}


def _ethernet(interface: Path) -> dict[str, float]:
    """Return the state of an interface.

    ``carrier`` cannot be read where a person has taken the interface down: then ``operstate`` shows that.
    """
    found: dict[str, float] = {"is_ethernet": 1.0}
    carrier = read_number(interface / "carrier")
    operstate = (read_text(interface / "operstate", 64) or "").strip()
    if carrier is not None:
        found["state"] = ACTIVE if carrier == 1 else DOWN
        found["physical_state"] = _LINK_UP if carrier == 1 else _POLLING
    elif operstate in {"up", "down"}:
        found["state"] = ACTIVE if operstate == "up" else DOWN
        found["physical_state"] = _LINK_UP if operstate == "up" else _DISABLED
    speed_mbps = read_number(interface / "speed")
    if speed_mbps is not None and speed_mbps > 0:
        found["rate_gbps"] = speed_mbps / _MBPS_PER_GBPS
    return found


def _number(pattern: re.Pattern[str], path: Path) -> float | None:
    match = pattern.match(read_text(path, 256) or "")
    return None if match is None else float(match[1])
