"""A simulated month as the control plane's own rows in PostgreSQL, and its clock, which closes the ledger hour by hour.

What happened stands there from the beginning: hosts, GPUs, attempts, reclaims, evidence, waits. What hosts report comes
with the clock: steps when they are known, heartbeats, and the marker of what a host had to drop.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Engine, text

from control.core.late_reports import note_late
from control.core.unit_of_work import UnitOfWorkFactory
from control.ledger.closing import SETTLES, STORE, keep_ledger_once
from ledger.figures.hours import HOUR
from muster.domain.principals import system_principal
from muster.domain.states import Cause
from simulator.month.facts import COHORT, MODEL, WAITS_FOR, evidence_of, gpu_uuid, job_id, moves_of, node_id, waits_of
from simulator.month.history import GPUS_A_NODE, HOUR_MS, NODES_A_RACK, Attempt
from simulator.month.reports import Reports, Step
from simulator.month.truth import BURN_IN

POLLED_AFTER: Final = timedelta(minutes=15)
"""The clock stops so long after each hour, when the steps that reach into the next one are known."""
_MORE_HOURS: Final = 28
"""So many hours after the month each of its hours had its last computation."""
LATE_EACH: Final = 8
LATE_EVERY_H: Final = 12
LATE_BY_MS: Final = 3 * HOUR_MS
"""One of ``LATE_EACH`` steps in one of so many hours is reported so late, when its hour is closed."""
_PRINCIPAL: Final = system_principal("ledger")
_HEARTBEATS: Final = text("UPDATE nodes SET last_heartbeat_at = :now WHERE NOT id = ANY(:silent)")
_WORDS: Final = text("""
UPDATE training_ranks SET updated_at = least(coalesce(own.ended_at, :now), :now) FROM attempts AS own
WHERE own.id = attempt_id AND NOT node_id = ANY(:silent) AND own.placed_at <= :now
    AND updated_at < least(coalesce(own.ended_at, :now), :now)
""")
_HOURS: Final = text("""
INSERT INTO ledger_hours (hour, computed_at, revision, num_gpus, capacity_ms, unexplained_ms, awaits, gaps, due_at)
SELECT hour, :begin, 0, 0, 0, 0, 0, '{}', CASE WHEN hour < :end THEN hour + :after END
FROM generate_series(CAST(:begin AS timestamptz), CAST(:end AS timestamptz) + :more, interval '1 hour') AS hour
""")
"""The hours of the month, and as many after it as its clock continues: these are never computed."""
_CLEAN: Final = "DELETE FROM ledger_hours; DELETE FROM node_latest; DELETE FROM gpus; DELETE FROM nodes"
_Row = tuple[Any, ...]


class Clock:
    """A clock that is set."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


