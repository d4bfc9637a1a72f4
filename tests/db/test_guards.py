"""What the database itself refuses, whatever a service does."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest
from sqlalchemy import Engine, Table, inspect, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from muster.db.errors import violated_constraint
from muster.db.models import Base, Job, PolicyVersion, StateEdge
from muster.db.stored_values import stored_value
from muster.domain import states
from muster.domain.states import (
    AllocationState,
    AttemptState,
    BurnInOutcome,
    BurnInState,
    Cause,
    EvidenceState,
    JobState,
    ReclaimOutcome,
    ReclaimState,
)

LATER = datetime(2026, 11, 21, 5, 0, tzinfo=UTC)
MACHINES: dict[str, Mapping[Any, frozenset[Any]]] = {
    "job": states.JOB_EDGES,
    "attempt": states.ATTEMPT_EDGES,
    "host_part": states.HOST_PART_EDGES,
    "allocation": states.ALLOCATION_EDGES,
    "checkpoint": states.CHECKPOINT_EDGES,
    "standing": states.STANDING_EDGES,
    "reclaim": states.RECLAIM_EDGES,
    "burn_in": states.BURN_IN_EDGES,
    "evidence": states.EVIDENCE_EDGES,
}
OLD_KEYS = {
    EvidenceState.PENDING: {"weighs_from_ms": 1.0},
    EvidenceState.LAPSED: {"weighs_from_ms": 1.0, "closed_at_ms": 1.0},
    EvidenceState.CLOSED: {"closed_at_ms": 1.0},
    EvidenceState.SUPPRESSED: {"shadow": 1.0},
}
"""Of an evidence's values: what its state is derived from."""
ROWS = [
    ("job", "job", "state"),
    ("attempt", "attempt", "state"),
    ("attempt_host", "host_part", "state"),
    ("allocation", "allocation", "state"),
    ("allocation_gpu", "allocation", "state"),
    ("checkpoint", "checkpoint", "status"),
    ("gpu", "standing", "standing"),
    ("reclaim", "reclaim", "state"),
    ("burn_in", "burn_in", "state"),
    ("evidence", "evidence", "state"),
]


def companions(factory: str, state: StrEnum) -> dict[str, Any]:
    """The columns that must go with a state, so that only the edge can be what is refused."""
    if factory == "job":
        return {"finished_at": LATER if state in states.TERMINAL_JOB_STATES else None}
    if factory == "attempt":
        is_ended = state is AttemptState.ENDED
        return {"cause": Cause.USER_ERROR if is_ended else None, "ended_at": LATER if is_ended else None}
    if factory == "allocation":
        return {"released_at": LATER if state is AllocationState.RELEASED else None}
    if factory == "reclaim":
        is_taken = state in {ReclaimState.RELEASED, ReclaimState.FORCED}
        return {
            "settled_at": None if state is ReclaimState.NOTIFIED else LATER,
            "outcome": ReclaimOutcome.WORK_LOST if is_taken else None,
            "lost_gpu_s": 1.0 if is_taken else None,
        }
    if factory == "evidence":
        is_dismissed = state is EvidenceState.DISMISSED
        return {
            "values": OLD_KEYS.get(EvidenceState(state), {}),
            "is_suspended": state is EvidenceState.SUSPENDED,
            "dismissed_at": LATER if is_dismissed else None,
            "dismissed_by": "a person" if is_dismissed else None,
            "dismiss_reason": "a test" if is_dismissed else None,
        }
    if factory == "burn_in":
        has_figures = state in {BurnInState.MEASURED, BurnInState.JUDGED}
        return {
            "figures": {} if has_figures else None,
            "comparison_key": "a|b|c" if has_figures else None,
            "outcome": BurnInOutcome.PASSED if state is BurnInState.JUDGED else None,
            "ended_at": None if state in {BurnInState.ORDERED, BurnInState.RUNNING} else LATER,
        }
    return {}


def outcome_of(session: Session, move: Callable[[], object]) -> str | None:
    """The constraint that refused the move; None when it was taken. Leaves the row as it was."""
    point = session.begin_nested()
    try:
        move()
    except IntegrityError as error:
        return violated_constraint(error)
    finally:
        point.rollback()
    return None


def test_edges_in_the_database_are_the_published_ones(session: Session) -> None:
    stored = {(edge.machine, edge.origin, edge.target) for edge in session.scalars(select(StateEdge))}
    published = {
        (machine, stored_value(origin), stored_value(target))
        for machine, edges in MACHINES.items()
        for origin, onward in edges.items()
        for target in onward
    }
    assert stored == published


