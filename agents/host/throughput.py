"""Bytes per second through the host's ports, from counters in sysfs: each port once, whatever it is counted by.

The interfaces of a card that has an RDMA port belong to that port. IPoIB is within the port's own counters; RoCE is
within an interface's on some cards, and apart from them on others. So the greatest rate of a port's counters is taken:
no byte counts twice, and of mixed traffic some cards report the greater part alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from agents.host.condition import DEADLINE_S
from agents.host.files import folders_in, read_integer
from agents.host.ports import Port, Reader, is_rdma, ports_under
from agents.probes.deadline import Callers, NoAnswerError
from agents.rates import ByteRates
from muster.wire.telemetry import BYTES_PER_GBIT, MAX_PORTS, PortThroughput

SEARCH_INTERVAL_S: Final = 60.0
"""How often cards and their counters are searched for: the search costs several times a reading of what it finds."""
_COUNTERS: Final = (
    ("counters/port_xmit_data", "counters/port_rcv_data", 4),
    ("hw_counters/tx_bytes", "hw_counters/rx_bytes", 1),
    ("statistics/tx_bytes", "statistics/rx_bytes", 1),
)
"""Files of (sent, received) below a port or an interface, and the bytes of their unit."""
_SATURATED: Final = (1 << 32) - 1
"""A counter of InfiniBand with 32 bits stays at its greatest value until it is reset."""


class _Counter(NamedTuple):
    sent: Path
    received: Path
    unit_bytes: int


Direction = Literal["sent", "received"]
Counts = dict[tuple[Direction, _Counter], int]
"""Bytes so far."""
Rates = ByteRates[tuple[Direction, _Counter]]


@dataclass(slots=True)
class _Device:
    """A card or an interface. ``counters``: of each of its ports that was up since the search."""

    ports: Reader
    counters: dict[str, tuple[_Counter, ...]] = field(default_factory=dict)

    def read(self) -> list[tuple[Port, Counts]]:
        """Return its ports, except ports that are down."""
        up = [port for port in self.ports() if not port.is_down]
        for port in up:
            if port.name not in self.counters:
                self.counters[port.name] = tuple(_counters_of(port))
        return [(port, _counts(self.counters[port.name])) for port in up]


class PortMeter:
    """The host's ports as last read. ``sys``: /sys, or a tree of its shape."""

    def __init__(self, sys: Path) -> None:
        self._sys = sys
        self._callers = Callers()
        self._devices: dict[str, _Device] = {}
        self._search_at_s = 0.0
        self._rates: dict[str, Rates] = {}

    def read(self, now_s: float) -> tuple[PortThroughput, ...]:
        """Return the ports that are up and whose rates since the reading before are known.

        ``now_s``: by a clock that only grows. A card that does not answer delays only itself, and no longer than the
        deadline.
        """
        if now_s >= self._search_at_s:
            self._search(now_s)
        answers = self._callers.all_within(DEADLINE_S, {name: one.read for name, one in self._devices.items()})
        known = [one for answer in answers.values() if not isinstance(answer, BaseException) for one in answer]
        known = sorted(known, key=lambda one: one[0].name)[:MAX_PORTS]
        self._rates = {port.name: self._rates.get(port.name, Rates()) for port, _ in known}  # a new port begins again
        found = (_throughput(port, counts, self._rates[port.name], now_s) for port, counts in known)
        return tuple(one for one in found if one is not None)

    def _search(self, now_s: float) -> None:
        try:
            self._devices = self._callers.within(DEADLINE_S, "ports", lambda: _devices_under(self._sys))
        except (NoAnswerError, OSError):
            return  # devices found before are read, and the next reading searches again
        self._search_at_s = now_s + SEARCH_INTERVAL_S


def _devices_under(sys: Path) -> dict[str, _Device]:
    """Return the devices, except virtual functions and interfaces of a card that has an RDMA port."""
    found = {}
    for name, reader in ports_under(sys).items():
        card = sys / "class" / "net" / name / "device"
        if not (card / "physfn").exists() and not (card / "infiniband").exists():
            found[name] = _Device(reader)
    return found


def _counters_of(port: Port) -> Iterator[_Counter]:
    for folder in (port.folder, *(_interfaces_of(port) if is_rdma(port.name) else ())):
        for sent, received, unit_bytes in _COUNTERS:
            if (folder / sent).exists():
                yield _Counter(folder / sent, folder / received, unit_bytes)


def _counts(counters: Iterable[_Counter]) -> Counts:
    found: Counts = {}
    for each in counters:
        sent, received = read_integer(each.sent), read_integer(each.received)
        if sent is not None and received is not None and _SATURATED not in (sent, received):
            found["sent", each] = sent * each.unit_bytes
            found["received", each] = received * each.unit_bytes
    return found


def _interfaces_of(port: Port) -> Iterator[Path]:
    """Yield the interfaces of an RDMA port: of its card, and of its place on the card."""
    number = port.name.rpartition("/")[2]
    for interface in folders_in(port.folder.parent.parent / "device" / "net"):
        place = read_integer(interface / "dev_port")
        if number == str((place or 0) + 1):
            yield interface


def _throughput(port: Port, counts: Counts, known: Rates, now_s: float) -> PortThroughput | None:
    link_gbps = port.state.get("rate_gbps")
    link_bytes_per_s = None if link_gbps is None else link_gbps * BYTES_PER_GBIT
    rates = known.read(counts, now_s, link_bytes_per_s)
    sent, received = _greatest(rates, "sent"), _greatest(rates, "received")
    if sent is None or received is None:
        return None
    return PortThroughput(
        port=port.name, sent_bytes_per_s=round(sent), received_bytes_per_s=round(received), link_gbps=link_gbps
    )


def _greatest(rates: Mapping[tuple[Direction, _Counter], float | None], direction: Direction) -> float | None:
    return max((rate for (way, _), rate in rates.items() if way == direction and rate is not None), default=None)
