"""One all-gather of a group of hosts: the order to each, and its result.

The lead of a pairwise check requests it, or the control plane before a gang starts.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta

from muster.wire.messages import WireAnswer, WireMessage

CALLED_OFF: Final = "called off"
"""The answer of a host whose order was called off: it states nothing about that host."""
CANNOT: Final = "cannot take part"
"""Beginning of the answer of a host that cannot take part, such as one without torch.

It states nothing about the network.
"""
ENDED: Final = "its process ended"
"""Beginning of the answer of a host whose own process ended early, whatever the others did."""

Port = Annotated[int, Meta(ge=1, le=65_535)]
Why = Annotated[str, Meta(max_length=1024)]


class PairwiseResult(WireMessage, frozen=True, kw_only=True):
    """The result of one round of a pairwise check.

    ``rate_bytes_per_s``: the rate of data from the others; None where the round failed, with the reason in
    ``why``.
    """

    round: Annotated[int, Meta(ge=1)]
    rate_bytes_per_s: Annotated[float, Meta(gt=0, le=1e15)] | None = None
    why: Why = ""
    port: Port


class PairwiseOrder(WireAnswer, frozen=True, kw_only=True, tag="meet"):
    """The order for one round of a pairwise check. ``timeout_s`` counts from the receipt of the order."""

    round: int
    key: str
    hosts: tuple[str, ...]
    rank: int
    address: str
    port: int
    device: Literal["cpu", "cuda"]
    gather_bytes: int
    num_gathers: int
    timeout_s: float
