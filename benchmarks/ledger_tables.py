"""Rows of a simulated month that PostgreSQL has from its beginning: the fleet, its work, and why time was lost."""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection

from muster.domain.states import Cause
from simulator.month.facts import COHORT, MODEL, WAITS_FOR, evidence_of, gpu_uuid, job_id, moves_of, node_id, waits_of
from simulator.month.history import GPUS_A_NODE, NODES_A_RACK, Attempt
from simulator.month.reports import Reports
from simulator.month.truth import BURN_IN

Row = tuple[Any, ...]
Table = tuple[str, str, Iterable[Row]]
"""A table's name, its columns, and its rows."""


class MonthTables:
    """The tables of a month in the order in which they are filled. ``begin``: the moment 0 of the history."""

    def __init__(self, reports: Reports, begin: datetime) -> None:
        self._reports, self._history, self._begin = reports, reports.history, begin

    def __iter__(self) -> Iterator[Table]:
        yield from self._fleet()
        yield from self._work()
        yield from self._reasons()

    def _fleet(self) -> Iterator[Table]:
        nodes, at = range(self._history.shape.num_nodes), self._at
        yield "nodes", _NODES, (
            (node_id(node), f"h{node}", "LIVE", "127.0.0.1", GPUS_A_NODE, True, f"rack-{node // NODES_A_RACK}", "{}",
             "[]", 0, self._begin, 1) for node in nodes
        )  # fmt: skip
        yield (
            "node_contact_changes",
            "node_id, at, contact",
            [
                *((node_id(node), self._begin, "LIVE") for node in nodes),
                *((node_id(one.node), at(one.start_ms), "SILENT") for one in self._reports.silences),
                *((node_id(one.node), at(one.end_ms), "LIVE") for one in self._reports.silences),
            ],
        )
        since = dict.fromkeys(nodes, self._begin)
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

    def _moves(self) -> Iterator[Row]:
        for gpu in range(self._history.shape.num_gpus):
            for origin, target in ((None, "UNPROVEN"), ("UNPROVEN", "HEALTHY")):
                yield gpu_uuid(gpu), origin, target, self._begin, "enrolled", "month", "burn_in_passed", "[]"
        for one in self._history.outages:
            for move in moves_of(one):
                for gpu in _gpus_of(one.node):
                    yield (
                        *(gpu_uuid(gpu), "HEALTHY", move.standing.value, self._at(move.at_ms), move.cause, "month"),
                        *(move.cause, json.dumps(list(move.evidence))),
                    )

    def _work(self) -> Iterator[Table]:
        history, at = self._history, self._at
        tenants = sorted({job.tenant for job in history.jobs})
        yield "tenants", "id, name, created_at, weight", ((tenant, tenant, self._begin, 1) for tenant in tenants)
        over = {one.job: one.end_ms for one in history.attempts if one.cause is Cause.SUCCEEDED}
        yield "jobs", _JOBS, (
            (job_id(number), job.tenant, f"train-{number}", job.tier, "SUCCEEDED" if number in over else "QUEUED", "",
             "{}", "month", at(round(job.submit_s * 1000)), self._begin,
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

    def _attempts(self) -> Iterator[Row]:
        for fence, one in enumerate(self._history.attempts, start=1):
            placed, ended = self._at(one.start_ms), self._end(one)
            cause = None if one.cause is None else one.cause.value
            yield (
                *(one.attempt_id, job_id(one.job), self._history.jobs[one.job].tenant, one.number, fence),
                *("RUNNING" if ended is None else "ENDED", cause, placed, placed, placed, ended),
                *("fenced", "a", 1, len(one.nodes), 1),
            )

    def _allocations(self) -> Iterator[Row]:
        for one in self._history.attempts:
            job, ended = self._history.jobs[one.job], self._end(one)
            state = "HELD" if ended is None else "RELEASED"
            ids = f"all_{one.attempt_id}", one.attempt_id, job_id(one.job), job.tenant, job.tier
            yield *ids, state, self._at(one.start_ms), ended, len(one.gpus)

    def _reasons(self) -> Iterator[Table]:
        """Yield why time was lost: waits by their reason, findings on nodes, and reclaims."""
        history, at = self._history, self._at
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
        return None if one.end_ms is None else self._at(one.end_ms)

    def _failed(self, one: Attempt, node: int) -> bool:
        return any(outage.node == node and outage.start_ms == one.end_ms for outage in self._history.outages)

    def _at(self, moment_ms: int) -> datetime:
        return self._begin + timedelta(milliseconds=moment_ms)


def _gpus_of(node: int) -> range:
    return range(node * GPUS_A_NODE, (node + 1) * GPUS_A_NODE)


def copy_rows(connection: Connection, table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
    """Store rows by COPY."""
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
