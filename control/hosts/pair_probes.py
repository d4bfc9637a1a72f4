"""Pair probes between hosts: the peers of each node, and the results by pair of racks.

An agent's answers are requested with a key made of the installation's own secret, the node and the round, so that
nothing secret is stored. A responder takes the keys of a few rounds, so that it and its peers need not ask at once.
"""

import hashlib
import hmac
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import aliased

from control.core.unit_of_work import UnitOfWork, declare_action
from control.hosts.probe_responders import ProbeResponders
from control.hosts.rack_pairs import RackPairRow, between_racks, responders
from health.pairwise.pair_probes import BURST, BURST_EVERY_S, ROUND_S, gang_peer, peers_of, round_at
from muster.db.models import Attempt, AttemptHost, Node, PairProbeResponder
from muster.domain.errors import NotFoundError, UnauthenticatedError, UpgradeRequiredError
from muster.domain.ids import NodeId
from muster.domain.principals import Permission
from muster.domain.states import AttemptState, HostPartState
from muster.wire.pair_probes import PAIR_PROBE_PROTOCOL, PairProbeAnswer, PairProbePeer, PairProbePoll, ProbedPeer

POLL: Final = declare_action("pair_probe.poll")
READ: Final = declare_action("pair_probe.read")
REPORTED_WITHIN: Final = timedelta(seconds=2 * ROUND_S)
"""Time after its agent's last request until a responder counts as answering no more."""
REQUESTED_WITHIN: Final = timedelta(seconds=ROUND_S + 3 * BURST_EVERY_S)
"""An agent that answers asks once a round. One that has not may be back without a port: no result names it."""
CONTACT_WITHIN: Final = timedelta(seconds=90)
"""Time without a report after which an agent counts as away."""
CONTACT_BEFORE_REPORT: Final = timedelta(seconds=0.75 * BURST_EVERY_S)
"""The same limit before a result names it: less than the time between the newest burst and its report.

A host that was away in that burst is then silent still, or has asked again.
"""
MOST_GANGS: Final = 2
"""Attempts on a node of which one more peer each is probed."""
KEYS_BEFORE: Final = 1
KEYS_AFTER: Final = 3
_racks: Final = ProbeResponders()


def poll(unit: UnitOfWork, request: PairProbePoll, secret_key: bytes) -> PairProbeAnswer:
    """Return the peers that the calling node probes in this round. Begin the unit ``quiet``: a port leaves no trace.

    Raises:
        UpgradeRequiredError: another protocol.
    """
    node_id = _node_of(unit, request.protocol)
    node = unit.session.get(Node, node_id)
    if node is None:
        raise NotFoundError
    number = round_at(unit.now.timestamp())
    heard_since = unit.now - CONTACT_WITHIN
    _note_responder(unit, node_id, request)
    peers: tuple[PairProbePeer, ...] = ()
    if request.port is not None:
        told_since = unit.now - REPORTED_WITHIN
        racks = _racks.around(unit.session, node, unit.now, reported_since=told_since, contact_since=heard_since)
        wanted = tuple(dict.fromkeys((*peers_of(node_id, racks, number), *_gang_peers(unit, node_id, number))))
        found = responders(unit.session, wanted, reported_since=told_since, contact_since=heard_since)
        peers = tuple(
            PairProbePeer(
                node_id=each.node_id,
                session=each.session,
                address=each.address,
                port=each.port,
                key=key_of(secret_key, each.node_id, number),
            )
            for each in (found[peer] for peer in wanted if peer in found)
        )
    numbers = range(number - KEYS_BEFORE, number + KEYS_AFTER + 1)
    return PairProbeAnswer(
        address=node.address,
        keys=tuple(key_of(secret_key, node_id, each) for each in numbers),
        peers=peers,
        withheld=_withheld(unit, request.probed),
        burst=BURST,
        burst_every_s=BURST_EVERY_S,
        poll_again_s=ROUND_S - unit.now.timestamp() % ROUND_S,
    )


def rack_pairs(unit: UnitOfWork, *, hours: int, limit: int) -> list[RackPairRow]:
    """Return the results by pair of racks, the greatest loss first."""
    unit.principal.require(Permission.NODE_READ)
    return between_racks(unit.session, unit.now, timedelta(hours=hours), limit)


def key_of(secret_key: bytes, node_id: NodeId, round_number: int) -> str:
    """Return the key of requests for this node's answers in that round: 64 hexadecimal digits."""
    return hmac.new(secret_key, f"pair probe|{node_id}|{round_number}".encode(), hashlib.sha256).hexdigest()


def _note_responder(unit: UnitOfWork, node_id: NodeId, request: PairProbePoll) -> None:
    if request.port is None:  # an agent that has just started answers no probes yet
        mine = PairProbeResponder.node_id == node_id
        unit.session.execute(delete(PairProbeResponder).where(mine, PairProbeResponder.session != request.session))
        return
    told = {
        PairProbeResponder.session: request.session,
        PairProbeResponder.port: request.port,
        PairProbeResponder.reported_at: unit.now,
        PairProbeResponder.boot_id: request.boot_id,
    }
    found = unit.session.execute(
        update(PairProbeResponder).where(PairProbeResponder.node_id == node_id).values(told).returning(1)
    ).first()
    if found is None:
        new = insert(PairProbeResponder).values({PairProbeResponder.node_id: node_id, **told})
        unit.session.execute(new.on_conflict_do_update(index_elements=["node_id"], set_=told))


def _gang_peers(unit: UnitOfWork, node_id: NodeId, round_number: int) -> list[NodeId]:
    """Return a host of each attempt that runs on the node: their links explain waits that all ranks share."""
    others = aliased(AttemptHost)
    num_hosts = select(func.count()).where(others.attempt_id == AttemptHost.attempt_id).scalar_subquery()
    parts = (
        select(AttemptHost.attempt_id, AttemptHost.node_rank, num_hosts)
        .join(Attempt, Attempt.id == AttemptHost.attempt_id)
        .where(AttemptHost.node_id == node_id, AttemptHost.state != HostPartState.CLEAN)
        .where(Attempt.state == AttemptState.RUNNING)
        .order_by(AttemptHost.attempt_id)
        .limit(MOST_GANGS)
    )
    found: list[NodeId] = []
    for attempt_id, node_rank, num in unit.session.execute(parts).all():
        place = gang_peer(node_rank, num, round_number)
        peer = select(AttemptHost.node_id).where(AttemptHost.attempt_id == attempt_id, AttemptHost.node_rank == place)
        found += [] if place is None else [unit.session.scalars(peer).one()]
    return found


def _withheld(unit: UnitOfWork, probed: Sequence[ProbedPeer]) -> tuple[str, ...]:
    nodes = [NodeId(each.node_id) for each in probed]
    reported_since, contact_since = unit.now - REQUESTED_WITHIN, unit.now - CONTACT_BEFORE_REPORT
    found = responders(unit.session, nodes, reported_since=reported_since, contact_since=contact_since)
    same = {each.node_id for each in found.values()}
    return tuple(
        each.node_id
        for each in probed
        if each.node_id not in same or found[NodeId(each.node_id)].session != each.session
    )


def _node_of(unit: UnitOfWork, protocol: int) -> NodeId:
    unit.principal.require(Permission.HOST_REPORT)
    if unit.principal.node_id is None:
        raise UnauthenticatedError
    if protocol != PAIR_PROBE_PROTOCOL:
        message = f"protocol {protocol} is not supported; this server supports {PAIR_PROBE_PROTOCOL}"
        raise UpgradeRequiredError(message, spoken=PAIR_PROBE_PROTOCOL)
    return unit.principal.node_id
