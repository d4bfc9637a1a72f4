"""Bytes per second through the host's ports, from counters in sysfs: each port once, whatever it is counted by.

The interfaces of a card that has an RDMA port belong to that port. IPoIB is within the port's own counters; RoCE is
within an interface's at some cards, and apart from it at others. So of several counters the greatest rate counts: no
byte counts twice, and at some cards the lesser part of mixed traffic is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from agents.host.condition import DEADLINE_S
from agents.host.files import folders_in, read_integer
from agents.host.ports import Port, Reader, is_rdma, ports_under
from agents.probes.deadline import Callers, NoAnswerError
from agents.rates import ByteRate, within_link
from muster.wire.telemetry import BYTES_PER_GBIT, MAX_PORTS, PortThroughput

_COUNTERS: Final = (
    (("counters/port_xmit_data", "counters/port_rcv_data"), 4),
    (("hw_counters/tx_bytes", "hw_counters/rx_bytes"), 1),
    (("statistics/tx_bytes", "statistics/rx_bytes"), 1),
)
"""Files of (sent, received) below a port or an interface, and the bytes of their unit."""
_SATURATED: Final = (1 << 32) - 1
"""A counter of InfiniBand with 32 bits stays at its greatest value until it is reset."""

Counts = dict[str, tuple[int, int]]
"""File → bytes sent and received so far."""


@dataclass(slots=True)
class _OfPort:
    rates: dict[str, tuple[ByteRate, ByteRate]] = field(default_factory=dict)


class PortMeter:
    """The host's ports as last read. ``sys``: /sys, or a tree of its shape."""

    def __init__(self, sys: Path) -> None:
        self._sys = sys
        self._callers = Callers()
        self._ports: dict[str, _OfPort] = {}

    def read(self, now_s: float) -> tuple[PortThroughput, ...]:
        """Return the ports that are up and whose rates since the reading before are known.

        ``now_s``: by a clock that only grows. A card that does not answer delays only itself, and no longer than the
        deadline.
        """
        found = dict(sorted(self._read_all().items())[:MAX_PORTS])
        self._ports = {name: self._ports.get(name, _OfPort()) for name in found}  # one that comes up begins again
        rates = (_throughput(port, counts, self._ports[name], now_s) for name, (port, counts) in found.items())
        return tuple(one for one in rates if one is not None)

    def _read_all(self) -> dict[str, tuple[Port, Counts]]:
        try:
            readers = self._callers.within(DEADLINE_S, "ports", lambda: ports_under(self._sys))
        except (NoAnswerError, OSError):
            return {}
        jobs = {name: partial(_read_device, self._sys, name, reader) for name, reader in readers.items()}
        answers = self._callers.all_within(DEADLINE_S, jobs)
        return {
            port.name: (port, counts)
            for answer in answers.values()
            if not isinstance(answer, BaseException)
            for port, counts in answer
        }


def _read_device(sys: Path, name: str, reader: Reader) -> list[tuple[Port, Counts]]:
    """Return the ports of one device, except ports that are down and interfaces that an RDMA port stands for."""
    interface = sys / "class" / "net" / name / "device"
    if (interface / "physfn").exists():
        return []
    found = []
    for port in reader():
        if not is_rdma(port.name) and (interface / "infiniband").exists():
            continue
        if not port.is_down:
            found.append((port, _counts(port)))
    return found


def _counts(port: Port) -> Counts:
    folders = [port.folder, *(_interfaces_of(port) if is_rdma(port.name) else ())]
    found: Counts = {}
    for folder in folders:
        for files, unit_bytes in _COUNTERS:
            sent, received = (read_integer(folder / file) for file in files)
            if sent is not None and received is not None and _SATURATED not in (sent, received):
                found[f"{folder}/{files[0]}"] = sent * unit_bytes, received * unit_bytes
    return found


def _interfaces_of(port: Port) -> Iterator[Path]:
    """Yield the interfaces of an RDMA port: of its card, and of its place on the card."""
    number = port.name.rpartition("/")[2]
    for interface in folders_in(port.folder.parent.parent / "device" / "net"):
        place = read_integer(interface / "dev_port")
        if number == str((place or 0) + 1):
            yield interface


def _throughput(port: Port, counts: Counts, known: _OfPort, now_s: float) -> PortThroughput | None:
    link_gbps = port.state.get("rate_gbps")
    link_bytes_per_s = None if link_gbps is None else link_gbps * BYTES_PER_GBIT
    known.rates = {file: known.rates.get(file, (ByteRate(), ByteRate())) for file in counts}
    greatest: list[float | None] = [None, None]
    for file, both in counts.items():
        for place, (rate, count) in enumerate(zip(known.rates[file], both, strict=True)):
            now = within_link(rate.read(count, now_s), link_bytes_per_s)
            before = greatest[place]
            greatest[place] = now if before is None or (now is not None and now > before) else before
    sent, received = greatest
    if sent is None or received is None:
        return None
    return PortThroughput(
        port=port.name, sent_bytes_per_s=round(sent), received_bytes_per_s=round(received), link_gbps=link_gbps
    )
