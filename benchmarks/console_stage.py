"""Stage of the console's benchmarks: a control plane with a made-up fleet, and the CPU of its API."""

import atexit
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from sqlalchemy import Engine, text

from benchmarks.unlimited import without_limits
from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants.sessions import sign_in_by_key
from local.bootstrap import bootstrap
from local.children import Child, child_environment
from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import make_engine
from muster.domain.gpu.metrics import NUM_METRICS
from muster.domain.policy.document import Policy
from muster.ports import free_port
from muster.settings import make_secret_key_file

GPUS_A_NODE = 8
NODES_A_RACK = 16
START_S = 120.0
_PER_PROCESS = 2

_NODES = text("""
INSERT INTO nodes (id, name, contact, address, num_gpus, is_simulated, rack, labels, past_boot_ids, heartbeat_seq,
    created_at, version)
SELECT 'node_' || lpad(n::text, 26, '0'), 'h100-' || lpad(n::text, 5, '0'), 'LIVE', '127.0.0.1', :gpus, true,
    'rack-' || lpad((n / :a_rack)::text, 4, '0'), '{}', '{}', 0, now(), 1
FROM generate_series(0, CAST(:nodes AS int) - 1) AS n
""")
_GPUS = text("""
INSERT INTO gpus (uuid, node_id, slot_index, model, memory_bytes, compute_capability, driver_version, standing, score,
    is_mig_enabled, is_simulated, cohort_key, version)
SELECT 'GPU-' || lpad(n::text, 5, '0') || '-' || slot, 'node_' || lpad(n::text, 26, '0'), slot, 'NVIDIA H100',
    85899345920, '9.0', '580',
    (ARRAY['HEALTHY', 'HEALTHY', 'HEALTHY', 'PROBATION', 'SUSPECT', 'UNPROVEN'])[1 + (n * 7 + slot) % 6],
    60 + (n + slot * 5) % 41, false, true, 'h100', 1
FROM generate_series(0, CAST(:nodes AS int) - 1) AS n, generate_series(0, CAST(:gpus AS int) - 1) AS slot
""")
# As `control.telemetry.node_readings` packs them.
_LATEST = text(r"""
INSERT INTO node_latest (node_id, boot_id, boot_order, past_boot_ids, seq, newest_ms, at, received_at, skew_ms,
    gpu_readings)
SELECT id, 'boot', 1, '[]', 1, 1, now(), now(), 0,
    int2send(num_gpus::int2) || int2send(CAST(:metrics AS int2))
    || (SELECT string_agg(float8send(round(20 + random() * 60)), ''::bytea)
        FROM generate_series(1, num_gpus * CAST(:metrics AS int)))
    || decode(repeat('00', num_gpus), 'hex')
    || (SELECT convert_to(string_agg(uuid, E'\x1f' ORDER BY slot_index), 'UTF8') FROM gpus WHERE node_id = nodes.id)
FROM nodes
""")


