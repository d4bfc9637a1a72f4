"""Hosts of a running attempt probe each other, next to the peers that each host has anyway."""

from collections.abc import Sequence

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import inventory
from control.hosts import pair_probes
from health.pairwise.pair_probes import PEERS, ROUND_S
from muster.db.models import NodeLatest
from muster.domain.ids import NodeId
from muster.wire.pair_probes import PAIR_PROBE_PROTOCOL, PairProbePoll
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, enrol_host, make_fleet
from tests.played_host import PlayedHost

ROUNDS = 8


def peers_of(units: UnitOfWorkFactory, host: PlayedHost) -> list[NodeId]:
    """Poll as the agent of a host."""
    poll = PairProbePoll(protocol=PAIR_PROBE_PROTOCOL, boot_id="boot-1", session="0123456789abcdef", port=9420)
    with units.begin(host.principal, pair_probes.POLL, quiet=True) as unit:
        return [NodeId(each.node_id) for each in pair_probes.poll(unit, poll, b"secret").peers]


def all_report(units: UnitOfWorkFactory, hosts: Sequence[PlayedHost]) -> None:
    with units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        for host in hosts:
            latest = unit.session.get(NodeLatest, host.node_id) or NodeLatest(node_id=host.node_id, boot_id="boot-1")
            latest.received_at = unit.now
            unit.session.add(latest)
    for host in hosts:
        peers_of(units, host)


def test_the_hosts_of_a_running_attempt_probe_each_other_in_each_round(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    fleet = make_fleet(units)
    hosts = [PlayedHost(units, fleet.node_id), *(PlayedHost(units, enrol_host(units, f"host-{n}")) for n in range(6))]
    job_id = fleet.submit(shape={"nodes": 2, "gpus_per_node": 2})
    for host in hosts:
        host.beat()
    fleet.reconcile()
    fleet.cycle()
    view = fleet.attempts(job_id)[-1]
    known = {host.node_id: host for host in hosts}
    gang = [known[each.part.node_id] for each in view.hosts]
    others = [host for host in hosts if host not in gang]
    for host in gang:
        assert host.claim(view.attempt.id, view.attempt.fence).granted
        host.report(view.attempt.id, view.attempt.fence, "started")
    for _ in range(ROUNDS):
        clock.advance(ROUND_S)
        all_report(units, hosts)
        for host, other in zip(gang, reversed(gang), strict=True):
            peers = peers_of(units, host)
            assert other.node_id in peers
            assert len(peers) == len(set(peers)) <= PEERS + 1
        assert all(len(peers_of(units, host)) <= PEERS for host in others)
