"""Telemetry end to end: CPU of application and PostgreSQL per report of eight GPUs, and what a kill -9 costs.

Each report is authenticated, validated, deduplicated and durable before it is answered, in ours and in the baseline.
"""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy import Engine, insert, select

from benchmarks.console_stage import cpu_s, wait_for
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from health.detectors.past import relevant_readings
from local.children import Child, child_environment
from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import make_engine
from muster.db.models import ApiKey, Gpu, Node, StoredSignal, TelemetryBlock
from muster.domain.gpu.metrics import METRICS, SCHEMA
from muster.domain.principals import Role
from muster.domain.states import Contact, Standing
from muster.identity import new_id
from muster.ports import free_port
from muster.settings import make_secret_key_file
from muster.tokens import new_token
from muster.wire.telemetry import TELEMETRY_PROTOCOL, GpuReport, NodeReport, PortThroughput, Report

_FAULTS = frozenset(relevant_readings(tuple(metric.name for metric in METRICS)))
"""Readings whose rise or presence is a finding, as the judgement of samples names them: 0 for a healthy GPU."""
_HEAT = frozenset({"temperature_c", "memory_temperature_c", "temperature_margin_c"})
GPUS = 8


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``in_flight``: connections; ``reports``: to ours, in ``windows``, after uncounted warm
    ones.
    """

    nodes: int
    in_flight: int
    warm_reports: int
    reports: int
    baseline_reports: int
    windows: int
    kill_after_s: float


SIZES: Final = Sizes(
    full=Size(
        nodes=512,
        in_flight=256,
        warm_reports=1_536,
        reports=12_288,
        baseline_reports=6_144,
        windows=6,
        kill_after_s=2.0,
    ),
    smallest=Size(nodes=16, in_flight=8, warm_reports=16, reports=96, baseline_reports=32, windows=2, kill_after_s=0.2),
)


@dataclass
class Sender:
    """One node's agent, as the server sees it."""

    name: str
    token: str
    seq: int = 0
    acknowledged: list[int] = field(default_factory=list)

    def request(self, rng: random.Random) -> bytes:
        self.seq += 16
        gpus = tuple(GpuReport(uuid=f"GPU-{self.name}-{n}", values=_values(rng)) for n in range(GPUS))
        ports = tuple(PortThroughput(f"mlx5_{n}/1", _bytes(rng), _bytes(rng), 400.0) for n in range(GPUS))
        node = NodeReport(
            cpu_percent=12.5, memory_used_mib=70_000.0, num_gpus=GPUS, agent_version="1", port_throughput=ports
        )
        at_ms = time.time_ns() // 1_000_000
        report = Report(
            protocol=TELEMETRY_PROTOCOL,
            boot_id=f"boot-{self.name}",
            seq=self.seq,
            at_ms=at_ms,
            schema=SCHEMA,
            gpus=gpus,
            node=node,
        )
        body = msgspec.json.encode(report)
        head = (
            f"POST /v1/telemetry HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def _bytes(rng: random.Random) -> float:
    """Return bytes per second, as an agent reports them of each port."""
    return float(rng.randrange(50_000_000_000))


def _values(rng: random.Random) -> list[float | None]:
    """Return values of a healthy GPU: a value that would be a fault stays 0, heat is normal, all others change."""
    return [
        0.0
        if metric.name in _FAULTS
        else round(rng.uniform(40, 80), 2)
        if metric.name in _HEAT
        else round(rng.uniform(0, 900), 2)
        if metric.kind == "gauge"
        else float(rng.randrange(10_000))
        for metric in METRICS
    ]


def measure(size: Size) -> Groups:
    with tempfile.TemporaryDirectory(prefix="muster-ingest-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        ours = _cost_of_ours(folder, size)
        baseline = _cost_of_baseline(folder, "usual", size)
        bare_us = _cost_of_baseline(folder, "bare", size)[0]
        lost, acknowledged = _lost_to_kill(folder, size)
    total_us, baseline_us = sum(ours), sum(baseline)
    parts = {"app µs": ours[0], "PostgreSQL µs": ours[1], "bare ASGI decode µs": bare_us}
    usual = {"baseline app µs": baseline[0], "baseline PostgreSQL µs": baseline[1]}
    over, bare, of = total_us / bare_us, {"bare µs": bare_us}, {"acknowledged": float(acknowledged)}
    times = baseline_us / total_us
    yield [
        Figure("telemetry: CPU of app + PostgreSQL a report", total_us, "µs", 300.0, peers=parts, basis=Basis.CPU),
        Figure("telemetry: the same over a bare ASGI decode", over, "×", 7.5, peers=bare, basis=Basis.RATIO),
        Figure("telemetry: the usual way's CPU over ours", times, "×", 3.0, "higher", usual, basis=Basis.RATIO),
        Figure("telemetry: lost to kill -9 of the API", float(lost), "reports", 0.0, peers=of, basis=Basis.COUNT),
    ]


@contextlib.contextmanager
def _database(folder: Path, name: str, num_nodes: int) -> Iterator[tuple[PostgresServer, Engine, list[Sender]]]:
    postgres = PostgresServer(folder / name)
    postgres.start()
    migrate.upgrade(postgres.url())
    engine = make_engine(postgres.url())
    try:
        yield postgres, engine, _populate(engine, num_nodes)
    finally:
        engine.dispose()
        postgres.stop()


def _populate(engine: Engine, num_nodes: int) -> list[Sender]:
    now = datetime.now(UTC)
    senders, nodes, gpus, keys = [], [], [], []
    for number in range(num_nodes):
        node_id, token, name = new_id("node"), new_token(), f"n{number:04}"
        senders.append(Sender(name, token.text))
        row = {"id": node_id, "name": name, "contact": Contact.LIVE, "address": "127.0.0.1", "num_gpus": GPUS}
        nodes.append({**row, "is_simulated": True, "labels": {}, "past_boot_ids": [], "created_at": now, "version": 1})
        gpus += [_gpu(node_id, name, slot) for slot in range(GPUS)]
        key = {"id": new_id("key"), "prefix": token.public, "secret_sha256": token.digest, "name": name}
        keys.append({**key, "role": Role.NODE, "node_id": node_id, "created_at": now, "version": 1})
    with engine.begin() as connection:
        for nodes_row in nodes:
            connection.execute(insert(Node), {**nodes_row, "heartbeat_seq": 0})
        connection.execute(insert(Gpu), gpus)
        connection.execute(insert(ApiKey), keys)
    return senders


def _gpu(node_id: str, name: str, slot: int) -> dict[str, object]:
    return {
        "uuid": f"GPU-{name}-{slot}",
        "node_id": node_id,
        "slot_index": slot,
        "model": "H100",
        "memory_bytes": 80 << 30,
        "compute_capability": "9.0",
        "driver_version": "580",
        "standing": Standing.HEALTHY,
        "is_mig_enabled": False,
        "is_simulated": True,
        "cohort_key": "h100",
        "version": 1,
    }


def _api(folder: Path, name: str, postgres: PostgresServer) -> tuple[Child, int]:
    make_secret_key_file(folder / "secret.key")
    port = free_port()
    variables = child_environment(
        database_url=postgres.url(), secret_key_file=folder / "secret.key", api_port=port, log_level="warning"
    )
    child = Child(name, ["api"], variables, folder / f"{name}.log")
    child.start()
    wait_for(f"http://127.0.0.1:{port}/readyz")
    return child, port


def _cost_of_ours(folder: Path, size: Size) -> tuple[float, float]:
    with _database(folder, "ours", size.nodes) as (postgres, engine, senders):
        child, port = _api(folder, "ours-api", postgres)
        try:
            cost = _cost(port, child.pid or 0, postgres.pid, senders, size, size.reports)
        finally:
            child.stop()
        _require_healthy(engine)
        return cost


def _require_healthy(engine: Engine) -> None:
    """Raise ``RuntimeError`` if a sample had a finding: then the figures are of a storm, not of a healthy fleet."""
    with engine.connect() as connection:
        finding = connection.execute(select(StoredSignal.text).limit(1)).scalar()
    if finding is not None:
        message = f"the benchmark's samples are not of healthy GPUs: {finding}"
        raise RuntimeError(message)


def _cost_of_baseline(folder: Path, kind: str, size: Size) -> tuple[float, float]:
    with _database(folder, kind, size.nodes) as (postgres, _, senders):
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.ingest_baseline", kind, postgres.url(), str(port)]
        with subprocess.Popen(command) as process:  # noqa: S603  # our own module
            try:
                wait_for(f"http://127.0.0.1:{port}/openapi.json")
                return _cost(port, process.pid, postgres.pid, senders, size, size.baseline_reports)
            finally:
                process.terminate()


def _cost(port: int, app: int, postgres: int, senders: list[Sender], size: Size, reports: int) -> tuple[float, float]:
    """Return CPU µs a report of (application, PostgreSQL with all its processes), in the least disturbed of some
    windows.

    Other programs on the machine only add to it: caches and cores are shared.
    """
    asyncio.run(_load(port, senders, size.warm_reports, size.in_flight))
    windows = (_window(port, app, postgres, senders, size, reports // size.windows) for _ in range(size.windows))
    return min(windows, key=sum)


def _window(port: int, app: int, postgres: int, senders: list[Sender], size: Size, reports: int) -> tuple[float, float]:
    before = cpu_s(app), cpu_s(postgres)
    asyncio.run(_load(port, senders, reports, size.in_flight))
    after = cpu_s(app), cpu_s(postgres)
    return (after[0] - before[0]) / reports * 1e6, (after[1] - before[1]) / reports * 1e6


async def _load(port: int, senders: list[Sender], reports: int, in_flight: int) -> None:
    """Send by ``in_flight`` connections, each with its own nodes in turn, until each has sent its share.

    The content is made before: making it would take half of the cores from the measured processes.
    """
    share = reports // in_flight
    made = [list(_requests(senders[first::in_flight], share, first)) for first in range(in_flight)]
    await asyncio.gather(*(_send(port, requests) for requests in made))


def _requests(senders: list[Sender], count: int, seed: int) -> Iterator[tuple[Sender, int, bytes]]:
    """Yield each sender with the number and content of its request."""
    chance = random.Random(seed)  # noqa: S311  # readings, no secrets
    for number in range(count):
        sender = senders[number % len(senders)]
        request = sender.request(chance)
        yield sender, sender.seq, request


async def _send(port: int, requests: Iterable[tuple[Sender, int, bytes]]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for sender, seq, request in requests:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            body = await reader.readexactly(int(length.split(b":")[1]))
            if b" 200 " not in head.split(b"\r\n")[0]:
                message = f"refused: {body[:200]!r}"
                raise RuntimeError(message)
            sender.acknowledged.append(seq)
    finally:
        writer.close()


def _lost_to_kill(folder: Path, size: Size) -> tuple[int, int]:
    """Return how many acknowledged reports are not in the database after the API was killed under load, and of how
    many.
    """
    with _database(folder, "killed", size.nodes) as (postgres, engine, senders):
        child, port = _api(folder, "killed-api", postgres)
        asyncio.run(_load(port, senders, size.warm_reports, size.in_flight))
        asyncio.run(_load_until_killed(port, senders, child.pid or 0, size))
        child.stop()
        with engine.connect() as connection:
            rows = connection.execute(select(TelemetryBlock.boot_id, TelemetryBlock.seq)).all()
        kept = {(row[0], row[1]) for row in rows}
    acknowledged = [(f"boot-{sender.name}", seq) for sender in senders for seq in sender.acknowledged]
    return sum(1 for one in acknowledged if one not in kept), len(acknowledged)


async def _load_until_killed(port: int, senders: list[Sender], pid: int, size: Size) -> None:
    load = asyncio.gather(
        *(
            _send(port, _requests(senders[first :: size.in_flight], 1_000_000, first))
            for first in range(size.in_flight)
        ),
        return_exceptions=True,
    )
    await asyncio.sleep(size.kill_after_s)
    os.kill(pid, signal.SIGKILL)
    await load
