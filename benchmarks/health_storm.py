"""A storm: 1,500 of 12,500 hosts tell of a broken GPU at once, and one judge decides on a durable PostgreSQL. Then the
same with all eight GPUs of each host, which is past what the breaker lets rules take out.

Decided is: QUARANTINED, or past the breaker's caps proposed and held out of placements, committed. Kept out is: refused
by what a placement asks at its commit, from the moment at which what was told is stored; the way from the agents to
there (their spool, HTTP, the intake's groups) is not in it, ``benchmarks.ingest`` has that. What is after it is
production's: stored signals, ``judge_once``, evidence, events and audit rows. The fleet's rows are made up.
"""

import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, text

from benchmarks.console_stage import GPUS_A_NODE, enrol
from benchmarks.figures import Figure
from health.admission import refusal_of
from muster.db import migrate
from muster.db.engine import make_engine
from muster.db.repositories import telemetry
from muster.domain.evidence import EventKind, GpuSignal, Source
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy import Policy
from muster.domain.principals import system_principal
from muster.embedded.bootstrap import bootstrap
from muster.embedded.postgres import PostgresServer
from muster.services.fleet import gpu_views
from muster.services.judgement.judge import judge_once
from muster.services.telemetry.judging import SampleJudge
from muster.services.unit_of_work import UnitOfWorkFactory

NUM_NODES: Final = int(os.environ.get("MUSTER_STORM_NODES", "12500"))
NUM_FAULTY: Final = NUM_NODES * 3 // 25
NVSENTINEL_S: Final = 600.0
"""1,500 nodes at the 2.5 nodes a second that it cordoned in its own scale test (750 nodes in 303.7 s)."""
GIVE_UP_S: Final = 600.0

_DECIDED = text("""
SELECT count(*) FILTER (WHERE standing = 'QUARANTINED'), count(*) FILTER (WHERE standing <> 'QUARANTINED' AND EXISTS (
    SELECT FROM cordons WHERE cordons.gpu_uuid = gpus.uuid AND released_at IS NULL
        AND reason_code IN ('quarantine_held_back', 'correctness_at_risk')))
FROM gpus WHERE uuid = ANY(:uuids)
""")
_WAITING = text("SELECT count(*) FROM gpu_signals WHERE judged_at IS NULL")


def measure() -> list[Figure]:
    return [*_measured(gpus_told=1), *_measured(gpus_told=GPUS_A_NODE)]


def _measured(gpus_told: int) -> list[Figure]:
    """On a database of its own: what one storm took out counts for the breaker of the next."""
    with tempfile.TemporaryDirectory(prefix="muster-storm-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        postgres = PostgresServer(folder / "postgres")
        postgres.start()
        try:
            migrate.upgrade(postgres.url())
            engine = make_engine(postgres.url())
            units = UnitOfWorkFactory(engine)
            bootstrap(units, folder / "keys", policy=Policy(), policy_name="the benchmark")
            enrol(engine, NUM_NODES * GPUS_A_NODE)
            figures = _storm(engine, units, gpus_told)
            engine.dispose()
        finally:
            postgres.stop()
    return figures


def _storm(engine: Engine, units: UnitOfWorkFactory, gpus_told: int) -> list[Figure]:
    """``gpus_told``: of each host. Raises AssertionError where a faulty GPU was not decided: nothing was measured."""
    faulty = [(f"node_{n * 8:026d}", f"GPU-{n * 8:05d}-{slot}") for n in range(NUM_FAULTY) for slot in range(gpus_told)]
    of_each = "" if gpus_told == 1 else f" by all {gpus_told} GPUs"
    began = time.monotonic()
    _tell(engine, faulty)
    _require_kept_out(units, faulty)
    kept_out_s = time.monotonic() - began
    decided_s: list[float] = []
    principal = system_principal("judge")
    while len(decided_s) < len(faulty) and time.monotonic() - began < GIVE_UP_S:
        if not judge_once(units, principal):
            break
        with engine.connect() as connection:
            waiting = int(connection.execute(_WAITING).scalar_one())
        after_s = time.monotonic() - began
        decided_s += [after_s] * (len(faulty) - waiting - len(decided_s))
    with engine.connect() as connection:
        out, held = connection.execute(_DECIDED, {"uuids": [uuid for _, uuid in faulty]}).one()
    if out + held != len(faulty):
        raise AssertionError(f"of {len(faulty)} faulty GPUs {out} are QUARANTINED and {held} held: not all decided")
    _require_kept_out(units, faulty)
    made_of: dict[str, float] = {
        "nodes": NUM_NODES,
        "GPUs told of": len(faulty),
        "quarantined": out,
        "proposed and held": held,
    }
    return [
        Figure(
            f"health: {NUM_FAULTY:,} hosts at once{of_each}, the last decided",
            decided_s[-1],
            "s",
            60.0,
            peers={**made_of, "median s": _median(decided_s), "NVSentinel s": NVSENTINEL_S},
        ),
        Figure(
            f"health: of those{of_each}, stored at once → kept out of placement, the last",
            kept_out_s,
            "s",
            1.0,
        ),
    ]


def _require_kept_out(units: UnitOfWorkFactory, faulty: list[tuple[str, str]]) -> None:
    """Raises AssertionError where admission, asked as at a commit, takes any of them into any tier."""
    policy = Policy()
    with units.read() as session:
        views = gpu_views(session, datetime.now(UTC), policy.health, only=[GpuUuid(uuid) for _, uuid in faulty])
    admitted = [view.uuid for view in views for tier in policy.tiers.values() if refusal_of(view.facts, tier) is None]
    if admitted or len(views) != len(faulty):
        raise AssertionError(f"of {len(faulty)} faulty GPUs {len(admitted)} are admitted")


def _tell(engine: Engine, faulty: list[tuple[str, str]]) -> None:
    """As a report's flush stores events: XID 79 of each."""
    judge = SampleJudge()
    now = datetime.now(UTC)
    rows = [
        {
            "node_id": node_id,
            "signal_id": f"boot:xid:79:{uuid}",
            "gpu_uuid": uuid,
            "kind": "xid",
            "source": "kernel_log",
            "code": 79,
            "at_ms": int(now.timestamp() * 1000),
            "received_at": now,
            "text": "GPU has fallen off the bus.",
            "values": "{}",
            "is_open": False,
            "is_alarming": judge.is_alarming(
                GpuSignal(
                    f"boot:xid:79:{uuid}", EventKind.XID, Source.KERNEL_LOG, 0, NodeId(node_id), GpuUuid(uuid), 79
                )
            ),
        }
        for node_id, uuid in faulty
    ]
    with engine.begin() as connection:
        telemetry.add_signals(connection, rows)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
