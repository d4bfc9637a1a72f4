"""The holds of nodes by evidence about them, under the breaker, and the faults of nodes that cause them.

As in ``control.health.rule_cordons``: a node with a rule cordon takes nothing new, its programs run on, and
its GPUs count in the account of capacity that rules take out.
"""

from collections.abc import Mapping
from random import Random
from typing import Final

from health.evidence.evidence import join
from health.standing.breaker import FleetCounts, Taking, Way
from health.standing.rule_cordon import holding
from muster.domain.evidence.findings import Evidence, Finding, Severity, Source, Trust
from muster.domain.ids import EvidenceId, NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from simulator.world.clocks import WALL_START_MS
from simulator.world.hosts import Host
from simulator.world.kernel import Kernel
from simulator.world.server import Server
from simulator.world.settings import Settings
from simulator.world.standings import Standings
from simulator.world.wiring import Wiring

WORLDS_WITH_NODE_FAULTS: Final = 0.25
"""The share of worlds in which nodes have faults of their own."""


class NodeHolds:
    """The judge's holds of nodes. ``num_proposed``: how often the breaker did not admit one."""

    def __init__(
        self, kernel: Kernel, wiring: Wiring, server: Server, standings: Standings, counts: FleetCounts
    ) -> None:
        self._kernel, self._wiring, self._server, self._store = kernel, wiring, server, server.store
        self._standings, self._counts = standings, counts
        self.num_begun = self.num_ended = self.num_proposed = 0
        self._num_evidence = 0

    def take(self, finding: Finding) -> None:
        """Take a host's finding about itself."""
        known = self._store.node_evidence.get(finding.node_id, ())
        self._num_evidence += 1
        name = EvidenceId(f"node{self._num_evidence}")
        found = join(finding, known, self._wiring.health_policy, self._wall_ms(), name).evidence
        others = tuple(each for each in known if each.id != found.id)
        self._store.node_evidence[finding.node_id] = (*others, found)

    def repair(self, node_id: NodeId) -> None:
        """Note that the node's faults are over."""
        self._store.node_evidence.pop(node_id, None)

    def keep(self) -> None:
        """Hold exactly the nodes that their evidence holds and the breaker admits, in one transaction."""
        store, policy, now_ms = self._store, self._wiring.health_policy, self._wall_ms()
        if store.is_calm:  # persons repair what is reported late
            store.node_evidence.clear()
        found = {node_id: holding(told, policy, now_ms) for node_id, told in store.node_evidence.items()}
        wanted = {node_id: evidence for node_id, evidence in found.items() if evidence}
        over, new = sorted(store.nodes_on_hold - wanted.keys()), sorted(wanted.keys() - store.nodes_on_hold)
        if not over and not new:
            return
        ended = {Way.NODE_HOLD: [gpu for node_id in over for gpu in store.gpus[node_id]]}
        state = self._wiring.end_ways(store.breaker, ended, self._counts, policy, now_ms)
        takings = [self._taking(node_id, wanted[node_id]) for node_id in new]
        ruling = self._wiring.admit_takings(takings, state, self._counts, policy, now_ms)
        self._server.failpoint("judgement.judge.before_commit")
        store.breaker = ruling.state
        for node_id in over:
            store.nodes_on_hold.discard(node_id)
            self._standings.releases(node_id)
        for taking in ruling.allowed:
            self._begin(taking, now_ms)
        self._standings.sees(ruling.state)
        self.num_proposed += len(ruling.proposed)
        self.num_ended += len(over)
        self._server.failpoint("judgement.judge.after_commit")

    def _taking(self, node_id: NodeId, evidence: tuple[Evidence, ...]) -> Taking:
        is_doubtful = any(each.threatens_correctness for each in evidence)
        return Taking(node_id, self._store.gpus[node_id], Way.NODE_HOLD, is_doubtful)

    def _begin(self, taking: Taking, now_ms: int) -> None:
        node_id = NodeId(taking.subject)
        self._store.nodes_on_hold.add(node_id)
        self.num_begun += 1
        if taking.threatens_correctness:
            self._standings.holds_for_correctness(node_id, taking.gpu_uuids, now_ms)
        else:
            self._standings.holds(node_id, taking.gpu_uuids, now_ms, self._counts)

    def _wall_ms(self) -> int:
        return WALL_START_MS + self._kernel.now_ms


class NodeFaults:
    """Faults of nodes: in some worlds, by random numbers of their own, so that other worlds are as they were."""

    name = "node_faults"

    def __init__(
        self,
        kernel: Kernel,
        rng: Random,
        settings: Settings,
        server: Server,
        holds: NodeHolds,
        hosts: Mapping[NodeId, Host],
    ) -> None:
        self._kernel, self._rng, self._settings, self._server = kernel, rng, settings, server
        self._holds, self._hosts = holds, hosts
        self._is_over = rng.random() >= WORLDS_WITH_NODE_FAULTS

    def begin(self) -> None:
        if not self._is_over:
            self._soon()

    def end(self) -> None:
        self._is_over = True

    def strike(self) -> None:
        """Cause a fault of a node or repair one, and continue some time later."""
        if self._is_over:
            return
        node_id = self._rng.choice(list(self._hosts))
        if self._rng.random() < 0.4:
            self._server.receive(self._holds.repair, node_id)
        else:
            self._report(node_id)
        self._soon()

    def _soon(self) -> None:
        self._kernel.after(1 + int(self._rng.expovariate(1 / (2 * self._settings.fault_gap_ms))), self.strike)

    def _report(self, node_id: NodeId) -> None:
        host, is_doubtful = self._hosts[node_id], self._rng.random() < 0.2
        name = "xid:95" if is_doubtful else "port_down"
        finding = Finding(
            detector=name.partition(":")[0], version=1, fault_key=name, gpu_uuid=None, node_id=node_id,
            severity=Severity.DEGRADED, trust=Trust.MEASURED, source=Source.NVML, onset_ms=host.time.wall(),
            counts_for_ms=int(DEFAULT_POLICY.health.score.weight(Severity.DEGRADED).counts_for_s * 1000),
            summary=name, threatens_correctness=is_doubtful,
        )  # fmt: skip
        if host.is_on:
            host.up.send(self._server.receive, self._holds.take, finding)
