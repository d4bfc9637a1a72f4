"""Probes between pairs of hosts: an agent requests peers to probe, and reports the port from which it answers.

Its measurements are events (``pair_probe`` of ``wire.telemetry``). ``agents.pair_probes.datagrams`` defines the
datagrams; the server issues the keys that sign them.
"""

from typing import Annotated, Final

from msgspec import Meta, field

from muster.wire.enrolment import Identifier, Nonce
from muster.wire.host import BootId
from muster.wire.messages import WireAnswer, WireMessage

PAIR_PROBE_PROTOCOL: Final = 1
MAX_PROBED: Final = 16


class ProbedPeer(WireMessage, frozen=True, kw_only=True):
    """A host that the agent has probed, and the session of that host's agent."""

    node_id: Identifier
    session: Nonce


class PairProbePoll(WireMessage, frozen=True, kw_only=True):
    """A request for peers to probe.

    ``port``: the port on which this host's agent answers probes; null where it does not answer (yet), and then it gets
    no peers. ``session`` identifies one start of the agent. ``probed``: the peers of the measurements that it is about
    to report.
    """

    protocol: int
    boot_id: BootId
    session: Nonce
    port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    probed: Annotated[tuple[ProbedPeer, ...], Meta(max_length=MAX_PROBED)] = ()


class PairProbePeer(WireAnswer, frozen=True, kw_only=True):
    """A peer to probe. ``key``: hexadecimal; datagrams to this peer are signed with it."""

    node_id: str
    session: str
    address: str
    port: int
    key: str


class PairProbeAnswer(WireAnswer, frozen=True, kw_only=True):
    """The server's answer to a request for peers.

    ``address``: the requesting host's own, as its peers know it. ``keys``: the keys of the probes that it answers.
    ``withheld``: the hosts in ``probed`` whose agent is silent or has restarted; losses there say nothing about the
    network. ``poll_again_s`` (``ask_again_s`` on the wire): when the next round has its peers.
    """

    address: str
    keys: tuple[str, ...]
    peers: tuple[PairProbePeer, ...] = ()
    withheld: tuple[str, ...] = ()
    burst: int = 20
    burst_every_s: float = 60.0
    poll_again_s: float = field(name="ask_again_s", default=900.0)