class MonthRows:
    """``begin``: the moment 0 of the history; its hours are whole hours of UTC."""

    def __init__(self, engine: Engine, reports: Reports, begin: datetime) -> None:
        self.begin, self._reports, self._history, self._engine = begin, reports, reports.history, engine
        self.clock = Clock(begin)
        self.units = UnitOfWorkFactory(engine, self.clock)
        self._to_come = sorted(_steps(reports), key=lambda one: one[0], reverse=True)
        self._lost = sorted((one for one in reports.silences if one.is_lost), key=lambda one: -one.end_ms)

    def at(self, moment_ms: int) -> datetime:
        return self.begin + timedelta(milliseconds=moment_ms)

    def fill(self) -> None:
        """Store what happened, in place of the fleet that is there."""
        with self._engine.begin() as connection:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            for statement in _CLEAN.split(";"):
                connection.execute(text(statement))
            for table, columns, rows in self._tables():
                _copy(connection, table, columns, rows)
            end = self.at(self._history.shape.num_hours * HOUR_MS)
            given = {"begin": self.begin, "end": end, "after": HOUR + SETTLES, "more": _MORE_HOURS * 2 * HOUR}
            connection.execute(_HOURS, given)
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ANALYZE"))

    def play(self, keep: Callable[[UnitOfWorkFactory], bool] = keep_ledger_once) -> int:
        """Let the month pass, and all of its hours be closed. Return how often an hour was computed.

        ``keep``: computes the oldest hour that is due, and returns whether there was one.
        """
        num = 0
        for hour in range(1, self._history.shape.num_hours + _MORE_HOURS):
            self.clock.now = self.at(hour * HOUR_MS) + POLLED_AFTER
            self._report()
            while keep(self.units):
                num += 1
        return num

    def _report(self) -> None:
        """Store what hosts report until now."""
        now_ms = (self.clock.now - self.begin) // timedelta(milliseconds=1)
        silent = [node_id(one.node) for one in self._reports.silences if one.start_ms <= now_ms < one.end_ms]
        come: list[_Row] = []
        oldest_ms = now_ms
        while self._to_come and self._to_come[-1][0] <= now_ms:
            _, done_ms, row = self._to_come.pop()
            come.append((*row, self.at(done_ms)))
            oldest_ms = min(oldest_ms, done_ms)
        gaps = []
        while self._lost and self._lost[-1].end_ms <= now_ms:
            one = self._lost.pop()
            times = self.at(one.start_ms), self.at(one.end_ms), "spool_full", self.at(one.end_ms)
            gaps.append((node_id(one.node), "boot", one.start_ms, 0, "samples", 1, 2, 1, *times))
        with self.units.begin(_PRINCIPAL, STORE, quiet=True) as unit:
            connection = unit.session.connection()
            _copy(connection, "training_steps", "attempt_id, step, job_id, tenant_id, step_s, pace, at", come)
            _copy(connection, "telemetry_gaps", _GAPS, gaps)
            unit.session.execute(_HEARTBEATS, {"now": unit.now, "silent": silent})
            unit.session.execute(_WORDS, {"now": unit.now, "silent": silent})
            note_late(unit, self.at(oldest_ms), None)

    def _tables(self) -> Iterator[tuple[str, str, Iterable[_Row]]]:
        yield from self._fleet()
        yield from self._work()
        yield from self._reasons()

    def _fleet(self) -> Iterator[tuple[str, str, Iterable[_Row]]]:
        nodes, at = range(self._history.shape.num_nodes), self.at
        yield "nodes", _NODES, (
            (node_id(node), f"h{node}", "LIVE", "127.0.0.1", GPUS_A_NODE, True, f"rack-{node // NODES_A_RACK}", "{}",
             "[]", 0, self.begin, 1) for node in nodes
        )  # fmt: skip
        yield (
            "node_contact_changes",
            "node_id, at, contact",
            [
                *((node_id(node), self.begin, "LIVE") for node in nodes),
                *((node_id(one.node), at(one.start_ms), "SILENT") for one in self._reports.silences),
                *((node_id(one.node), at(one.end_ms), "LIVE") for one in self._reports.silences),
            ],
        )
        since = dict.fromkeys(nodes, self.begin)
        since |= {one.node: at(one.end_ms) for one in self._history.outages}
        gpus = range(self._history.shape.num_gpus)
        yield "gpus", _GPUS, (
            (gpu_uuid(gpu), node_id(gpu // GPUS_A_NODE), gpu % GPUS_A_NODE, MODEL, 85_899_345_920, "9.0", "580",
             "HEALTHY", since[gpu // GPUS_A_NODE], False, True, COHORT, 1) for gpu in gpus
        )  # fmt: skip
        yield "gpu_standing_changes", _MOVES, self._moves()
        yield "burn_ins", _BURN_INS, (
            (f"bi_{gpu}_{one.start_ms}", gpu_uuid(gpu), node_id(one.node), "ABANDONED", "after_repair", "month",
             at(one.end_ms - BURN_IN), 1, at(one.end_ms - BURN_IN), at(one.end_ms), "[]", "[]", 0)
            for one in self._history.outages for gpu in _gpus_of(one.node)
        )  # fmt: skip

    def _moves(self) -> Iterator[_Row]:
        for gpu in range(self._history.shape.num_gpus):
            for origin, target in ((None, "UNPROVEN"), ("UNPROVEN", "HEALTHY")):
                yield gpu_uuid(gpu), origin, target, self.begin, "enrolled", "month", "burn_in_passed", "[]"
        for one in self._history.outages:
            for move in moves_of(one):
                for gpu in _gpus_of(one.node):
                    yield (
                        *(gpu_uuid(gpu), "HEALTHY", move.standing.value, self.at(move.at_ms), move.cause, "month"),
                        *(move.cause, json.dumps(list(move.evidence))),
                    )

    def _work(self) -> Iterator[tuple[str, str, Iterable[_Row]]]:
        history, at = self._history, self.at
        tenants = sorted({job.tenant for job in history.jobs})
        yield "tenants", "id, name, created_at, weight", ((tenant, tenant, self.begin, 1) for tenant in tenants)
        over = {one.job: one.end_ms for one in history.attempts if one.cause is Cause.SUCCEEDED}
        yield "jobs", _JOBS, (
            (job_id(number), job.tenant, f"train-{number}", job.tier, "SUCCEEDED" if number in over else "QUEUED", "",
             "{}", "month", at(round(job.submit_s * 1000)), self.begin,
             at(over[number] or 0) if number in over else None, 0, 0, 1) for number, job in enumerate(history.jobs)
        )  # fmt: skip
        for columns, rows in ((_ATTEMPTS, self._attempts()), (_ALLOCATIONS, self._allocations())):
            yield columns.partition("\n")[0], columns.partition("\n")[2], rows
        yield "attempt_hosts", _HOSTS, (
            (one.attempt_id, node_id(node), rank, "STARTED" if one.end_ms is None else "CLEAN", 1, False,
             self._end(one), self._end(one), one.cause is Cause.GPU_FAULT and self._failed(one, node))
            for one in history.attempts for rank, node in enumerate(one.nodes)
        )  # fmt: skip
        yield "allocation_gpus", "allocation_id, gpu_uuid, node_id, node_rank, local_index, state", (
            (f"all_{one.attempt_id}", gpu_uuid(gpu), node_id(gpu // GPUS_A_NODE),
             one.nodes.index(gpu // GPUS_A_NODE), gpu % GPUS_A_NODE, "HELD" if one.end_ms is None else "RELEASED")
            for one in history.attempts for gpu in one.gpus
        )  # fmt: skip
        yield "training_ranks", "attempt_id, rank, tenant_id, node_id, step, updated_at", (
            (one.attempt_id, rank, history.jobs[one.job].tenant, node_id(node), 1, at(one.start_ms))
            for one in history.attempts for rank, node in enumerate(one.nodes)
        )  # fmt: skip

    def _attempts(self) -> Iterator[_Row]:
        for fence, one in enumerate(self._history.attempts, start=1):
            placed, ended = self.at(one.start_ms), self._end(one)
            cause = None if one.cause is None else one.cause.value
            yield (
                *(one.attempt_id, job_id(one.job), self._history.jobs[one.job].tenant, one.number, fence),
                *("RUNNING" if ended is None else "ENDED", cause, placed, placed, placed, ended),
                *("fenced", "a", 1, len(one.nodes), 1),
            )

    def _allocations(self) -> Iterator[_Row]:
        for one in self._history.attempts:
            job, ended = self._history.jobs[one.job], self._end(one)
            state = "HELD" if ended is None else "RELEASED"
            ids = f"all_{one.attempt_id}", one.attempt_id, job_id(one.job), job.tenant, job.tier
            yield *ids, state, self.at(one.start_ms), ended, len(one.gpus)

    def _reasons(self) -> Iterator[tuple[str, str, Iterable[_Row]]]:
        """Yield why time was lost: waits by their reason, findings on nodes, and reclaims."""
        history, at = self._history, self.at
        yield (
            "job_wait_changes",
            "job_id, at, binding",
            ((job_id(job), at(start_ms), WAITS_FOR) for job, start_ms, _ in waits_of(history)),
        )
        yield "evidence", _EVIDENCE, (
            (f"ev_{one.node}_{one.start_ms}", node_id(one.node), "xid", 1, "xid-79", 3, "measured", "[]",
             at(one.start_ms), at(one.start_ms), 86_400_000, "GPUs fell off the bus", False, False, "{}",
             at(one.start_ms)) for one in history.outages
        )  # fmt: skip
        yield "reclaims", _RECLAIMS, (
            (evidence_of(one)[0], job_id(0), history.jobs[0].tenant, "reserved", one.attempt_id, job_id(one.job),
             history.jobs[one.job].tenant, history.jobs[one.job].tier, len(one.gpus), "FORCED", "", 120.0,
             at(one.end_ms - 120_000), at(one.end_ms), at(one.end_ms), "work_lost", 0.0, 0.0, at(one.end_ms), "placed")
            for one in history.attempts if one.cause is Cause.RECLAIMED and one.end_ms is not None
        )  # fmt: skip

    def _end(self, one: Attempt) -> datetime | None:
        return None if one.end_ms is None else self.at(one.end_ms)

    def _failed(self, one: Attempt, node: int) -> bool:
        return any(outage.node == node and outage.start_ms == one.end_ms for outage in self._history.outages)


def _steps(reports: Reports) -> Iterator[tuple[int, int, _Row]]:
    """Yield each step that is ever reported: when that is, when it was done, and its row without that time."""
    for one in reports.history.attempts:
        whose = job_id(one.job), reports.history.jobs[one.job].tenant
        told = zip(reports.steps[one.attempt_id], reports.known_ms[one.attempt_id], strict=True)
        for step, known_ms in told:
            if known_ms is not None:
                row = (one.attempt_id, step.number, *whose, (step.end_ms - step.start_ms) / 1000, _pace(step))
                is_late = step.end_ms // HOUR_MS % LATE_EVERY_H == 1 and (one.job + step.number) % LATE_EACH == 0
                yield known_ms + (LATE_BY_MS if is_late else 0), step.end_ms, row


def _pace(step: Step) -> str | None:
    return json.dumps({"num_steps": 1, "checkpoint_s": step.save_ms / 1000}) if step.save_ms else None


def _gpus_of(node: int) -> range:
    return range(node * GPUS_A_NODE, (node + 1) * GPUS_A_NODE)


def _copy(connection: Connection, table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
    cursor: Any = connection.connection.cursor()
    with cursor, cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copying:
        for row in rows:
            copying.write_row(row)


_NODES: Final = (
    "id, name, contact, address, num_gpus, is_simulated, rack, labels, past_boot_ids, heartbeat_seq, created_at,"
    " version"
)
_GPUS: Final = (
    "uuid, node_id, slot_index, model, memory_bytes, compute_capability, driver_version, standing, standing_since,"
    " is_mig_enabled, is_simulated, cohort_key, version"
)
_MOVES: Final = "gpu_uuid, origin, target, at, reason, actor, move_reason, evidence_ids"
_BURN_INS: Final = (
    "id, gpu_uuid, node_id, state, reason, ordered_by, ordered_at, tries, began_at, ended_at, reasons, open_bands,"
    " num_peers"
)
_JOBS: Final = (
    "id, tenant_id, name, tier, state, state_reason, spec, submitted_by, created_at, updated_at, finished_at,"
    " restarts_used, launch_failures, version"
)
_ATTEMPTS: Final = (
    "attempts\nid, job_id, tenant_id, number, fence, state, cause, placed_at, claimed_at, running_at, ended_at,"
    " on_node_loss, rendezvous_address, rendezvous_port, num_nodes, version"
)
_ALLOCATIONS: Final = "allocations\nid, attempt_id, job_id, tenant_id, tier, state, created_at, released_at, num_gpus"
_HOSTS: Final = "attempt_id, node_id, node_rank, state, ring_count, is_past_lease, exited_at, clean_at, is_at_fault"
_EVIDENCE: Final = (
    "id, node_id, detector, detector_version, fault_key, severity, trust, sources, onset_at, last_seen_at,"
    " counts_for_ms, summary, threatens_correctness, is_suspended, values, created_at"
)
_RECLAIMS: Final = (
    "id, beneficiary_job_id, beneficiary_tenant_id, beneficiary_tier, victim_attempt_id, victim_job_id,"
    " victim_tenant_id, victim_tier, num_gpus, state, reason, notice_s, notified_at, deadline_at, settled_at, outcome,"
    " cost_gpu_s, lost_gpu_s, hold_ended_at, hold_ended_why"
)
_GAPS: Final = (
    "node_id, boot_id, report_seq, ordinal, priority, first_seq, last_seq, num_reports, from_at, until_at, why,"
    " received_at"
)
