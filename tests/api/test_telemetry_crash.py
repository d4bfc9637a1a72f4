"""kill -9 of the API under load: no report that was acknowledged is lost, and none has effect twice."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants import keys
from local.children import Child, child_environment
from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import make_engine
from muster.db.models import TelemetryBlock
from muster.domain.principals import Role
from muster.ports import free_port
from muster.settings import make_secret_key_file
from tests.fleet_factory import OPERATOR, enrol_host
from tests.patient import PATIENT
from tests.readiness import is_ready
from tests.telemetry_reports import newest_readings, reading, report
from tests.waiting import wait_until
from tests.warm_python import WarmPython

pytestmark = pytest.mark.timeout(900)


@dataclass
class Served:
    url: str
    child: Child
    units: UnitOfWorkFactory
    postgres: PostgresServer
    tokens: list[str]
    acknowledged: set[tuple[str, int]] = field(default_factory=set)
    duplicates: int = 0

    def send(self, host: int, first: int, stop: threading.Event) -> None:
        """Each report until it is acknowledged, as an agent does."""
        headers = {"Authorization": f"Bearer {self.tokens[host]}", "Content-Type": "application/json"}
        name, seq = f"host-{host}", first
        with httpx.Client(base_url=self.url, headers=headers, timeout=120, trust_env=False) as http:
            while not stop.is_set():
                found = report(seq, time.time_ns() // 1_000_000, reading(f"GPU-{name}-0", power_w=1.0), boot_id=name)
                try:
                    answer = http.post("/v1/telemetry", content=msgspec.json.encode(found))
                except httpx.HTTPError:
                    time.sleep(0.05)
                    continue
                if answer.status_code == 503:
                    continue
                assert answer.status_code == 200, answer.text
                self.duplicates += answer.json()["is_duplicate"]
                self.acknowledged.add((name, seq))
                seq += 1

    def kept(self) -> list[tuple[str, int]]:
        with self.units.read() as session:
            return [(row[0], row[1]) for row in session.execute(select(TelemetryBlock.boot_id, TelemetryBlock.seq))]


@pytest.fixture
def served(short_folder: Path, warm_stack: WarmPython) -> Iterator[Served]:
    postgres = PostgresServer(short_folder / "postgres")
    postgres.start()
    migrate.upgrade(postgres.url())
    engine = make_engine(postgres.url(), limits=PATIENT)
    units = UnitOfWorkFactory(engine)
    tokens = []
    for host in range(4):
        node_id = enrol_host(units, f"host-{host}")
        with units.begin(OPERATOR, keys.CREATE) as unit:
            tokens.append(keys.create(unit, name=f"host-{host}", role=Role.NODE, node_id=node_id).token.text)
    make_secret_key_file(short_folder / "secret.key")
    port = free_port()
    variables = child_environment(
        database_url=postgres.url(), secret_key_file=short_folder / "secret.key", api_port=port
    )
    child = Child("api", ["api"], variables, short_folder / "api.log", str(warm_stack.daemon))
    child.start()
    found = Served(f"http://127.0.0.1:{port}", child, units, postgres, tokens)
    try:
        wait_until(lambda: is_ready(found.url))
        yield found
    finally:
        child.stop()
        engine.dispose()
        postgres.stop()


def test_no_acknowledged_report_is_lost_and_none_counts_twice(served: Served) -> None:
    stop = threading.Event()
    senders = [threading.Thread(target=served.send, args=(host, 1, stop), daemon=True) for host in range(4)]
    for sender in senders:
        sender.start()
    for _ in range(3):
        before = len(served.acknowledged)
        wait_until(lambda before=before: len(served.acknowledged) > before + 60)  # type: ignore[misc]
        assert served.child.pid is not None
        os.kill(served.child.pid, signal.SIGKILL)
        wait_until(lambda: not served.child.is_running())
        acknowledged = set(served.acknowledged)
        assert acknowledged <= set(served.kept())
        served.child.start()
        wait_until(lambda: is_ready(served.url))
    stop.set()
    for sender in senders:
        sender.join(180)
    kept = served.kept()
    assert len(kept) == len(set(kept))
    assert served.acknowledged <= set(kept)
    newest = {boot: max(seq for one, seq in kept if one == boot) for boot, _ in kept}
    with served.units.read() as session:
        assert {each.reported_in.boot_id: each.reported_in.seq for each in newest_readings(session).values()} == newest


def test_reports_survive_a_database_that_goes_away(served: Served) -> None:
    stop = threading.Event()
    sender = threading.Thread(target=served.send, args=(0, 1, stop), daemon=True)
    sender.start()
    wait_until(lambda: len(served.acknowledged) > 20)
    served.postgres.kill()
    headers = {"Authorization": f"Bearer {served.tokens[1]}", "Content-Type": "application/json"}
    body = msgspec.json.encode(report(1, time.time_ns() // 1_000_000, boot_id="b"))
    answer = httpx.post(f"{served.url}/v1/telemetry", content=body, headers=headers, timeout=120)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    served.postgres.start()
    before = len(served.acknowledged)
    wait_until(lambda: len(served.acknowledged) > before + 20)
    stop.set()
    sender.join(180)
    assert served.acknowledged <= set(served.kept())
