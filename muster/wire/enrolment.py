"""The enrolment of a host, and the hourly proof of its agent's identity.

A join token (one use, one host name, minutes) is exchanged for a node; from then on the agent's own Ed25519 key, which
never leaves the host, signs each request for a short-lived token.
"""

from typing import Annotated, Final

from msgspec import Meta

from muster.wire.host import BootId
from muster.wire.messages import WireAnswer, WireMessage
from muster.wire.telemetry import MAX_GPUS, Milliseconds

AGENT_FOLDER: Final = "agent"
NODE_FILE: Final = "identity.json"
TOKEN_FILE: Final = "node.token"  # noqa: S105  # a file's name
"""In a host's state folder: the files with its agent's node and a valid token."""
PROGRESS_FILE: Final = "progress"
"""Name of the file, next to the token, whose age shows how long ago the loops of the agent advanced."""
ENROLMENT_PROTOCOL: Final = 1
MAX_RDMA_PORTS: Final = 256

Printable = Annotated[str, Meta(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
Identifier = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:/-]+\Z")]
HostName = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?\Z")]
PortName = Annotated[str, Meta(min_length=3, max_length=64, pattern=r"^[A-Za-z0-9_.-]+/[0-9]{1,3}\Z")]
Nonce = Annotated[str, Meta(min_length=16, max_length=64, pattern=r"^[A-Za-z0-9_-]+\Z")]


class GpuClaim(WireMessage, frozen=True, kw_only=True):
    """One GPU as its host reports it: a claim, refused where the UUID belongs to another node."""

    uuid: Identifier
    slot_index: Annotated[int, Meta(ge=0, lt=1024)]
    model: Printable
    memory_bytes: Annotated[int, Meta(gt=0, lt=1 << 53)]
    compute_capability: Printable
    driver_version: Printable
    serial: Printable | None = None


class EnrolRequest(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A request to enrol a host. Sending the same request again has effect once.

    ``public_key``: the 32 bytes of Ed25519, base64 on the wire. ``rdma_ports``: names of the host's InfiniBand and RoCE
    ports, such as ``mlx5_0/1``. Empty fields are omitted, since an older server does not know them.
    """

    protocol: int
    token: Annotated[str, Meta(max_length=128)]
    host_name: HostName
    public_key: Annotated[bytes, Meta(min_length=32, max_length=32)]
    gpus: Annotated[tuple[GpuClaim, ...], Meta(max_length=MAX_GPUS)] = ()
    is_simulated: bool = False
    rdma_ports: Annotated[tuple[PortName, ...], Meta(max_length=MAX_RDMA_PORTS)] = ()


class EnrolAnswer(WireAnswer, frozen=True, kw_only=True):
    node_id: str


class TokenRequest(WireMessage, frozen=True, kw_only=True):
    """``instance`` lives in the agent's memory alone. ``at_ms`` must grow from request to request of one node.

    ``signature`` is Ed25519 over ``challenge_bytes``.
    """

    protocol: int
    boot_id: BootId
    instance: Nonce
    nonce: Nonce
    at_ms: Milliseconds
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


class TokenAnswer(WireAnswer, frozen=True, kw_only=True):
    """Counted from the receipt of this answer. ``renew_after_s``: when to request the next one."""

    token: str
    expires_in_s: float
    renew_after_s: float


def challenge_bytes(node_id: str, *, boot_id: str, instance: str, nonce: str, at_ms: int) -> bytes:
    """Return the bytes that the agent signs: each part with its length, so that different requests never look alike."""
    parts = ("muster-node-token-1", node_id, boot_id, instance, nonce, str(at_ms))
    return b"".join(len(encoded).to_bytes(4) + encoded for encoded in (part.encode() for part in parts))
