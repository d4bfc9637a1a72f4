"""The loop on real sockets, the control plane played: the probed peers, and which of them are reported."""

import random
import threading
from dataclasses import dataclass, field

import msgspec

from agents.observer import Clocks
from agents.pair_probes.worker import AWAY_S, PairProbeWorker
from agents.probes.interface import ProbeEvent
from agents.reports import event_report
from health.detectors.registry import judge_signal
from health.pairwise.pair_probes import ROUND_S
from muster.client.transport import UnreachableError
from muster.domain.evidence.findings import EventKind, GpuSignal, Source
from muster.domain.evidence.state_readings import PAIR_PROBE
from muster.domain.ids import NodeId
from muster.wire.pair_probes import PairProbeAnswer, PairProbePeer, PairProbePoll
from tests.health.case_factory import POLICY

KEY = "ab" * 32


@dataclass
class Played:
    """The control plane: names the peers it is given."""

    address: str = "127.0.0.1"
    peers: tuple[PairProbePeer, ...] = ()
    withheld: tuple[str, ...] = ()
    requested: list[PairProbePoll] = field(default_factory=list)
    is_away: bool = False

    def poll(self, request: PairProbePoll) -> PairProbeAnswer:
        if self.is_away:
            raise UnreachableError("it is away")
        self.requested.append(request)
        peers = self.peers if request.port is not None else ()
        return PairProbeAnswer(
            address=self.address, keys=(KEY,), peers=peers, withheld=self.withheld, burst=10, poll_again_s=900.0
        )


class Host:
    """A worker with a time that the test sets."""

    def __init__(self, server: Played) -> None:
        self.now_s = 1000.0
        self.reported: list[ProbeEvent] = []
        self.stop = threading.Event()
        clocks = Clocks(boottime_ms=lambda: round(self.now_s * 1000), wall_ms=lambda: 1_790_000_000_000)
        self.server = server
        chance = random.Random(7)  # noqa: S311  # jitter, no secret
        self.worker = PairProbeWorker(server, 0, "boot-1", clocks, chance, self.reported.extend)

    def turn(self, *, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.worker.turn(self.stop)

    def as_peer(self, node_id: str) -> PairProbePeer:
        assert self.worker.responder is not None
        port = self.worker.responder.port
        return PairProbePeer(node_id=node_id, session=self.worker.session, address="127.0.0.1", port=port, key=KEY)

    def end(self) -> None:
        self.stop.set()
        if self.worker.responder is not None:
            self.worker.responder.close()


def pair() -> tuple[Host, Host]:
    """Alpha, which probes, and beta, which answers."""
    alpha, beta = Host(Played()), Host(Played())
    beta.turn()
    alpha.server.peers = (beta.as_peer("beta"),)
    return alpha, beta


def signal_of(event: ProbeEvent) -> GpuSignal:
    told = event_report(event, "boot-1", is_open=False)
    values = msgspec.json.decode(msgspec.json.encode(told.values), type=dict[str, float])
    return GpuSignal(
        signal_id=told.event_id,
        node_id=NodeId("alpha"),
        gpu_uuid=None,
        kind=EventKind(told.kind),
        source=Source(told.source),
        at_ms=told.at_ms,
        text=told.text,
        values=values,
    )


def test_a_round_of_bursts_becomes_one_event_that_the_detector_reads() -> None:
    alpha, beta = pair()
    for _ in range(12):
        alpha.turn(after_s=60)
    assert alpha.reported == [], "the round is not over"
    alpha.turn(after_s=ROUND_S)
    (event,) = alpha.reported
    assert (event.kind, event.source, event.text, event.gpu_uuid) == (EventKind.PAIR_PROBE, Source.AGENT, "beta", None)
    assert event.values.keys() == PAIR_PROBE.keys()
    assert (event.values["sent"], event.values["lost"]) == (120, 0)
    assert alpha.server.requested[-1].probed[0].node_id == "beta"
    assert alpha.server.requested[-1].probed[0].session == beta.worker.session
    assert not [one for one in judge_signal(signal_of(event), POLICY) if "loss" in one.fault_key]
    alpha.end()
    beta.end()


def test_what_is_lost_is_a_finding_about_the_peer() -> None:
    alpha, beta = pair()
    alpha.turn()
    assert beta.worker.responder is not None
    beta.worker.responder.keys = ()
    for _ in range(10):
        alpha.turn(after_s=60)
    alpha.turn(after_s=ROUND_S)
    (event,) = alpha.reported
    assert (event.values["sent"], event.values["lost"]) == (110, 100)
    assert "pair_probe:loss:beta" in {one.fault_key for one in judge_signal(signal_of(event), POLICY)}
    alpha.end()
    beta.end()


def test_nothing_is_notified_of_a_peer_whose_agent_was_away() -> None:
    alpha, beta = pair()
    alpha.turn()
    beta.end()
    alpha.turn(after_s=60)
    alpha.server.withheld = ("beta",)
    alpha.turn(after_s=2 * ROUND_S)
    assert alpha.reported == []
    alpha.end()


def test_the_control_plane_away_loses_no_round_and_ends_the_probing_with_time() -> None:
    alpha, beta = pair()
    alpha.turn()
    alpha.server.is_away = True
    alpha.turn(after_s=ROUND_S + 100)
    alpha.server.is_away = False
    alpha.turn(after_s=2 * AWAY_S)
    (event,) = alpha.reported
    assert event.values["sent"] == 20, "probes of the time in which it was away are reported too"
    alpha.server.is_away = True
    alpha.turn(after_s=3 * ROUND_S)
    alpha.server.is_away = False
    alpha.turn(after_s=2 * AWAY_S)
    assert len(alpha.reported) == 1
    assert alpha.server.requested[-1].probed == ()
    alpha.end()
    beta.end()


def test_an_address_that_is_not_this_hosts_is_stated_and_no_peers_are_requested() -> None:
    """192.0.2.1 is no host (RFC 5737)."""
    alpha = Host(Played(address="192.0.2.1"))
    alpha.turn()
    assert alpha.worker.responder is None
    assert [each.port for each in alpha.server.requested] == [None, None]
    alpha.server.address = "127.0.0.1"
    alpha.turn(after_s=ROUND_S + 100)
    assert alpha.server.requested[-1].port is not None
    alpha.end()


def test_a_host_whose_address_changed_answers_at_the_new_one() -> None:
    """127.0.0.2 is this machine's too."""
    alpha, beta = pair()
    alpha.turn()
    session = beta.worker.session
    beta.server.address = "127.0.0.2"
    beta.turn(after_s=ROUND_S + 100)
    assert beta.worker.responder is not None
    assert (beta.worker.responder.address, beta.worker.session == session) == ("127.0.0.2", False)
    assert beta.server.requested[-1].session == beta.worker.session
    alpha.server.peers = (msgspec.structs.replace(beta.as_peer("beta"), address="127.0.0.2"),)
    alpha.turn(after_s=ROUND_S + 100)
    alpha.turn(after_s=ROUND_S + 100)
    assert (alpha.reported[-1].values["sent"], alpha.reported[-1].values["lost"]) == (10, 0)
    alpha.end()
    beta.end()


def test_the_loop_ends_when_it_is_reported_and_frees_its_port() -> None:
    alpha = Host(Played())
    thread = threading.Thread(target=alpha.worker.run, args=(alpha.stop,))
    thread.start()
    for _ in range(100):
        if alpha.server.requested:
            break
        alpha.stop.wait(0.05)
    alpha.stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert alpha.worker.responder is None
