"""Lines about faults, from the hosts' relays to one timeline; and the transport that NCCL chose."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select

from control.core.unit_of_work import UnitOfWorkFactory
from control.system.retention import sweep_once
from control.training import training
from control.watch import line_intake, lines, read
from control.watch.line_intake import MOST_OF_A_HOST, RDMA_UNUSED
from control.watch.lines import FaultLines
from muster.db.models import AttemptTransport, Event, EvidenceRow, LineFindingRow, Node
from muster.domain.errors import NotFoundError, StaleFenceError, UpgradeRequiredError
from muster.domain.evidence.findings import Severity, Trust
from muster.domain.exit.fault_lines import Role
from muster.domain.ids import EvidenceId
from muster.domain.principals import Principal
from muster.domain.principals import Role as Access
from muster.domain.times import to_ms
from muster.wire.host import PROTOCOL_VERSION
from muster.wire.training import FindingsBatch, TrainBatch
from tests.control.conftest import SetClock
from tests.control.watch.stalled_job import StalledJob, place_of
from tests.fleet_factory import OPERATOR
from tests.stored_signals import add_signal
from workers.host.line_findings import FINDINGS, AttemptFindings

RETRIES = b"n1:98:12 [0] NCCL WARN NET/IB : Got completion from peer 10.7.1.9<40112> with error 12, opcode 129\n"
FLUSHED = b"n2:98:12 [0] NCCL WARN NET/IB : Got completion from peer 10.7.1.8<40112> with error 5, opcode 129\n"
SOCKET = (
    b"n1:98:12 [0] NCCL INFO NET/IB : No device found.\nn1:98:12 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\n"
)


def send(job: StalledJob, node_rank: int, documents: list[dict[str, Any]], *, offset: int = 0) -> int:
    """Send a batch of one host; return the server's offset."""
    host = job.by_rank()[node_rank]
    batch = FindingsBatch(
        protocol=PROTOCOL_VERSION,
        fence=job.attempt.fence,
        offset=offset,
        next_offset=offset + 10,
        findings=tuple(documents),
    )
    with job.units.begin(host.principal, line_intake.RECORD, quiet=True) as unit:
        return line_intake.take(unit, job.attempt.id, batch).offset


def found_in(job: StalledJob, printed: bytes, rank: int, folder: Path) -> list[dict[str, Any]]:
    """Return what the host's relay writes of a rank's output, at the time of the test."""
    folder.mkdir(exist_ok=True)
    AttemptFindings(folder).take(str(rank), printed)
    said = [json.loads(line) for line in (folder / FINDINGS).read_text().splitlines()]
    return [{**each, "at_ms": to_ms(job.clock.now)} for each in said]


def rows_of(job: StalledJob) -> list[LineFindingRow]:
    with job.units.read() as session:
        return list(session.scalars(select(LineFindingRow).order_by(LineFindingRow.key)))


def timeline(job: StalledJob) -> FaultLines:
    with job.units.begin(job.fleet.tenant, read.READ, quiet=True) as unit:
        found = lines.fault_lines(unit, job.job_id)
    assert found is not None
    return found


def test_a_batch_that_comes_twice_counts_once_and_repeats_are_folded(stalled: StalledJob, tmp_path: Path) -> None:
    documents = found_in(stalled, RETRIES * 3, 0, tmp_path / "a")
    for _ in range(2):
        assert send(stalled, 0, documents) == 10
    (row,) = rows_of(stalled)
    assert (row.pattern, row.role, row.rank, row.peer, row.port) == (
        "nccl.ib_retry_exceeded", Role.ROOT, 0, "10.7.1.9", 40112,
    )  # fmt: skip
    assert row.count == 3
    send(stalled, 0, documents, offset=10)
    assert rows_of(stalled)[0].count == 6


def test_a_hostile_program_fills_a_bounded_number_of_rows_and_states_its_own_ranks_alone(stalled: StalledJob) -> None:
    at_ms = to_ms(stalled.clock.now)
    many = [{"name": "nccl.connect", "at_ms": at_ms, "peer": f"10.0.{n}", "rank": 1} for n in range(500)]
    odd: list[dict[str, Any]] = [
        {"name": "of.a_later_release", "at_ms": at_ms},
        {"name": "nccl.connect", "at_ms": "x"},
        {"name": "nccl.connect", "at_ms": at_ms, "text": "a\0b"},
        {"name": "nccl.connect", "at_ms": at_ms, "text": "x" * 2_000},
        {"name": "nccl.connect", "at_ms": at_ms, "role": "root", "rank": 7, "peer": "mine"},
        {},
    ]
    send(stalled, 0, odd)
    send(stalled, 0, many, offset=10)
    rows = rows_of(stalled)
    assert len(rows) == MOST_OF_A_HOST
    assert {row.rank for row in rows} == {None}, "rank 1 is the other host's, rank 7 is none"
    assert {row.role for row in rows} == {Role.CASCADE}, "the role is our table's"


