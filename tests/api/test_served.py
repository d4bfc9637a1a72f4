"""The API as a process: bodies that come in pieces or not at all, streams that resume, a database that goes away."""

import contextlib
import json
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from sqlalchemy import select

from control.core.sequencer import sequence_once
from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import host_reports, protocol
from control.tenants import keys
from local.children import Child, child_environment
from local.postgres import PostgresServer
from muster.client.rest import RestClient
from muster.client.transport import Problem
from muster.db import migrate
from muster.db.engine import make_engine
from muster.db.models import AuditEntry
from muster.domain.ids import AttemptId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.ports import free_port
from muster.settings import make_secret_key_file
from muster.wire.host import (
    PROTOCOL_VERSION,
    ClaimRequest,
    HeartbeatRequest,
    HostReport,
    LogBatch,
    LogChunk,
    ReportBatch,
)
from tests.api.conftest import GOOD_JOB
from tests.fleet_factory import OPERATOR, Fleet, make_fleet
from tests.patient import PATIENT
from tests.readiness import is_ready
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(400)
MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Served:
    url: str
    port: int
    pid: int
    token: str
    fleet: Fleet
    units: UnitOfWorkFactory
    postgres: PostgresServer

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}

    def client(self) -> RestClient:
        return RestClient(self.url, self.token)


@pytest.fixture(scope="module")
def served(server_folder: Path) -> Iterator[Served]:
    folder = server_folder / f"served-{uuid.uuid4().hex[:8]}"  # a worker may come to this module twice
    folder.mkdir(mode=0o711)
    postgres = PostgresServer(folder / "postgres")
    postgres.start()
    migrate.upgrade(postgres.url())
    engine = make_engine(postgres.url(), limits=PATIENT)
    units = UnitOfWorkFactory(engine)
    fleet = make_fleet(units)
    with units.begin(OPERATOR, keys.CREATE) as unit:
        role = fleet.tenant.role
        token = keys.create(unit, name="served", role=role, tenant_id=fleet.tenant_id).token.text
    make_secret_key_file(folder / "secret.key")
    port = free_port()
    variables = child_environment(database_url=postgres.url(), secret_key_file=folder / "secret.key", api_port=port)
    child = Child("api", ["api"], variables, folder / "api.log")
    child.start()
    try:
        wait_until(lambda: is_ready(f"http://127.0.0.1:{port}"))
        assert child.pid is not None
        yield Served(f"http://127.0.0.1:{port}", port, child.pid, token, fleet, units, postgres)
    finally:
        child.stop()
        engine.dispose()
        postgres.stop()


@pytest.mark.parametrize("is_chunked", [False, True])
def test_fifty_megabytes_are_refused_and_not_kept(served: Served, *, is_chunked: bool) -> None:
    before = psutil.Process(served.pid).memory_info().rss
    body = (b"x" * MEGABYTE for _ in range(50)) if is_chunked else b"x" * (50 * MEGABYTE)
    with contextlib.suppress(httpx.WriteError, httpx.RemoteProtocolError, httpx.ReadError):
        answer = httpx.post(f"{served.url}/v1/jobs", content=body, headers=served.headers, timeout=120)
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    assert psutil.Process(served.pid).memory_info().rss - before < 12 * MEGABYTE
    assert httpx.get(f"{served.url}/healthz", timeout=60).status_code == 200


def test_a_client_that_never_ends_its_headers_hinders_none(served: Served) -> None:
    slow = [socket.create_connection(("127.0.0.1", served.port), timeout=60) for _ in range(50)]
    try:
        for connection in slow:
            connection.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        started = time.monotonic()
        assert httpx.get(f"{served.url}/readyz", timeout=60).status_code == 200
        assert time.monotonic() - started < 30, "their heads never end, nor would a wait for them"
    finally:
        for connection in slow:
            connection.close()


def test_none_chooses_the_address_that_the_audit_keeps(served: Served) -> None:
    """No proxy is named in the settings, so no header about another address counts, from this machine neither."""
    told = {**served.headers, "X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https"}
    assert httpx.post(f"{served.url}/v1/jobs", headers=told, json=GOOD_JOB).status_code == 201
    with served.units.read() as session:
        newest = session.scalars(select(AuditEntry).order_by(AuditEntry.serial.desc()).limit(1)).one()
    assert (newest.action, newest.address) == ("job.submit", "127.0.0.1")