@pytest.mark.parametrize(("factory", "machine", "column"), ROWS)
def test_only_listed_edges_happen(session: Session, rows: Any, factory: str, machine: str, column: str) -> None:
    row = getattr(rows, factory)()
    table = inspect(type(row)).local_table
    assert isinstance(table, Table)
    this_row = [key == value for key, value in zip(table.primary_key, inspect(row).identity, strict=True)]
    edges = MACHINES[machine]

    def go(state: StrEnum) -> None:
        session.execute(update(table).where(*this_row).values({column: state, **companions(factory, state)}))

    for origin in edges:
        session.execute(text("SET LOCAL session_replication_role = replica"))
        go(origin)
        session.execute(text("SET LOCAL session_replication_role = origin"))
        for target in edges.keys() - {origin}:
            refused = outcome_of(session, lambda target=target: go(target))  # type: ignore[misc]  # a lambda's default
            if target in edges[origin]:
                assert refused is None, f"{origin} to {target} is listed"
            else:
                assert refused in {"listed_edge", "end_stays", "figures_stay"}, f"{origin} to {target} is not listed"


def test_a_gpu_is_on_hold_once(rows: Any) -> None:
    gpu = rows.gpu()
    rows.allocation_gpu(gpu)
    with pytest.raises(IntegrityError) as caught:
        rows.allocation_gpu(gpu)
    assert violated_constraint(caught.value) == "uq_allocation_gpus_taken"


def test_a_gpu_being_cleaned_is_not_free_and_a_released_one_is(session: Session, rows: Any) -> None:
    gpu = rows.gpu()
    holding = rows.allocation_gpu(gpu)
    holding.state = AllocationState.CLEANING
    session.flush()
    assert outcome_of(session, lambda: rows.allocation_gpu(gpu)) == "uq_allocation_gpus_taken"
    holding = session.get_one(type(holding), (holding.allocation_id, 0, 0))
    holding.state = AllocationState.RELEASED
    session.flush()
    rows.allocation_gpu(gpu)


def test_an_allocation_has_gpus_that_are_there(session: Session, rows: Any) -> None:
    gpu, elsewhere, allocation = rows.gpu(), rows.node(), rows.allocation()
    hold = text(
        "INSERT INTO allocation_gpus (allocation_id, gpu_uuid, node_id, node_rank, local_index, state) VALUES"
        " (:allocation_id, :own, :node_id, 0, 0, 'HELD'), (:allocation_id, :gpu_uuid, :other_id, 1, 0, 'HELD')"
    )

    def refused(allocation_id: str = allocation.id, gpu_uuid: str = "", other_id: str = "") -> str | None:
        other = rows.gpu()
        named = {"gpu_uuid": gpu_uuid or other.uuid, "other_id": other_id or other.node_id}
        own = {"own": gpu.uuid, "node_id": gpu.node_id, "allocation_id": allocation_id}
        return outcome_of(session, lambda: session.execute(hold, named | own))

    assert refused() is None
    assert refused(gpu_uuid="GPU-of-nobody") == "allocation_gpus_gpu"
    assert refused(other_id=elsewhere.id) == "allocation_gpus_gpu"
    assert refused(allocation_id="alc_of_nobody") == "allocation_gpus_allocation"


def test_a_gpu_stands_once_in_an_allocation(session: Session, rows: Any) -> None:
    held = rows.allocation_gpu()
    named = {"allocation_id": held.allocation_id, "gpu_uuid": held.gpu_uuid, "node_id": held.node_id}
    again = text(
        "INSERT INTO allocation_gpus (allocation_id, gpu_uuid, node_id, node_rank, local_index, state)"
        " VALUES (:allocation_id, :gpu_uuid, :node_id, 0, 1, 'HELD')"
    )
    assert outcome_of(session, lambda: session.execute(again, named)) == "uq_allocation_gpus_taken"
    over = text("UPDATE allocation_gpus SET state = :state WHERE state <> 'RELEASED'")
    for state in ("CLEANING", "RELEASED"):
        session.execute(over, {"state": state})
    session.execute(again, named)
    session.execute(over, {"state": "CLEANING"})
    assert outcome_of(session, lambda: session.execute(over, {"state": "RELEASED"})) == "uq_allocation_gpus_released"


def test_an_attempt_has_hosts_that_are_there(session: Session, rows: Any) -> None:
    attempt, node, other = rows.attempt(), rows.node(), rows.node()
    take = text(
        "INSERT INTO attempt_hosts (attempt_id, node_id, node_rank, state, ring_count, is_past_lease) VALUES"
        " (:attempt_id, :node_id, 0, 'UNCLAIMED', 0, false), (:attempt_id, :other_id, 1, 'UNCLAIMED', 0, false)"
    )

    def refused(attempt_id: str = attempt.id, other_id: str = other.id) -> str | None:
        named = {"attempt_id": attempt_id, "node_id": node.id, "other_id": other_id}
        return outcome_of(session, lambda: session.execute(take, named))

    assert refused() is None
    assert refused(attempt_id="att_of_nobody") == "attempt_hosts_attempt"
    assert refused(other_id="node_of_nobody") == "attempt_hosts_node"