@dataclass(frozen=True)
class Stage:
    """Running control plane. ``session``: the value of an operator's cookie."""

    url: str
    port: int
    pid: int
    postgres: PostgresServer
    engine: Engine
    units: UnitOfWorkFactory
    key: str
    session: str

    @property
    def by_key(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    @property
    def by_cookie(self) -> dict[str, str]:
        return {"Cookie": f"__Host-muster={self.session}"}


_shared = contextlib.ExitStack()
atexit.register(_shared.close)
_stages: dict[int, Stage] = {}


@contextmanager
def shared_stage(num_gpus: int) -> Iterator[Stage]:
    """Yield the process's one control plane of that size, which ends with the process.

    Its start is most of the time of a small suite.
    """
    if num_gpus not in _stages:
        _stages[num_gpus] = _shared.enter_context(stage(num_gpus))
    yield _stages[num_gpus]


@contextmanager
def stage(num_gpus: int) -> Iterator[Stage]:
    """Yield a control plane whose fleet has that many GPUs, each with readings, as an operator sees it."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        postgres = PostgresServer(folder / "postgres", durable=False)
        postgres.start()
        migrate.upgrade(postgres.url())
        engine = make_engine(postgres.url())
        units = UnitOfWorkFactory(engine)
        key_file = bootstrap(units, folder / "keys", policy=Policy(), policy_name="the benchmark").operator_key_file
        key = key_file.read_text(encoding="ascii").strip()
        enrol(engine, num_gpus)
        child, port = _api(folder, postgres)
        try:
            token = sign_in_by_key(units, key, address=None).text
            url = f"http://127.0.0.1:{port}"
            yield Stage(url, port, child.pid or 0, postgres, engine, units, key, token)
        finally:
            child.stop()
            engine.dispose()
            postgres.stop()


def enrol(engine: Engine, num_gpus: int) -> None:
    nodes = num_gpus // GPUS_A_NODE
    with without_limits(engine) as unlimited, unlimited.begin() as connection:
        connection.execute(_NODES, {"nodes": nodes, "gpus": GPUS_A_NODE, "a_rack": NODES_A_RACK})
        connection.execute(_GPUS, {"nodes": nodes, "gpus": GPUS_A_NODE})
        connection.execute(_LATEST, {"metrics": NUM_METRICS})
    analyse(engine)


def analyse(engine: Engine) -> None:
    """Vacuum and analyse the tables, as autovacuum would have done by then."""
    with (
        without_limits(engine) as unlimited,
        unlimited.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
    ):
        connection.execute(text("VACUUM ANALYZE"))


def _api(folder: Path, postgres: PostgresServer) -> tuple[Child, int]:
    make_secret_key_file(folder / "secret.key")
    port = free_port()
    variables = child_environment(
        database_url=postgres.url(), secret_key_file=folder / "secret.key", api_port=port, log_level="warning"
    )
    child = Child("api", ["api"], variables, folder / "api.log")
    child.start()
    wait_for(f"http://127.0.0.1:{port}/readyz")
    return child, port


def wait_for(url: str) -> None:
    deadline = time.monotonic() + START_S
    # One client for all polls: each new one reads the system's certificates, with 25 ms of CPU that the server needs.
    with httpx.Client(timeout=5) as client:
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                if client.get(url).status_code == 200:
                    return
            time.sleep(0.05)
    message = f"{url} did not come up"
    raise TimeoutError(message)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of the process and all its children, the ended ones too."""
    root = psutil.Process(pid)
    ended = root.cpu_times()
    total = clock_s(pid) + ended.children_user + ended.children_system
    for child in root.children(recursive=True):
        with contextlib.suppress(OSError):
            total += clock_s(child.pid)
    return float(total)


def clock_s(pid: int) -> float:
    """Return the kernel's own count, in nanoseconds, of all threads; /proc counts in ticks of 10 ms.

    The number of a process's clock is computed from its pid as in clock_getcpuclockid(3).
    """
    return time.clock_gettime(~pid << 3 | _PER_PROCESS)


def bytes_read(pid: int) -> int:
    """Return the bytes that the process has read of files, or sent from them."""
    return _counted(pid, "rchar")


def bytes_written(pid: int) -> int:
    """Return the bytes that the process has written to files."""
    return _counted(pid, "wchar")


def _counted(pid: int, name: str) -> int:
    counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(counts[name])


def costs_ms(
    requests: Mapping[str, tuple[int, Callable[[], None]]], *, rounds: int, times: int
) -> list[dict[str, float]]:
    """Return the CPU ms of each process for each call that belongs to it, in each round.

    A round makes each call in turn, ``times`` in a row, so that disturbances of the machine affect all alike.
    """
    found = []
    for _ in range(rounds):
        costs = {}
        for name, (pid, ask) in requests.items():
            ask()
            before = clock_s(pid)
            for _ in range(times):
                ask()
            costs[name] = (clock_s(pid) - before) / times * 1_000
        found.append(costs)
    return found


def cost_ms(pids: tuple[int, ...], ask: Callable[[], None], *, times: int, windows: int = 4) -> float:
    """Return the CPU ms of these processes for each call of ``ask``, in the least disturbed of some windows."""
    ask()
    found = []
    for _ in range(windows):
        before = sum(map(cpu_s, pids))
        for _ in range(times):
            ask()
        found.append((sum(map(cpu_s, pids)) - before) / times * 1_000)
    return min(found)


def request(client: httpx.Client, path: str) -> Callable[[], None]:
    """Return a function that sends one GET on a connection that stays open; anything but 200 ends the benchmark."""

    def ask() -> None:
        answer = client.get(path)
        if answer.status_code != 200:
            message = f"{path} answered {answer.status_code}: {answer.text[:200]}"
            raise RuntimeError(message)

    return ask
