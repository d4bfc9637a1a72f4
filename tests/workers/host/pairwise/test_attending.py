"""A host that attends a check whose lead a test plays message by message."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from muster.wire.meeting import PairwiseResult
from muster.wire.pairwise import PAIRWISE_PROTOCOL, CallOff, Ended, FromLead, Hello
from workers.host.pairwise.attending import Attendance, LeadGoneError, attend

from .meet_case import meeting

MEET = meeting(rank=1, timeout_s=900)


def lines(*messages: FromLead) -> bytes:
    return b"".join(msgspec.json.encode(message) + b"\n" for message in messages)


def attended(python: Path, lead: Callable[[socket.socket], None]) -> Ended:
    """``lead`` has the host's connection, and closes it when it returns."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def play() -> None:
            connection, _ = server.accept()
            with connection:
                lead(connection)

        playing = threading.Thread(target=play)
        playing.start()
        try:
            there = ("127.0.0.1", server.getsockname()[1])
            return attend(Attendance(there, "some-run", "gpu-01", str(python)), lambda _: None)
        finally:
            playing.join()


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """In an interpreter's place: it never ends."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\nexec sleep 1000\n")
    path.chmod(0o755)
    return path


def test_it_states_what_it_is_and_ends_with_what_was_found(hanging: Path) -> None:
    heard: list[Hello] = []

    def lead(connection: socket.socket) -> None:
        heard.append(msgspec.json.decode(connection.makefile("rb").readline(), type=Hello))
        connection.sendall(lines(Ended(outcome="bad", why="slow")))

    assert attended(hanging, lead) == Ended(outcome="bad", why="slow")
    assert (heard[0].protocol, heard[0].run, heard[0].host) == (PAIRWISE_PROTOCOL, "some-run", "gpu-01")


def test_what_is_called_off_in_the_same_breath_is_waited_for_no_longer(hanging: Path) -> None:
    heard: list[PairwiseResult] = []

    def lead(connection: socket.socket) -> None:
        said = connection.makefile("rb")
        said.readline()
        connection.sendall(lines(MEET, CallOff()))
        heard.append(msgspec.json.decode(said.readline(), type=PairwiseResult))
        connection.sendall(lines(Ended(outcome="undecided")))

    assert attended(hanging, lead).outcome == "undecided"
    assert (heard[0].round, heard[0].rate_bytes_per_s, heard[0].why) == (1, None, "called off")


def test_a_lead_that_goes_during_a_round_is_stated_without_waiting_for_its_end(hanging: Path) -> None:
    def lead(connection: socket.socket) -> None:
        with connection.makefile("rb") as said:
            said.readline()
        connection.sendall(lines(MEET))

    with pytest.raises(LeadGoneError, match=r"has ended|is not understood"):
        attended(hanging, lead)


def test_a_lead_that_states_otherwise_is_stated(hanging: Path) -> None:
    with pytest.raises(LeadGoneError, match="is not understood"):
        attended(hanging, lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