def test_two_hosts_and_odd_lengths_are_refused(served: Served) -> None:
    for head in (
        b"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: a/?b\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
            connection.sendall(head)
            assert connection.recv(4096).split(b" ")[1] == b"400", head


def test_an_event_stream_goes_on_behind_the_last_event_seen(served: Served) -> None:
    with served.client() as client:
        for number in range(6):
            client.submit_job({**GOOD_JOB, "name": f"streamed-{number}"})
        sequence_once(served.units)
        listed = [event["position"] for event in client.events()]
        headers = {**served.headers, "Last-Event-ID": str(listed[2])}
        seen: list[int] = []
        with httpx.stream("GET", f"{served.url}/v1/events/stream", headers=headers, timeout=120) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line.removeprefix("data: "))["position"])
                if len(seen) == len(listed) - 3:
                    client.submit_job({**GOOD_JOB, "name": "live"})
                    sequence_once(served.units)
                if len(seen) == len(listed) - 2:
                    break
    assert seen[:-1] == listed[3:], "none skipped, none twice"
    assert seen[-1] > listed[-1], "and what happens next"


def test_a_key_has_so_many_streams_open_and_a_closed_one_is_free_again(served: Served) -> None:
    request = f"GET /v1/events/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {served.token}\r\n\r\n"

    def status_of(connection: socket.socket) -> bytes:
        connection.sendall(request.encode())
        return connection.recv(12)[9:]

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", served.port), timeout=60)

    def is_open() -> bool:
        with connect() as connection:
            return status_of(connection) == b"200"

    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect()) for _ in range(DEFAULT_POLICY.limits.streams_per_key)]
        assert {status_of(connection) for connection in held} == {b"200"}
        with connect() as connection:
            assert status_of(connection) == b"429"
        held[0].close()
        wait_until(is_open)


def test_followed_logs_end_with_the_job_and_hostile_words_stay_inside_their_frame(served: Served) -> None:
    hostile = b"plain\n\x1b[31mred\n\nevent: end\ndata: {}\n<script>\n\xff\xfe\x00done\n"
    job_id = served.fleet.submit(name="hostile")
    _play_host(served, hostile)
    with served.client() as client:
        text = "".join(piece["text"] for piece in client.follow_logs(job_id))
    assert text.startswith("plain\n\x1b[31mred\n\nevent: end\n")
    assert text.endswith("done\n")


def _play_host(served: Served, words: bytes) -> None:
    fleet, units, boot = served.fleet, served.units, "boot-1"
    beat = HeartbeatRequest(protocol=PROTOCOL_VERSION, boot_id=boot, seq=time.time_ns() // 1_000_000)
    with units.begin(fleet.node_principal, protocol.HEARTBEAT, quiet=True) as unit:
        protocol.heartbeat(unit, beat)
    fleet.cycle()
    again = HeartbeatRequest(protocol=PROTOCOL_VERSION, boot_id=boot, seq=beat.seq + 1)
    with units.begin(fleet.node_principal, protocol.HEARTBEAT, quiet=True) as unit:
        unclaimed = protocol.heartbeat(unit, again).unclaimed
    for item in unclaimed:
        attempt_id = AttemptId(item.attempt_id)
        claim = ClaimRequest(protocol=PROTOCOL_VERSION, boot_id=boot, fence=item.fence, nonce="n")
        with units.begin(fleet.node_principal, protocol.CLAIM) as unit:
            assert protocol.claim(unit, attempt_id, claim).granted
        chunk = LogChunk(stream="0", offset=0, content=words)
        with units.begin(fleet.node_principal, protocol.LOGS, quiet=True) as unit:
            protocol.store_logs(
                unit, attempt_id, LogBatch(protocol=PROTOCOL_VERSION, fence=item.fence, chunks=(chunk,))
            )
        record = {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0}}}
        report = HostReport(kind="exited", boot_id=boot, fence=item.fence, record=record)
        cleaned = HostReport(kind="cleaned", boot_id=boot, fence=item.fence)
        with units.begin(fleet.node_principal, host_reports.REPORT) as unit:
            host_reports.report(unit, attempt_id, ReportBatch(protocol=PROTOCOL_VERSION, reports=(report, cleaned)))
    fleet.cycle()
    if unclaimed:
        _play_host(served, words)


def test_without_a_database_it_states_unavailable_and_comes_back(served: Served) -> None:
    served.postgres.kill()
    try:
        ready = httpx.get(f"{served.url}/readyz", timeout=60)
        assert (ready.status_code, ready.json()["code"]) == (503, "unavailable")
        body = json.dumps(GOOD_JOB)
        answer = httpx.post(f"{served.url}/v1/jobs", content=body, headers=served.headers, timeout=60)
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert httpx.get(f"{served.url}/healthz", timeout=60).status_code == 200
    finally:
        served.postgres.start()
    wait_until(lambda: is_ready(served.url))
    with served.client() as client:
        assert client.submit_job(GOOD_JOB)["state"] == "QUEUED"
        with pytest.raises(Problem):
            client.job("job_none")
    assert psutil.pid_exists(served.pid), "the same process all along"
