"""The pairwise check of a gang: its lead gives each host its peers, and receives results. One JSON line each.

A host sends ``Hello`` once, then receives ``PairwiseOrder`` or, at last, ``Ended``. It answers each ``PairwiseOrder``
with ``PairwiseResult``, sooner where it receives ``CallOff``. A ``CallOff`` after the answer means nothing.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta

from muster.wire.enrolment import HostName
from muster.wire.meeting import PairwiseOrder, Port
from muster.wire.messages import WireAnswer, WireMessage

PAIRWISE_PROTOCOL: Final = 1
LINE_BYTES_MAX: Final = 1 << 20

RunName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{4,64}\Z")]


class Hello(WireMessage, frozen=True, kw_only=True):
    """The first message of a host to the lead of a pairwise check.

    ``address``: where the others reach this host, if that is not the address of its connection. ``port``: the port of
    its next store.
    """

    protocol: int
    run: RunName
    host: HostName
    address: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    port: Port
    has_gpu: bool


class CallOff(WireAnswer, frozen=True, kw_only=True, tag="call-off"):
    """Another host of the group has failed: there is nothing to wait for."""


class Ended(WireAnswer, frozen=True, kw_only=True, tag="ended"):
    """The end of the check. ``outcome``: of the host that receives it; ``refused`` where it was not admitted."""

    outcome: Literal["cleared", "bad", "undecided", "refused"]
    why: str = ""


FromLead = PairwiseOrder | CallOff | Ended
