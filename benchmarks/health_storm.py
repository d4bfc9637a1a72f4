"""A storm: 1,500 of 12,500 hosts report a broken GPU at once, and one judge decides on a durable PostgreSQL.

Then the same with all eight GPUs of each host, which exceeds what the breaker lets rules take out. A GPU counts as
decided if it is QUARANTINED or, above the breaker's caps, proposed and excluded from placements, committed. A GPU
counts as kept out if the commit of a placement would refuse it. Both times begin when all hosts' reports are given to
the intake, as the API does on their receipt. The judge runs in a process of its own, as in ``muster worker control``:
group commits, evidence, events and audit rows are production's. The way from an agent to there (its spool, HTTP) is not
included: ``benchmarks.ingest`` has that. The fleet's rows are made up.
"""

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Engine, text

from benchmarks.console_stage import GPUS_A_NODE, enrol
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet.inventory import gpu_views
from control.health.judge import judge_once
from control.telemetry.intake import Intake
from control.telemetry.reports import AcceptedReport, IncomingReport, Outcome
from health.standing.admission import refusal_of
from local.bootstrap import bootstrap
from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import make_engine
from muster.domain.gpu.metrics import SCHEMA
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import Policy
from muster.domain.principals import system_principal
from muster.wire.telemetry import TELEMETRY_PROTOCOL, EventReport, Report

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

NVSENTINEL_S: Final = 600.0
"""Time for 1,500 nodes at the 2.5 nodes a second of its own scale test (750 nodes cordoned in 303.7 s)."""
GIVE_UP_S: Final = 600.0
POLL_S: Final = 0.05
"""Interval of the queries that count decided GPUs."""

_DECIDED = text("""
SELECT count(*) FILTER (WHERE standing = 'QUARANTINED'), count(*) FILTER (WHERE standing <> 'QUARANTINED' AND EXISTS (
    SELECT FROM breaker_proposals AS p WHERE p.subject_id = gpus.uuid AND p.way = 'standing'))
FROM gpus WHERE uuid = ANY(:uuids)
""")
_JUDGED = text("SELECT count(*) FROM gpu_signals WHERE judged_at IS NOT NULL")


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int

    @property
    def faulty(self) -> int:
        return self.nodes * 3 // 25


SIZES: Final = Sizes(full=Size(int(os.environ.get("MUSTER_STORM_NODES", "12500"))), smallest=Size(nodes=100))


def measure(size: Size) -> Groups:
    yield _measured(size, reported_gpus=1)
    yield _measured(size, reported_gpus=GPUS_A_NODE)


def _measured(size: Size, reported_gpus: int) -> list[Figure]:
    """Measure on a database of its own: the GPUs that one storm took out count for the breaker of the next."""
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
            enrol(engine, size.nodes * GPUS_A_NODE)
            figures = _storm(engine, units, size, reported_gpus)
            engine.dispose()
        finally:
            postgres.stop()
    return figures


def _storm(engine: Engine, units: UnitOfWorkFactory, size: Size, reported_gpus: int) -> list[Figure]:
    """Run one storm. ``reported_gpus``: of each host. Raises AssertionError if a faulty GPU was not decided."""
    hosts = [number * 8 for number in range(size.faulty)]
    faulty = [(f"node_{host:026d}", f"GPU-{host:05d}-{slot}") for host in hosts for slot in range(reported_gpus)]
    of_each = "" if reported_gpus == 1 else f" by all {reported_gpus} GPUs"
    telling = _Reporter(units, faulty, reported_gpus)
    with _judging(engine.url.render_as_string(hide_password=False)):
        decided_s = _until_decided(engine, units, faulty, telling)
    stored_s = sorted(telling.end())
    with engine.connect() as connection:
        out, held = connection.execute(_DECIDED, {"uuids": [uuid for _, uuid in faulty]}).one()
    if out + held != len(faulty):
        raise AssertionError(f"of {len(faulty)} faulty GPUs {out} are QUARANTINED and {held} held: not all decided")
    _require_kept_out(units, faulty)
    made_of: dict[str, float] = {
        "nodes": size.nodes,
        "GPUs reported": len(faulty),
        "quarantined": out,
        "proposed and held": held,
    }
    return [
        Figure(
            f"health: {size.faulty:,} hosts at once{of_each}, the last decided",
            decided_s[-1],
            "s",
            60.0,
            peers={**made_of, "median s": _median(decided_s), "NVSentinel s": NVSENTINEL_S},
            basis=Basis.BUSY,
        ),
        Figure(
            f"health: {size.faulty:,} hosts at once{of_each}: reported → kept out of placement, p99",
            stored_s[int(0.99 * len(stored_s))],
            "s",
            1.0,
            peers={"median s": _median(stored_s), "the last s": stored_s[-1]},
            basis=Basis.BUSY,
        ),
    ]


