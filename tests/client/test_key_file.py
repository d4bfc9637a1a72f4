"""A key that is renewed in its file while a host works: taken when the old one is refused, and tried once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.client.host import HostClient
from muster.client.key_file import KeyFile
from muster.client.transport import Problem
from muster.domain.ids import AttemptId
from muster.durable import write_durably
from muster.wire.host import HeartbeatRequest, LogBatch, LogChunk
from tests.recorded_server import Answer, RecordedServer, Requested, problem, serving

BEAT = HeartbeatRequest(protocol=1, boot_id="boot-1", seq=1)
LOGS = LogBatch(protocol=1, fence=1, chunks=(LogChunk(stream="0.stdout", offset=0, content=b"words"),))


@pytest.fixture
def server() -> Iterator[RecordedServer]:
    """Takes the key ``new`` alone."""

    def answer(requested: Requested, _number: int) -> Answer:
        if requested.headers["authorization"] != "Bearer new":
            return problem(401, "unauthenticated")
        return Answer(200, {"stored": 1} if requested.path.endswith("/logs") else {"lease_s": 45.0, "heartbeat_s": 5.0})

    with serving(answer) as server:
        yield server


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    write_durably(tmp_path / "node.token", b"old\n")
    return tmp_path / "node.token"


def _keys(server: RecordedServer) -> list[str]:
    return [asked.headers["authorization"].removeprefix("Bearer ") for asked in server.requested]


def test_a_renewed_key_is_taken_when_the_old_one_is_refused(server: RecordedServer, key_file: Path) -> None:
    client = HostClient(server.url, KeyFile(key_file))
    write_durably(key_file, b"new\n")
    assert client.send_logs(AttemptId("att_1"), LOGS).stored == 1
    assert _keys(server) == ["old", "new"]
    assert server.requested[0].body == server.requested[1].body != b""
    assert client.heartbeat(BEAT).lease_s == 45
    assert _keys(server)[2:] == ["new"]
    client.close()


def test_a_key_that_stayed_the_same_is_not_tried_again(server: RecordedServer, key_file: Path) -> None:
    client = HostClient(server.url, KeyFile(key_file))
    with pytest.raises(Problem, match="unauthenticated"):
        client.heartbeat(BEAT)
    assert _keys(server) == ["old"]
    client.close()


def test_a_new_key_that_is_refused_too_is_tried_once(server: RecordedServer, key_file: Path) -> None:
    client = HostClient(server.url, KeyFile(key_file))
    write_durably(key_file, b"other\n")
    with pytest.raises(Problem, match="unauthenticated"):
        client.heartbeat(BEAT)
    assert _keys(server) == ["old", "other"]
    client.close()


def test_a_file_that_is_gone_for_a_moment_ends_nothing(server: RecordedServer, key_file: Path) -> None:
    client = HostClient(server.url, KeyFile(key_file))
    key_file.unlink()
    with pytest.raises(Problem, match="unauthenticated"):
        client.heartbeat(BEAT)
    write_durably(key_file, b"new\n")
    assert client.heartbeat(BEAT).lease_s == 45
    client.close()
