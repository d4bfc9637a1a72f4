"""Receivers of notifications: a server of HTTP and one of SMTP, on loopback, each in a thread."""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope

from muster.ports import free_port


@dataclass(frozen=True)
class Taken:
    """One request that came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """Answers each request with the next of ``answers``, and with the last of them from then on.

    An answer is a status with headers. ``holds``: requests wait until it is set. ``body``: of each answer.
    ``trickles``: the part of the answer, header or body, that comes byte by byte without an end.
    """

    url: str = ""
    taken: list[Taken] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=lambda: [(204, {})])
    holds: threading.Event | None = None
    body: bytes = b""
    trickles: str = ""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def answer(self, *answers: int | tuple[int, dict[str, str]]) -> None:
        self.answers = [each if isinstance(each, tuple) else (each, {}) for each in answers]

    def next_answer(self) -> tuple[int, dict[str, str]]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def http_receiver() -> Iterator[Receiver]:
    """Yield a receiver that is on a free port of 127.0.0.1."""
    receiver, ended = Receiver(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.taken.append(Taken(self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            if receiver.holds is not None:
                receiver.holds.wait(30)
            status, headers = receiver.next_answer()
            if receiver.trickles:
                self._trickle()
                return
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(receiver.body)))
            self.end_headers()
            self.wfile.write(receiver.body)

        def _trickle(self) -> None:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            if receiver.trickles == "body":
                self.wfile.write(b"Content-Length: 4000\r\n\r\n")
            with contextlib.suppress(OSError):
                while not ended.wait(0.05):
                    self.wfile.write(b"x")

        def log_message(self, *given: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            ended.set()
            server.shutdown()
            thread.join(10)


@dataclass
class Mailbox:
    """``mails``: with the receivers of their envelopes. ``refuses``: addresses that are refused permanently.

    ``is_busy``: the server takes no mail for now.
    """

    url: str = ""
    mails: list[tuple[tuple[str, ...], EmailMessage]] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)
    is_busy: bool = False


class _Handler:
    """The hooks that aiosmtpd calls, by their names."""

    def __init__(self, box: Mailbox) -> None:
        self.box = box

    async def handle_RCPT(  # noqa: N802  # the library's name
        self, server: object, session: object, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self.box.is_busy:
            return "451 busy, come back later"
        if address in self.box.refuses:
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: object, session: object, envelope: Envelope) -> str:  # noqa: N802
        mail = message_from_bytes(envelope.original_content or b"", policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.box.mails.append((tuple(envelope.rcpt_tos), mail))
        return "250 OK"


@contextmanager
def mailbox() -> Iterator[Mailbox]:
    """Yield a mail server that is on a free port of 127.0.0.1."""
    box = Mailbox()
    port = free_port()
    controller = Controller(_Handler(box), hostname="127.0.0.1", port=port)
    controller.start()
    box.url = f"smtp://127.0.0.1:{port}"
    try:
        yield box
    finally:
        controller.stop()
