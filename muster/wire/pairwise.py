"""The pairwise check of a gang: who leads it tells each host whom to meet, and hears how it went. One JSON line each.

A host says ``Hello`` once, is then told ``Meet`` or, at last, ``Ended``; it answers each ``Meet`` with ``Met``, sooner
where it is told ``CallOff``. One that comes after the answer means nothing.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta

from muster.wire.enrolment import HostName
from muster.wire.host import WireAnswer, WireMessage

PAIRWISE_PROTOCOL: Final = 1
LINE_BYTES_MAX: Final = 1 << 20
CALLED_OFF: Final = "called off"
"""What a host answers that was told to wait no longer: no word about itself."""

RunWord = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{4,64}\Z")]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Why = Annotated[str, Meta(max_length=1024)]


class Hello(WireMessage, frozen=True, kw_only=True):
    """``address``: where the others reach this host, if not from where it is heard. ``port``: its next store's."""

    protocol: int
    run: RunWord
    host: HostName
    address: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    port: Port
    has_gpu: bool


class Met(WireMessage, frozen=True, kw_only=True):
    """``rate_bytes_per_s``: received from the others; None where it failed, and ``why`` says how."""

    round: Annotated[int, Meta(ge=1)]
    rate_bytes_per_s: Annotated[float, Meta(gt=0, le=1e15)] | None = None
    why: Why = ""
    port: Port


class Meet(WireAnswer, frozen=True, kw_only=True, tag="meet"):
    """``timeout_s``: from the receipt of this, all of it."""

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


class CallOff(WireAnswer, frozen=True, kw_only=True, tag="call-off"):
    """Another host of the group has failed: there is nothing to wait for."""


class Ended(WireAnswer, frozen=True, kw_only=True, tag="ended"):
    """``outcome``: of the host that hears it; ``refused`` where it was not let in."""

    outcome: Literal["cleared", "bad", "undecided", "refused"]
    why: str = ""


FromLead = Meet | CallOff | Ended
