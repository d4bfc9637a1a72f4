"""A host that attends a pairwise check: it registers, meets the hosts that the lead names, and receives the verdict."""

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from muster.wire.meeting import PairwiseOrder, PairwiseResult
from muster.wire.pairwise import LINE_BYTES_MAX, PAIRWISE_PROTOCOL, CallOff, Ended, FromLead, Hello
from workers.host.pairwise.meeting import meet

_RETRY_S: Final = 0.5
_BACKLOG: Final = 64


class LeadGoneError(Exception):
    """No lead answers there, or the lead has ended. The message states which."""


@dataclass(frozen=True, slots=True)
class Attendance:
    """Parameters of a host. ``address``: its address for the others, None for the one that the lead sees.

    ``python``: with torch. ``patience_s``: how long to try until the lead is there.
    """

    lead: tuple[str, int]
    run: str
    host: str
    python: str
    address: str | None = None
    patience_s: float = 120.0


def attend(attendance: Attendance, report: Callable[[str], None]) -> Ended:
    """Attend until the lead ends the check. ``report`` gets a line for each meeting.

    Raises:
        LeadGoneError: no lead answers there, or the lead has ended.
    """
    with _connected(attendance) as connection, _Listening() as listening:
        lines = _Lines(connection)
        hello = Hello(
            protocol=PAIRWISE_PROTOCOL,
            run=attendance.run,
            host=attendance.host,
            address=attendance.address,
            port=listening.port,
            has_gpu=Path("/dev/nvidiactl").exists(),
        )
        try:
            _send(connection, hello)
            while isinstance(told := _next(lines.next()), PairwiseOrder | CallOff):
                if isinstance(told, PairwiseOrder):
                    met = _meet(told, attendance.python, listening, lines)
                    report(_in_words(told, met))
                    _send(connection, met)
        except (OSError, msgspec.MsgspecError) as fault:
            raise LeadGoneError(f"the lead at {_place(attendance.lead)} is not understood: {fault}") from fault
    if told is None:
        raise LeadGoneError(f"the lead at {_place(attendance.lead)} has ended before it sent the verdict")
    return told


class _Listening:
    """Port for the store of a group in which this host is the first; each is used once."""

    def __init__(self) -> None:
        self.socket = self._fresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def port(self) -> int:
        port: int = self.socket.getsockname()[1]
        return port

    def renew(self) -> None:
        self.socket.close()
        self.socket = self._fresh()

    @staticmethod
    def _fresh() -> socket.socket:
        return socket.create_server(("", 0), backlog=_BACKLOG)


class _Lines:
    """Lines from the lead; content after a received line is buffered for the next."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffered = bytearray()

    def next(self) -> bytes:
        """Return a line with its end; an empty one if the lead has ended, or sends too long a line."""
        while (end := self._buffered.find(b"\n")) < 0 and len(self._buffered) < LINE_BYTES_MAX:
            piece = self._connection.recv(1 << 16)
            if not piece:
                return b""
            self._buffered += piece
        line = bytes(self._buffered[: end + 1])
        del self._buffered[: end + 1]
        return line

    def has_more(self) -> bool:
        """Return whether the lead has sent more, or has ended."""
        return bool(self._buffered) or bool(select.select([self._connection], [], [], 0)[0])


def _meet(order: PairwiseOrder, python: str, listening: _Listening, lines: _Lines) -> PairwiseResult:
    # While hosts meet, the lead sends nothing but a cancellation.
    found = meet(order, python, listening.socket, lines.has_more)
    if order.rank == 0:
        listening.renew()
    return PairwiseResult(
        round=order.round, rate_bytes_per_s=found.rate_bytes_per_s, why=found.why[:1024], port=listening.port
    )


def _connected(attendance: Attendance) -> socket.socket:
    until = time.monotonic() + attendance.patience_s
    while True:
        try:
            connection = socket.create_connection(attendance.lead, timeout=max(1.0, until - time.monotonic()))
        except OSError as fault:
            if time.monotonic() + _RETRY_S >= until:
                raise LeadGoneError(f"no lead at {_place(attendance.lead)}: {fault.strerror or fault}") from fault
            time.sleep(_RETRY_S)
            continue
        connection.settimeout(None)
        keep_alive(connection)
        return connection


def keep_alive(connection: socket.socket) -> None:
    """Set keep-alive, so that a peer that has ended without a message is noticed within a minute."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _send(connection: socket.socket, message: Hello | PairwiseResult) -> None:
    connection.sendall(msgspec.json.encode(message) + b"\n")


def _next(line: bytes) -> FromLead | None:
    return msgspec.json.decode(line, type=FromLead) if line.endswith(b"\n") else None


def _in_words(order: PairwiseOrder, met: PairwiseResult) -> str:
    others = ", ".join(host for place, host in enumerate(order.hosts) if place != order.rank)
    if met.rate_bytes_per_s is None:
        return f"round {order.round} with {others}: {met.why}"
    return f"round {order.round} with {others}: {met.rate_bytes_per_s / 1e6:.4g} MB/s"


def _place(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
