"""Lines about faults in a job's output, joined with what was measured, as the API gives them."""

from typing_extensions import TypedDict


class TimelinePart(TypedDict):
    """A line, or a measured fault. ``role``: root, cascade, symptom, or measured. ``count``: how often it came."""

    role: str
    is_root: bool
    node: str
    rank: int | None
    pattern: str
    text: str
    count: int
    peer: str
    port: str
    gpu: str | None


class HostTransport(TypedDict):
    """The transport between hosts that NCCL chose on one host, such as rdma or socket, with its network cards."""

    node: str
    transport: str
    cards: list[str]


class PortGrowth(TypedDict):
    """Growth of a port's retries or timeouts while the attempt used it. ``num_users``: attempts that did meanwhile."""

    node: str
    port: str
    counter: str
    rise: float
    num_users: int


class FaultLines(TypedDict):
    """What lines about faults of one attempt state. ``sentence`` is null while there is none.

    ``parts``: the root first, if one is known, then what was measured about it, then what followed. ``warning``: RDMA
    was expected and is not used.
    """

    attempt_id: str | None
    attempt: int | None
    sentence: str | None
    parts: list[TimelinePart]
    transports: list[HostTransport]
    warning: str | None
    ports: list[PortGrowth]
