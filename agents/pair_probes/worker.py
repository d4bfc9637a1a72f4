"""The loop of probes between hosts: requests peers, probes each once a minute, and reports at the end of a round.

A host reports a peer only after the control plane has confirmed that the peer's agent ran all the while: a host that
reboots, or an agent that is upgraded, is no fault of the network.
"""

import random
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from agents.events.naming import Naming
from agents.exchange import Post, exchanged
from agents.observer import Clocks
from agents.pair_probes.prober import Measured, probe
from agents.pair_probes.responder import Responder
from agents.probes.interface import ProbeEvent
from health.pairwise.pair_probes import BURST_EVERY_S, ROUND_S
from muster.client.transport import Problem, UnreachableError
from muster.domain.evidence.findings import EventKind, Source
from muster.wire.pair_probes import PAIR_PROBE_PROTOCOL, PairProbeAnswer, PairProbePeer, PairProbePoll, ProbedPeer

PATH: Final = "/v1/hosts/self/pair-probes/ask"
JITTER: Final = 0.2
AWAY_S: Final = 30.0
BURST_MAX: Final = 100
BURST_EVERY_S_MIN: Final = 5.0
POLL_S_MIN: Final = 5.0
CLOSING_S: Final = 2.0
"""Longest time until a socket is free again."""
_log = structlog.get_logger(__name__)


class PairProbeServer(Protocol):
    """The server's side. Raises ``UnreachableError`` or ``Problem``."""

    def poll(self, request: PairProbePoll) -> PairProbeAnswer: ...


class HttpPairProbeServer:
    def __init__(self, post: Post) -> None:
        self._post = post

    def poll(self, request: PairProbePoll) -> PairProbeAnswer:
        return exchanged(self._post, PATH, request, PairProbeAnswer)


@dataclass(slots=True)
class _Probed:
    peer: PairProbePeer
    measured: Measured


@dataclass(slots=True)
class PairProbeWorker:
    """State of the loop. ``port``: where to answer. ``keep`` takes events durably. ``probing``: as ``prober.probe``."""

    server: PairProbeServer
    port: int
    boot_id: str
    clocks: Clocks
    rng: random.Random
    keep: Callable[[tuple[ProbeEvent, ...]], object]
    session: str = field(default_factory=lambda: secrets.token_hex(16))
    responder: Responder | None = None
    _burst: int = 0
    _every_s: float = BURST_EVERY_S
    _probed: list[_Probed] = field(default_factory=list)
    _poll_at_s: float = 0.0
    _given_s: float = 0.0
    _faults_logged: set[str] = field(default_factory=set)
    _answering: threading.Thread | None = None

    def run(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                self.turn(stop)
                stop.wait(min(self._every_s, max(self._poll_at_s - self._now_s(), 0.0)) * self._jitter())
        finally:
            if self.responder is not None:
                self.responder.close()
                self.responder = None

    def turn(self, stop: threading.Event) -> None:
        """Request peers where it is time, then probe each once."""
        if self._now_s() >= self._poll_at_s:
            self._ask(stop)
        if self._now_s() - self._given_s > 2 * ROUND_S:
            self._probed = []  # the control plane is away: the peers may have gone too
        for each in self._probed:
            if stop.is_set():
                return
            self._probe(each)

    def _ask(self, stop: threading.Event) -> None:
        try:
            if self.responder is None:
                self._answer_at(self._poll(with_port=False), stop)
            answer = self._poll(with_port=self.responder is not None)
            if self.responder is not None and self.responder.address != answer.address:
                self._move(answer, stop)
                answer = self._poll(with_port=self.responder is not None)
        except (UnreachableError, Problem) as fault:
            self._log_once("pair_probes_not_asked", str(fault))
            self._poll_at_s = self._now_s() + AWAY_S * self._jitter()
            return
        self._notify(answer)
        self._take(answer)

    def _poll(self, *, with_port: bool) -> PairProbeAnswer:
        """Return the answer to a request; with a port it names the probed peers, whose report waits for this answer."""
        whom = [each.peer for each in self._probed] if with_port else []
        request = PairProbePoll(
            protocol=PAIR_PROBE_PROTOCOL,
            boot_id=self.boot_id,
            session=self.session,
            port=self.responder.port if with_port and self.responder is not None else None,
            probed=tuple(ProbedPeer(node_id=peer.node_id, session=peer.session) for peer in whom),
        )
        return self.server.poll(request)

    def _answer_at(self, answer: PairProbeAnswer, stop: threading.Event) -> None:
        try:
            responder = Responder(answer.address, self.port)
        except OSError as error:
            advice = (
                "pair_probe_port must be free, and the node's address one of this host's (`muster node list --wide`)"
            )
            self._log_once("pair_probes_not_answered", f"{answer.address}:{self.port}: {error.strerror}", advice)
            return
        self.responder = responder
        responder.keys = _keys(answer)
        self._answering = threading.Thread(target=responder.run, args=(stop,), name="pair_probe_answers", daemon=True)
        self._answering.start()
        _log.info("pair_probes_answered", address=answer.address, port=responder.port)

    def _move(self, answer: PairProbeAnswer, stop: threading.Event) -> None:
        """Answer at the node's new address: peers get that one, and send their questions there."""
        if self.responder is not None:
            self.responder.close()
        if self._answering is not None:
            self._answering.join(CLOSING_S)
        self.responder, self.session = None, secrets.token_hex(16)
        self._answer_at(answer, stop)

    def _take(self, answer: PairProbeAnswer) -> None:
        if self.responder is not None:
            self.responder.keys = _keys(answer)
        now_s = self._now_s()
        self._probed = [_Probed(peer, Measured(now_s)) for peer in answer.peers]
        self._burst = min(max(answer.burst, 1), BURST_MAX)
        self._every_s = max(answer.burst_every_s, BURST_EVERY_S_MIN)
        self._given_s = now_s
        # A little after the round has begun, and no two hosts of a fleet at once.
        self._poll_at_s = now_s + max(answer.poll_again_s, POLL_S_MIN) + self.rng.uniform(0, self._every_s)
        self._faults_logged.clear()

    def _probe(self, each: _Probed) -> None:
        peer = each.peer
        try:
            probe(peer.address, peer.port, bytes.fromhex(peer.key), each.measured, count=self._burst)
        except (OSError, ValueError) as error:
            self._log_once("pair_probe_not_sent", f"{peer.address}:{peer.port}: {error}")

    def _notify(self, answer: PairProbeAnswer) -> None:
        at_ms, now_s = self.clocks.wall_ms(), self._now_s()
        naming = Naming(f"{self.session}:{int(now_s * 1000)}")
        events = tuple(
            naming.event(EventKind.PAIR_PROBE, Source.AGENT, at_ms, each.measured.values(now_s), text=each.peer.node_id)
            for each in self._probed
            if each.measured.sent and each.peer.node_id not in answer.withheld
        )
        self.keep(events)

    def _log_once(self, event: str, fault: str, suggestion: str = "") -> None:
        """Log a fault once, until a request is answered again."""
        if event not in self._faults_logged:
            self._faults_logged.add(event)
            _log.warning(event, fault=fault, **({"suggestion": suggestion} if suggestion else {}))

    def _now_s(self) -> float:
        return self.clocks.boottime_ms() / 1000

    def _jitter(self) -> float:
        return self.rng.uniform(1 - JITTER, 1 + JITTER)


def _keys(answer: PairProbeAnswer) -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(key) for key in answer.keys)
