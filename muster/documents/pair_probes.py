"""Probes between racks, as the API answers them."""

from typing_extensions import TypedDict

from muster.documents.fields import Page


class RackPair(TypedDict):
    """The latency and loss between hosts of two racks, or within one. A rack is null where a host's is not known.

    ``num_pairs``: pairs of hosts. Round trips in µs, null where no message came back: the median of the probes'
    medians, and the slowest probe's 99th percentile. ``worst_node``, ``worst_peer``: the two hosts with the greatest
    loss, by name.
    """

    rack: str | None
    other_rack: str | None
    num_pairs: int
    num_sent: int
    num_lost: int
    lost_share: float
    round_trip_p50_us: float | None
    round_trip_p99_us: float | None
    worst_node: str
    worst_peer: str


class RackPairPage(Page):
    items: list[RackPair]
