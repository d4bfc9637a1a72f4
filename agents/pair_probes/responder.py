"""Responder to other hosts' probes: it answers signed questions alone, with as many bytes, at a bounded rate."""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agents import host_facts
from agents.pair_probes.datagrams import ANSWER, NUM_BYTES, QUESTION, Datagram, is_shaped, opened

QUESTIONS_PER_S: Final = 500.0
"""Limit of signed questions. Peers send two hundred a minute; questions beyond the limit get no answer."""
QUESTIONS_AT_ONCE: Final = 1_000.0
CHECKS_PER_S: Final = 4_000.0
"""Limit of datagrams of the right size and beginning, signed or not: about a twentieth of a core. A smaller flood of
forgeries loses no peer's question, which would be reported as the network's loss.
"""
CHECKS_AT_ONCE: Final = 8_000.0
_POLL_S: Final = 0.5


@dataclass(slots=True)
class Allowance:
    """A bucket of questions that fills with time."""

    per_s: float = QUESTIONS_PER_S
    at_once: float = QUESTIONS_AT_ONCE
    clock_s: Callable[[], float] = host_facts.monotonic_s
    _left: float | None = None
    _seen_s: float = 0.0

    def take(self) -> bool:
        now_s = self.clock_s()
        left = self.at_once if self._left is None else self._left + (now_s - self._seen_s) * self.per_s
        self._seen_s = now_s
        left = min(left, self.at_once)
        self._left = left - 1 if left >= 1 else left
        return left >= 1


class Responder:
    """The socket at ``address``, this host's own. Raises OSError where that is another host's, or the port is taken."""

    def __init__(self, address: str, port: int, *, allowance: Allowance | None = None) -> None:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )[0]
        self._socket = socket.socket(family, kind, protocol)
        try:
            self._socket.bind(place)
        except OSError:
            self._socket.close()
            raise
        self._socket.settimeout(_POLL_S)
        self.address = address
        self.port: int = self._socket.getsockname()[1]
        self.keys: tuple[bytes, ...] = ()
        """Keys that may sign questions; exchanged as the control plane requests."""
        self._allowance = allowance or Allowance()
        self._checks = Allowance(CHECKS_PER_S, CHECKS_AT_ONCE)
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        self._socket.close()

    def run(self, stop: threading.Event) -> None:
        """Answer until ``stop`` or ``close``."""
        while not stop.is_set() and not self._is_closed:
            try:
                self.turn()
            except OSError:  # the network is away, or the socket was closed
                stop.wait(_POLL_S)

    def turn(self) -> None:
        """Wait a moment for a datagram, and answer it if it is a question."""
        try:
            content, asker = self._socket.recvfrom(NUM_BYTES + 1)
        except (TimeoutError, ConnectionError):
            return
        if not is_shaped(content) or not self._checks.take():
            return
        found = opened(content, self.keys, QUESTION)
        if found is None or not self._allowance.take():
            return
        question, key = found
        try:
            self._socket.sendto(Datagram(ANSWER, question.nonce, question.number).sealed(key), asker)
        except OSError:  # its network is full or down: the sender counts a loss, correctly
            return