def test_a_stale_fence_and_another_host_are_refused(stalled: StalledJob) -> None:
    other = Principal(name="node", role=Access.NODE, node_id=type(stalled.hosts[0].node_id)("node_other"))
    batch = FindingsBatch(protocol=PROTOCOL_VERSION, fence=stalled.attempt.fence, offset=0, next_offset=1, findings=())
    with stalled.units.begin(other, line_intake.RECORD, quiet=True) as unit, pytest.raises(StaleFenceError):
        line_intake.take(unit, stalled.attempt.id, batch)


def test_lines_of_two_hosts_and_a_measured_port_are_one_timeline_with_the_root_first(
    stalled: StalledJob, tmp_path: Path
) -> None:
    send(stalled, 1, found_in(stalled, FLUSHED * 2, 1, tmp_path / "b"))
    send(stalled, 0, found_in(stalled, RETRIES, 0, tmp_path / "a"))
    add_evidence(stalled, stalled.by_rank()[0].node_id)
    found = timeline(stalled).timeline
    assert found is not None
    names = [each.node_name for each in sorted(stalled.fleet.attempts(stalled.job_id)[-1].hosts, key=by_rank)]
    assert [(part.role, part.node, part.is_root) for part in found.parts] == [
        ("root", names[0], True), ("measured", names[0], False), ("cascade", names[1], False),
    ]  # fmt: skip
    assert "port mlx5_4/1 is down" in found.sentence


def by_rank(host: Any) -> int:
    return int(host.part.node_rank)


def add_evidence(job: StalledJob, node_id: Any) -> None:
    with job.units.begin(OPERATOR, read.READ, quiet=True) as unit:
        unit.session.add(
            EvidenceRow(
                id=EvidenceId("ev_port"), gpu_uuid=None, node_id=node_id, detector="port_down", detector_version=1,
                fault_key="port_down:mlx5_4/1", severity=int(Severity.DEGRADED), trust=Trust.MEASURED,
                sources=["host"], onset_at=unit.now, last_seen_at=unit.now, counts_for_ms=1_000,
                summary="port mlx5_4/1 is down", threatens_correctness=False, values={}, created_at=unit.now,
            )
        )  # fmt: skip


def test_sockets_between_hosts_with_rdma_ports_are_warned_of_once(stalled: StalledJob, tmp_path: Path) -> None:
    with stalled.units.begin(OPERATOR, read.READ, quiet=True) as unit:
        for host in stalled.hosts:
            unit.session.get_one(Node, host.node_id).rdma_ports = ["mlx5_0/1"]
    for node_rank in range(2):
        send(stalled, node_rank, found_in(stalled, SOCKET, node_rank, tmp_path / str(node_rank)))
    found = timeline(stalled)
    assert found.timeline is None
    assert [(each.transport, each.cards) for each in found.transports] == [("socket", ["eth0"])] * 2
    assert "it found no RDMA device" in (found.warning or "")
    with stalled.units.read() as session:
        (warned,) = session.scalars(select(Event).where(Event.kind == RDMA_UNUSED))
    assert warned.payload["reason"] == found.warning


def test_sockets_are_no_news_where_no_host_has_rdma_ports(stalled: StalledJob, tmp_path: Path) -> None:
    send(stalled, 0, found_in(stalled, SOCKET, 0, tmp_path / "a"))
    assert (timeline(stalled).warning, len(timeline(stalled).transports)) == (None, 1)


def test_growth_of_a_port_is_shown_with_the_job_that_used_it(stalled: StalledJob) -> None:
    host, values = stalled.by_rank()[0], {"window_s": 60.0, "local_ack_timeout_err": 41.0, "rx_errors": 9.0}
    stalled.clock.advance(120)
    with stalled.units.begin(OPERATOR, read.READ, quiet=True) as unit:
        add_signal(
            unit, None, kind="port_rates", code=None, source="host", text="mlx5_0/1", values=values,
            node_id=host.node_id,
        )  # fmt: skip
    (port,) = timeline(stalled).ports
    assert (port.port, port.counter, port.rise, port.num_users) == ("mlx5_0/1", "local_ack_timeout_err", 41.0, 1)


