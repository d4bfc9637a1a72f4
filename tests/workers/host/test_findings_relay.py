"""The relay of lines about faults: each once, in bounded batches, and none to a server of release 0.1.0."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from muster.client.host import HostClient
from muster.client.transport import Problem, UnreachableError
from muster.wire.training import FindingsAnswer, FindingsBatch
from workers.host import findings_relay
from workers.host.attempt_folder import FORGOTTEN
from workers.host.findings_relay import RELAYED_FINDINGS, FindingsRelay
from workers.host.line_findings import FINDINGS
from workers.host.supervisor.files import RELAYED


class Server:
    """Takes findings from where it stands. ``fault``: what it answers instead."""

    def __init__(self) -> None:
        self.offset = 0
        self.names: list[str] = []
        self.num_calls = 0
        self.fault: Exception | None = None

    def send_findings(self, _attempt_id: str, batch: FindingsBatch) -> FindingsAnswer:
        self.num_calls += 1
        if self.fault is not None:
            raise self.fault
        if batch.offset == self.offset:
            self.names += [each["name"] for each in batch.findings]
            self.offset = batch.next_offset
        return FindingsAnswer(offset=self.offset)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [json.dumps({"name": f"n{number}"}) for number in range(5)]
    (tmp_path / FINDINGS).write_text("\n".join([*lines[:2], "[1]", "{torn", *lines[2:]]) + '\n{"name": "no end"')
    return tmp_path


def relay(server: Any, folder: Path, offsets: dict[str, int]) -> bool:
    return FindingsRelay(server, folder, 1, offsets).drain()


def test_each_line_is_sent_once_and_what_is_no_finding_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings_relay, "BATCH_BYTES", 40)
    server, offsets = Server(), dict[str, int]()
    assert relay(server, folder, offsets)
    assert relay(server, folder, offsets)
    assert server.names == [f"n{number}" for number in range(5)]
    assert offsets[RELAYED_FINDINGS] == server.offset


def test_a_server_without_an_answer_is_tried_again_and_a_restored_one_gets_all_lines(folder: Path) -> None:
    server, offsets = Server(), dict[str, int]()
    server.fault = UnreachableError("down")
    assert not relay(server, folder, offsets)
    server.fault = None
    assert relay(server, folder, offsets)
    assert len(server.names) == 5
    server.offset, server.names = 0, []
    (folder / FINDINGS).write_text((folder / FINDINGS).read_text() + "}\n")
    assert relay(server, folder, offsets)
    assert server.names == [f"n{number}" for number in range(5)] + ["no end"]


def test_a_server_without_the_route_gets_further_requests_until_it_has_it(folder: Path) -> None:
    server, now = Server(), 1_000_000.0
    server.fault = Problem(404, "not_found", "there is no such route")

    def turn(at: float) -> bool:
        offsets = json.loads((folder / RELAYED).read_text()) if (folder / RELAYED).exists() else {}
        return FindingsRelay(cast("HostClient", server), folder, 1, offsets, clock=lambda: at).drain()

    assert not any(turn(now + after_s) for after_s in (0, 1, findings_relay.AGAIN_S - 1))
    assert server.num_calls == 1
    assert not turn(now + findings_relay.AGAIN_S + 1)
    assert not turn(now - 3_600), "its clock was set back"
    assert server.num_calls == 3
    server.fault = None
    assert turn(now + 1)
    assert len(server.names) == 5


def test_an_attempt_that_is_over_waits_for_no_server_of_release_0_1_0(folder: Path) -> None:
    server, offsets = Server(), dict[str, int]()
    server.fault = Problem(404, "not_found", "there is no such route")
    assert not relay(server, folder, offsets)
    (folder / FORGOTTEN).touch()
    assert relay(server, folder, offsets)
    assert relay(server, folder, offsets)
    assert server.num_calls == 2


def test_a_server_that_refuses_the_attempt_gets_one_request(folder: Path) -> None:
    server, offsets = Server(), dict[str, int]()
    server.fault = Problem(409, "stale_fence", "another attempt has its place")
    assert relay(server, folder, offsets)
    assert relay(server, folder, offsets)
    assert server.num_calls == 1