@contextmanager
def _judging(url: str) -> Iterator[None]:
    """Run a judge in a process of its own, which works when this block begins."""
    context = multiprocessing.get_context("spawn")
    is_ready, is_over = context.Event(), context.Event()
    judge = context.Process(target=_judge, args=(url, is_ready, is_over), daemon=True)
    judge.start()
    if not is_ready.wait(GIVE_UP_S):
        raise AssertionError("the judge's process did not begin")
    try:
        yield
    finally:
        is_over.set()
        judge.join(60)


def _judge(url: str, is_ready: "Event", is_over: "Event") -> None:
    engine = make_engine(url)
    units, principal = UnitOfWorkFactory(engine), system_principal("judge")
    judge_once(units, principal)
    is_ready.set()
    while not is_over.is_set():
        if not judge_once(units, principal):
            time.sleep(0.01)
    engine.dispose()


def _until_decided(
    engine: Engine, units: UnitOfWorkFactory, faulty: Sequence[tuple[str, str]], reporter: "_Reporter"
) -> list[float]:
    """Return when each was decided, in seconds since the reports. Admission is checked once between the last report and
    that.
    """
    decided_s: list[float] = []
    is_asked = False
    began_s = reporter.begin()
    while len(decided_s) < len(faulty) and time.monotonic() - began_s < GIVE_UP_S:
        if reporter.is_over.is_set() and not is_asked:
            _require_kept_out(units, faulty)
            is_asked = True
        time.sleep(POLL_S)
        with engine.connect() as connection:
            judged = int(connection.execute(_JUDGED).scalar_one())
        decided_s += [time.monotonic() - began_s] * (judged - len(decided_s))
    return decided_s


class _Reporter:
    """Reports with XID 140 of each faulty GPU, one report a host, all given to the intake at once."""

    def __init__(self, units: UnitOfWorkFactory, faulty: Sequence[tuple[str, str]], reported_gpus: int) -> None:
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        of_hosts = [tuple(faulty[at : at + reported_gpus]) for at in range(0, len(faulty), reported_gpus)]
        self._incoming = [
            IncomingReport(NodeId(told[0][0]), None, _report([uuid for _, uuid in told], now_ms), now_ms)
            for told in of_hosts
        ]
        self._intake = Intake(units)
        self._stored: dict[int, float] = {}
        self._faults: list[Outcome] = []
        self.is_over = threading.Event()
        self._began_s = 0.0

    def begin(self) -> float:
        self._began_s = time.monotonic()
        for number, one in enumerate(self._incoming):
            self._intake.submit(one, partial(self._take, number))
        return self._began_s

    def _take(self, number: int, outcome: Outcome) -> None:
        if not isinstance(outcome, AcceptedReport):
            self._faults.append(outcome)
        self._stored[number] = time.monotonic() - self._began_s
        if len(self._stored) == len(self._incoming):
            self.is_over.set()

    def end(self) -> list[float]:
        """Return for each GPU the time until a placement refused it: its event is committed then, and alarms."""
        if not self.is_over.wait(GIVE_UP_S) or self._faults:
            raise AssertionError(f"{len(self._stored)} of {len(self._incoming)} reports are stored: {self._faults[:3]}")
        self._intake.close()
        return [self._stored[at] for at, one in enumerate(self._incoming) for _ in one.report.events]


def _report(uuids: Sequence[str], now_ms: int) -> Report:
    events = tuple(
        EventReport(
            event_id=f"boot:xid:140:{uuid}",
            kind="xid",
            source="kernel_log",
            at_ms=now_ms,
            gpu_uuid=uuid,
            code=140,
            text="Unrecovered ECC Error",
        )
        for uuid in uuids
    )
    return Report(protocol=TELEMETRY_PROTOCOL, boot_id="boot", seq=2, at_ms=now_ms, schema=SCHEMA, events=events)


def _require_kept_out(units: UnitOfWorkFactory, faulty: Sequence[tuple[str, str]]) -> None:
    """Raise AssertionError if admission, as at a commit, takes any of them into any tier."""
    policy = Policy()
    views = []
    for at in range(0, len(faulty), 1_000):
        only = [GpuUuid(uuid) for _, uuid in faulty[at : at + 1_000]]
        with units.read() as session:
            views += gpu_views(session, datetime.now(UTC), policy.health, only=only)
    admitted = [view.uuid for view in views for tier in policy.tiers.values() if refusal_of(view.facts, tier) is None]
    if admitted or len(views) != len(faulty):
        raise AssertionError(f"of {len(faulty)} faulty GPUs {len(admitted)} are admitted")


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