@pytest.mark.parametrize(
    ("statement", "refusal"),
    [
        ("DELETE FROM nodes", "nodes_stay"),
        ("TRUNCATE nodes CASCADE", "nodes_stay_all"),
        ("UPDATE nodes SET id = 'node_of_another_name'", "ids_stay"),
        ("DELETE FROM attempts", "attempts_stay"),
        ("TRUNCATE attempts CASCADE", "attempts_stay_all"),
        ("UPDATE attempt_hosts SET attempt_id = 'att_of_nobody'", "places_stay"),
        ("UPDATE attempt_hosts SET node_id = 'node_of_nobody'", "places_stay"),
    ],
)
def test_what_a_part_names_stays(session: Session, rows: Any, statement: str, refusal: str) -> None:
    rows.attempt_host()
    assert outcome_of(session, lambda: session.execute(text(statement))) == refusal


@pytest.mark.parametrize(
    ("statement", "refusal"),
    [
        ("DELETE FROM gpus", "gpus_stay"),
        ("TRUNCATE gpus CASCADE", "gpus_stay_all"),
        ("UPDATE gpus SET uuid = 'GPU-of-another-name'", "uuids_stay"),
        ("DELETE FROM allocations", "allocations_stay"),
        ("TRUNCATE allocations", "allocations_stay_all"),
        ("UPDATE allocations SET id = 'alc_of_another_name'", "ids_stay"),
        ("UPDATE allocation_gpus SET gpu_uuid = 'GPU-of-nobody'", "places_stay"),
        ("UPDATE allocation_gpus SET allocation_id = 'alc_of_nobody'", "places_stay"),
        ("UPDATE allocation_gpus SET node_id = 'node_of_nobody'", "places_stay"),
    ],
)
def test_what_an_allocation_names_stays(session: Session, rows: Any, statement: str, refusal: str) -> None:
    rows.allocation_gpu()
    assert outcome_of(session, lambda: session.execute(text(statement))) == refusal


def test_a_job_has_one_live_attempt(session: Session, rows: Any) -> None:
    job = rows.job()
    attempt = rows.attempt(job)
    assert outcome_of(session, lambda: rows.attempt(job, number=2)) == "uq_attempts_job_id_live"
    attempt = session.get_one(type(attempt), attempt.id)
    attempt.state, attempt.cause, attempt.ended_at = AttemptState.ENDED, Cause.NODE_LOST, LATER
    session.flush()
    rows.attempt(job, number=2)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE attempts SET fence = fence + 1",
        "UPDATE cluster SET fence_serial = -1",
        "UPDATE cluster SET epoch = 0",
        "UPDATE sequence_heads SET position = -1",
        "UPDATE policy_versions SET document = '{\"x\": 1}'",
        "UPDATE attempts SET state = 'ENDED'",
        "UPDATE jobs SET state = 'PAUSED'",
        "UPDATE jobs SET state = 'FAILED'",
        "INSERT INTO cluster (id, epoch, fence_serial) VALUES (2, 1, 0)",
    ],
)
def test_history_and_numbers_stay(session: Session, rows: Any, statement: str) -> None:
    rows.attempt()
    session.add(PolicyVersion(document={}, is_active=True, created_at=LATER, created_by="bob", reason="first"))
    session.flush()
    with pytest.raises(IntegrityError):
        session.execute(text(statement))


def test_one_policy_is_active(session: Session) -> None:
    for _ in range(2):
        session.add(PolicyVersion(document={}, is_active=True, created_at=LATER, created_by="bob", reason="again"))
    with pytest.raises(IntegrityError) as caught:
        session.flush()
    assert violated_constraint(caught.value) == "uq_policy_versions_active"


def test_a_change_raises_the_version_and_a_stale_one_is_refused(engine: Engine, session: Session, rows: Any) -> None:
    job = rows.job()
    assert job.version == 1
    session.commit()
    with Session(engine) as other:
        other.get_one(Job, job.id).state = JobState.HELD
        assert job.version == 1
        other.commit()
    job.state = JobState.CANCELLED
    job.finished_at = LATER
    with pytest.raises(StaleDataError):
        session.flush()


def test_every_state_column_is_checked() -> None:
    unchecked = [
        f"{table.name}.{column.name}"
        for table in Base.metadata.sorted_tables
        for column in table.columns
        if type(column.type).__name__ == "EnumText"
        and not any(str(check.name).endswith(f"_{column.name}") for check in column.constraints)
    ]
    assert unchecked == []


def test_a_time_without_zone_is_refused(session: Session, rows: Any) -> None:
    job = rows.job()
    job.next_try_at = datetime(2026, 11, 21)  # noqa: DTZ001  # the fault under test
    with pytest.raises(Exception, match="no time zone"):
        session.flush()
