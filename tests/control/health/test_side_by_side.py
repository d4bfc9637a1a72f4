"""Two judges at one place: the second one waits, and judges on what the first has found."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import select, text

from control.evidence.inbox import findings_of
from control.health.judge import SIGNALS, judge_findings
from control.policy.policies import active_policy
from muster.db.models import EvidenceRow, StoredSignal
from tests.control.health.conftest import GPU, JUDGE, Court
from tests.lock_waits import is_a_lock_awaited
from tests.waiting import wait_until

PORT = "mlx5_0/1"
RISEN: dict[str, Any] = {
    "kind": "port_rates",
    "code": None,
    "source": "host",
    "text": PORT,
    "values": {"link_downed": 1.0, "window_s": 60.0},
}
DOWN: dict[str, Any] = {**RISEN, "kind": "port_state", "values": {"state": 1.0, "was_active": 1.0}}
UP: dict[str, Any] = {**DOWN, "values": {"state": 4.0, "was_active": 1.0}}
ILL: dict[str, Any] = {"kind": "gpu_state", "code": None, "values": {"inforom_valid": 0.0}}
WELL: dict[str, Any] = {**ILL, "values": {"inforom_valid": 1.0}}


@contextmanager
def judging(court: Court) -> Iterator[None]:
    """A judge that has found what the signals say, and commits at the end of the block."""
    with court.units.begin(JUDGE, SIGNALS, quiet=True) as unit:
        rows = unit.session.scalars(select(StoredSignal).with_for_update()).all()
        judge_findings(unit, findings_of(rows, active_policy(unit.session).health), rows)
        for row in rows:
            row.judged_at = unit.now
        unit.session.flush()
        yield


def has_met(court: Court, other: Future[int]) -> bool:
    """Whether the other judge waits for a lock, or did not have to."""
    return other.done() or is_a_lock_awaited(court.units)


def after_both(court: Court, first: dict[str, Any], second: dict[str, Any], *, uuid: Any = None) -> list[EvidenceRow]:
    court.signal("first", uuid, **first)
    with ThreadPoolExecutor(1) as other_judge:
        with judging(court):
            court.clock.advance(1)
            court.signal("second", uuid, **second)
            other = other_judge.submit(court.judge)
            wait_until(lambda: has_met(court, other), pause_s=0.01)
        other.result()
    return court.rows(EvidenceRow)


def test_one_fault_of_a_node_is_one_evidence(court: Court) -> None:
    (found,) = after_both(court, RISEN, RISEN)
    assert found.fault_key == f"port_fatal:{PORT}"


@pytest.mark.parametrize(("begins", "ends", "uuid"), [(DOWN, UP, None), (ILL, WELL, GPU)])
def test_the_end_of_a_fault_waits_for_its_finding(
    court: Court, begins: dict[str, Any], ends: dict[str, Any], uuid: Any
) -> None:
    (found,) = after_both(court, begins, ends, uuid=uuid)
    assert found.closed_at is not None


def test_what_is_well_and_was_before_locks_no_gpu(court: Court) -> None:
    """A judge that holds the GPU keeps no other waiting that has nothing to say of it."""
    with court.units.begin(JUDGE, SIGNALS, quiet=True) as unit:
        unit.session.execute(text("SELECT uuid FROM gpus FOR UPDATE"))
        court.signal("well", GPU, **WELL)
        with ThreadPoolExecutor(1) as other_judge:
            assert other_judge.submit(court.judge).result(timeout=60) == 1
