"""Findings in the output of an attempt, as its relay reads the logs."""

import json
from pathlib import Path
from typing import Any

import pytest

from muster.client.transport import UnreachableError
from muster.wire.training import FindingsAnswer
from workers.host import line_findings
from workers.host.line_findings import FINDINGS, MAX_FINDINGS, MAX_TRANSPORTS, AttemptFindings
from workers.host.log_relay import LogRelay

ROOT = b"n1:98:12 [3] NCCL WARN NET/IB : Got completion from peer 10.7.1.9<40112> with status=12 opcode=0 len=0\n"


def kept(folder: Path) -> list[dict[str, Any]]:
    """Return the kept findings without their times."""
    found = [json.loads(line) for line in (folder / FINDINGS).read_text().splitlines()]
    assert all(each.pop("at_ms") > 0 for each in found)
    return found


def test_a_line_that_comes_in_two_pieces_is_kept_once_with_rank_host_and_peer(tmp_path: Path) -> None:
    findings = AttemptFindings(tmp_path)
    findings.take("3", b"step 1\n" + ROOT[:40])
    findings.take("3", ROOT[40:])
    assert kept(tmp_path) == [
        {
            "name": "nccl.ib_retry_exceeded", "fault": "network", "rank": 3, "role": "root", "source": "nccl",
            "text": ROOT.decode().strip(), "host": "n1", "peer": "10.7.1.9", "port": 40112,
        }
    ]  # fmt: skip


def test_endless_findings_of_many_streams_are_bounded_also_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        findings = AttemptFindings(tmp_path)
        for stream in range(40):
            findings.take(str(stream), ROOT * 30)
        assert len(kept(tmp_path)) == MAX_FINDINGS


class Server:
    """Takes logs, unless it is down."""

    def __init__(self) -> None:
        self.is_down = False

    def send_logs(self, attempt_id: str, batch: Any) -> None:
        assert attempt_id == "att_1"
        if self.is_down:
            raise UnreachableError("down")
        assert batch.chunks

    def send_findings(self, attempt_id: str, batch: Any) -> FindingsAnswer:
        assert attempt_id == "att_1"
        return FindingsAnswer(offset=batch.next_offset)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "attempts" / "att_1"
    (folder / "logs").mkdir(parents=True)
    (folder / "order.json").write_text('{"fence": 1}')
    (folder / "logs" / "3.log").write_bytes(b"step 1\n" + ROOT)
    return folder


def test_the_relay_reads_what_it_sends_and_nothing_twice(tmp_path: Path, folder: Path) -> None:
    server: Any = Server()
    relay = LogRelay(tmp_path, server)
    server.is_down = True
    relay.drain_all()
    assert not (folder / FINDINGS).exists(), "it reads again what it sends again"
    server.is_down = False
    relay.drain_all()
    relay.drain_all()
    LogRelay(tmp_path, server).drain_all()
    assert [each["rank"] for each in kept(folder)] == [3]


def test_a_policy_that_reads_no_lines_costs_the_findings_and_not_the_output(tmp_path: Path, folder: Path) -> None:
    (folder / "order.json").write_text('{"fence": 1, "watch": {"reads_lines": false}}')
    server: Any = Server()
    relay = LogRelay(tmp_path, server)
    assert relay.drain_all() == len((folder / "logs" / "3.log").read_bytes())
    assert not (folder / FINDINGS).exists()


def test_a_disk_without_space_costs_the_findings_and_not_the_relay(tmp_path: Path) -> None:
    folder = tmp_path / "att_1"
    AttemptFindings(folder).take("0", ROOT)
    assert not folder.exists()


def test_lines_in_the_form_of_a_fault_are_read_up_to_a_number_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_findings, "LINES_A_TURN", 3)
    findings = AttemptFindings(tmp_path)
    findings.take("0", b"xError:\n" * 3 + ROOT)
    assert not (tmp_path / FINDINGS).exists()
    findings.begin_turn()
    findings.take("0", b"step 1\n" * 9 + ROOT)
    assert len(kept(tmp_path)) == 1


def test_the_transport_that_nccl_chose_is_kept_once_and_not_again_by_each_rank(tmp_path: Path) -> None:
    findings = AttemptFindings(tmp_path)
    for rank in range(4):
        findings.take(str(rank), b"n1:98:12 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE\n" * 2)
    assert kept(tmp_path) == [
        {
            "name": "nccl.transport", "transport": "rdma", "cards": ["mlx5_0:1", "mlx5_1:1"], "has_no_rdma_card": False,
        }
    ]  # fmt: skip
    for number in range(99):
        findings.take("0", f"n1:98:12 [0] NCCL INFO NET/Socket : Using [0]eth{number}:10.0.0.1<0>\n".encode())
    assert len(kept(tmp_path)) == MAX_TRANSPORTS
