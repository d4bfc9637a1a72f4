"""One all-gather of a group of hosts: what each is told, and how it went.

Whoever asks for it: the lead of a pairwise check, or the control plane before a gang starts.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta

from muster.wire.messages import WireAnswer, WireMessage

CALLED_OFF: Final = "called off"
"""What a host answers that was told to wait no longer: no word about itself."""
CANNOT: Final = "cannot take part"
"""How the answer begins of a host that cannot meet anybody, such as one without torch: no word about its network."""
ENDED: Final = "its process ended"
"""How the answer begins of a host whose own process broke off, whatever the others did."""

Port = Annotated[int, Meta(ge=1, le=65_535)]
Why = Annotated[str, Meta(max_length=1024)]


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
