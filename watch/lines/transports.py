"""The transport that NCCL has chosen for the traffic between hosts, from its own lines, and whether RDMA is missing.

NCCL writes these lines at ``NCCL_DEBUG=INFO`` alone; Muster's default is ``WARN``. So without a line nothing is stated.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from watch.lines.findings import without_prefix


class Transport(StrEnum):
    """A network plugin of NCCL. ``rdma`` is InfiniBand or RoCE, ``libfabric`` EFA and the like."""

    RDMA = "rdma"
    LIBFABRIC = "libfabric"
    SOCKET = "socket"


_INFO: Final = r"[\w.-]{1,64}:\d{1,9}:\d{1,9} \[-?\d{1,3}\] NCCL INFO "
_CHOSEN: Final = re.compile(_INFO + r"Using network (?P<network>[\w .-]{1,40})")
_CARDS: Final = re.compile(_INFO + r"NET/(?P<kind>IB|Socket|OFI) ?: Using (?P<cards>.{1,400})")
_NO_CARD: Final = re.compile(_INFO + r"NET/IB ?: No device found")
_NETWORKS: Final = {
    "IB": Transport.RDMA,
    "IBext": Transport.RDMA,
    "Socket": Transport.SOCKET,
    "OFI": Transport.LIBFABRIC,
}
_CARD: Final = re.compile(r"\[\d{1,3}\](?P<card>[\w.-]{1,32})(?::(?P<port>\d{1,3})/(?P<link>\w{1,16}))?")


@dataclass(frozen=True, slots=True)
class ChosenTransport:
    """The choice of one communicator. ``cards``: network cards with their port, as in ``mlx5_0:1``."""

    transport: Transport
    cards: tuple[str, ...] = ()
    has_no_rdma_card: bool = False


def transport_words(chosen: ChosenTransport) -> str:
    """Return a choice as text, such as ``rdma (mlx5_0:1)``."""
    cards = f" ({', '.join(chosen.cards)})" if chosen.cards else ""
    return f"{chosen.transport}{cards}"


class TransportReader:
    """Reads the lines of one rank in order; ``chosen`` is None until NCCL has stated its choice."""

    def __init__(self) -> None:
        self.chosen: ChosenTransport | None = None
        self._cards: dict[Transport, tuple[str, ...]] = {}
        self._has_no_rdma_card = False

    def read(self, line: str) -> None:
        """Take one line of the rank's output."""
        words = without_prefix(line).strip()
        if _NO_CARD.match(words):
            self._has_no_rdma_card = True
        elif (found := _CARDS.match(words)) is not None:
            cards = tuple(_card(each) for each in _CARD.finditer(found["cards"]))
            self._choose(_NETWORKS[found["kind"]], cards)
        elif (found := _CHOSEN.match(words)) is not None:
            self._choose(_network(found["network"].strip()), None)

    def _choose(self, transport: Transport | None, cards: tuple[str, ...] | None) -> None:
        if transport is None:
            return
        if cards is not None:
            self._cards[transport] = cards
        self.chosen = ChosenTransport(transport, self._cards.get(transport, ()), self._has_no_rdma_card)


def rdma_warning(chosen: ChosenTransport | None, *, is_rdma_expected: bool) -> str | None:
    """Return a warning if NCCL uses sockets where the hosts of the job have active RDMA ports."""
    if chosen is None or not is_rdma_expected or chosen.transport is not Transport.SOCKET:
        return None
    interface = f" over {', '.join(chosen.cards)}" if chosen.cards else ""
    reason = "it found no RDMA device" if chosen.has_no_rdma_card else "it found a device and did not choose it"
    return (
        f"NCCL uses sockets{interface} between hosts that have RDMA ports: {reason}. Collectives are slower by an "
        "order of magnitude. Check that /dev/infiniband is visible to the job, and the variables NCCL_IB_DISABLE, "
        "NCCL_NET and NCCL_IB_HCA."
    )


def _card(found: re.Match[str]) -> str:
    return f"{found['card']}:{found['port']}" if found["port"] else found["card"]


def _network(name: str) -> Transport | None:
    if name in _NETWORKS:
        return _NETWORKS[name]
    is_fabric = any(each in name.lower() for each in ("libfabric", "ofi", "efa"))
    return Transport.LIBFABRIC if is_fabric else None