def test_what_agents_measured_is_in_the_reports_and_evidence_of_a_hang(stalled: StalledJob) -> None:
    node_id, gpu = place_of(stalled)
    blocked = "INFO: task secret:42 blocked for more than 120 seconds."
    with stalled.units.begin(OPERATOR, read.READ, quiet=True) as unit:
        add_signal(unit, gpu, code=79, text="GPU has fallen\noff the bus.", source="kernel_log")
        add_signal(unit, None, kind="host_log", code=None, text=blocked, node_id=node_id)
        add_signal(unit, gpu, code=63, text="a row was remapped", source="kernel_log")  # it stops no program
        growth = {"packet_seq_err": 7.0}
        add_signal(unit, None, kind="port_rates", code=None, text="mlx5_0/1", values=growth, node_id=node_id)
        old = unit.now - timedelta(hours=2)
        add_signal(unit, gpu, code=48, text="of the job before", at=old, received_at=old)
    stalled.stall_all()
    (verdict,) = stalled.verdicts()
    said = "\n".join(verdict.evidence)
    assert f"NVRM: Xid ({gpu}): 79, GPU has fallen off the bus." in said
    assert "port mlx5_0/1 of" in said
    assert "packet_seq_err grew by 7" in said
    with stalled.units.begin(stalled.fleet.tenant, read.READ, quiet=True) as unit:
        (kept,) = read.reports_about(unit, stalled.attempt.id, first=node_id, limit=1)
    assert [line[:40] for line in kept.lines] == [
        f"NVRM: Xid ({gpu}): 79, GPU has fallen off the bus."[:40],
        "INFO: task a process:42 blocked for more",
    ]


def test_lines_are_read_by_their_own_tenant_and_kept_as_long_as_output_is(
    units: UnitOfWorkFactory, clock: SetClock, tmp_path: Path
) -> None:
    stalled = StalledJob(units, clock)
    send(stalled, 0, found_in(stalled, RETRIES + SOCKET, 0, tmp_path / "a"))
    other = Principal(name="member", role=Access.TENANT_MEMBER, tenant_id=type(stalled.fleet.tenant_id)("ten_other"))
    with units.begin(other, read.READ, quiet=True) as unit, pytest.raises(NotFoundError):
        lines.fault_lines(unit, stalled.job_id)
    clock.advance(400 * 86_400)
    swept = sweep_once(units)
    assert (swept["line_findings"], swept["attempt_transports"]) == (1, 1)
    with units.read() as session:
        assert session.scalars(select(AttemptTransport)).all() == []


def test_signals_are_read_by_host_kind_and_time_and_the_readings_of_all_hosts_at_once(stalled: StalledJob) -> None:
    plans: list[str] = []
    num_readings = 0

    def explain(*given: Any) -> None:
        nonlocal num_readings
        cursor, statement, parameters = given[1:4]
        num_readings += "FROM node_latest" in statement
        if statement.startswith("SELECT") and "FROM gpu_signals" in statement and "received_at >=" in statement:
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute("EXPLAIN " + statement, parameters)
            plans.append("\n".join(line for (line,) in cursor.fetchall()))

    for node_rank in range(2):
        stalled.stall(node_rank)
    event.listen(stalled.units.engine, "before_cursor_execute", explain)
    try:
        assert stalled.judge() == 1
        timeline(stalled)
    finally:
        event.remove(stalled.units.engine, "before_cursor_execute", explain)
    assert len(plans) == 2
    assert all("ix_gpu_signals_node_id_kind_received_at" in plan for plan in plans), plans
    assert num_readings == 1


def test_a_batch_of_another_protocol_is_refused_as_a_whole(stalled: StalledJob) -> None:
    host = stalled.by_rank()[0]
    other = PROTOCOL_VERSION + 1
    findings = FindingsBatch(protocol=other, fence=stalled.attempt.fence, offset=0, next_offset=1, findings=())
    with (
        pytest.raises(UpgradeRequiredError, match=f"protocol {other} is not supported"),
        stalled.units.begin(host.principal, line_intake.RECORD, quiet=True) as unit,
    ):
        line_intake.take(unit, stalled.attempt.id, findings)
    lines = TrainBatch(protocol=other, fence=stalled.attempt.fence, offset=0, next_offset=1, lines=())
    with (
        pytest.raises(UpgradeRequiredError, match=f"protocol {other} is not supported"),
        stalled.units.begin(host.principal, training.RECORD, quiet=True) as unit,
    ):
        training.take(unit, stalled.attempt.id, lines)
