"""A burst of questions to one peer: which were answered, and how long each took."""

import secrets
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from agents.pair_probes.datagrams import ANSWER, NONCE_BYTES, NUM_BYTES, QUESTION, Datagram, opened
from health.pairwise.pair_probes import nearest_rank

SPACING_S: Final = 0.01
"""Time between two questions of a burst, so that our own queue is not measured."""
WAIT_S: Final = 1.0
"""Time for the answers, after the last question. A later answer counts as lost."""


@dataclass(slots=True)
class Measured:
    """Measurements of one peer, over the bursts of a round. Round trips in µs."""

    began_s: float
    sent: int = 0
    round_trips_us: list[float] = field(default_factory=list)

    def values(self, now_s: float) -> dict[str, float]:
        """Return values by the names of ``state_readings.PAIR_PROBE``; without an answer there are no round trips."""
        ascending = sorted(self.round_trips_us)
        found = {
            "window_s": round(now_s - self.began_s, 3),
            "sent": float(self.sent),
            "lost": float(self.sent - len(ascending)),
        }
        if ascending:
            found["round_trip_p50_us"] = nearest_rank(ascending, 0.5)
            found["round_trip_p99_us"] = nearest_rank(ascending, 0.99)
        return found


def probe(
    address: str,
    port: int,
    key: bytes,
    into: Measured,
    *,
    count: int,
    spacing_s: float = SPACING_S,
    wait_s: float = WAIT_S,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> None:
    """Send ``count`` questions and note the answers in ``into``.

    Raises:
        OSError: this host has no route to that address at all; nothing is noted then.
    """
    family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as line:
        line.setblocking(False)
        line.connect(place)
        nonce = secrets.token_bytes(NONCE_BYTES)
        asked_ns: dict[int, int] = {}
        for number in range(count):
            question = Datagram(QUESTION, nonce, number).sealed(key)
            asked_ns[number] = clock_ns()
            _send(line, question)
            into.sent += 1
            _receive(line, key, nonce, asked_ns, into, clock_ns() + int(spacing_s * 1e9), clock_ns)
        if asked_ns:
            _receive(line, key, nonce, asked_ns, into, clock_ns() + int(wait_s * 1e9), clock_ns, is_last=True)


def _send(line: socket.socket, question: bytes) -> None:
    """Send a question. One that cannot be sent counts as lost: the peer's host refuses it, or our queue is full."""
    try:
        line.send(question)
    except OSError:
        return


def _receive(
    line: socket.socket,
    key: bytes,
    nonce: bytes,
    sent_ns: dict[int, int],
    into: Measured,
    until_ns: int,
    clock_ns: Callable[[], int],
    *,
    is_last: bool = False,
) -> None:
    """Note answers until then; after the last question no longer than until all have arrived."""
    while (rest_ns := until_ns - clock_ns()) > 0 and (sent_ns or not is_last):
        ready, _, _ = select.select([line], [], [], rest_ns / 1e9)
        if not ready:
            return
        try:
            content = line.recv(NUM_BYTES + 1)
        except OSError:  # the peer's host refuses: no answer
            continue
        came_ns = clock_ns()
        found = opened(content, (key,), ANSWER)
        if found is None or found[0].nonce != nonce:
            continue
        began_ns = sent_ns.pop(found[0].number, None)
        if began_ns is not None:
            into.round_trips_us.append((came_ns - began_ns) / 1000)
