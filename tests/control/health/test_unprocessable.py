"""One poisoned signal or GPU is set aside, reported, tried again, and stops no other."""

from datetime import timedelta

import pytest
from sqlalchemy import update

from control.core.unit_of_work import declare_action
from control.health import transitions
from control.health.unprocessable import AGAIN_AFTER
from health.standing.gpu_case import GpuCase, Move, MoveReason, move_to
from health.standing.rest import MOVES_IN_A_LOOP
from health.standing.standing import decide
from muster.db.models import EvidenceRow, Gpu, GpuStandingChange, Incident, StoredSignal
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing
from tests.control.health.conftest import GPU, JUDGE, OTHER, Court

SET = declare_action("test.set")


def change(court: Court, statement: object) -> None:
    with court.units.begin(JUDGE, SET, quiet=True) as unit:
        unit.session.execute(statement)  # type: ignore[call-overload]  # any statement


def test_a_poisoned_signal_does_not_hold_up_the_others(court: Court) -> None:
    court.signal("a-poisoned", kind="nonsense")
    court.signal("b-good")
    court.signal("c-good", OTHER)
    court.judge()
    court.judge()
    assert [court.standing(uuid) for uuid in (GPU, OTHER)] == [Standing.QUARANTINED] * 2
    (poisoned, *good) = court.rows(StoredSignal)
    assert poisoned.judged_at is None
    assert poisoned.judge_after == court.clock.now + AGAIN_AFTER
    assert "nonsense" in poisoned.judge_fault
    assert all(row.judged_at is not None for row in good)


def test_what_is_set_aside_is_reported_once_and_not_taken_again_at_once(court: Court) -> None:
    court.signal("poisoned", kind="nonsense")
    assert court.judge() == 1
    assert court.judge() == 0, "no tight loop"
    (incident,) = court.open_incidents()
    assert incident.kind == "judge_failed"
    assert "poisoned" in incident.summary
    court.clock.advance(AGAIN_AFTER.total_seconds() + 1)
    assert court.judge() == 1
    assert len(court.rows(Incident)) == len(court.events("incident.opened")) == 1, "one incident, however often tried"


def test_a_repaired_judge_takes_what_was_set_aside(court: Court) -> None:
    court.signal("poisoned", kind="nonsense")
    court.judge()
    change(court, update(StoredSignal).values(kind="xid"))
    court.clock.advance(AGAIN_AFTER.total_seconds() + 1)
    court.judge()
    assert court.standing() is Standing.QUARANTINED
    assert court.open_incidents() == []
    assert len(court.events("incident.closed")) == 1
    assert court.rows(StoredSignal)[0].judge_fault is None


def test_a_poisoned_gpu_does_not_hold_up_the_others(court: Court) -> None:
    court.signal("watch", code=63)
    court.judge()
    change(court, update(EvidenceRow).values(sources=["nonsense"]))
    change(court, update(Gpu).where(Gpu.uuid.in_([GPU, OTHER])).values(judge_at=court.clock.now - timedelta(seconds=1)))
    court.signal("good", OTHER)
    court.judge()
    assert court.standing(OTHER) is Standing.QUARANTINED
    assert court.standing(GPU) is Standing.HEALTHY
    (incident,) = court.open_incidents()
    assert incident.summary.startswith(f"{GPU} cannot be judged")
    poisoned = next(gpu for gpu in court.rows(Gpu) if gpu.uuid == GPU)
    assert poisoned.judge_at == court.clock.now + AGAIN_AFTER
    change(court, update(EvidenceRow).values(sources=["nvml"]))
    court.clock.advance(AGAIN_AFTER.total_seconds() + 1)
    court.judge()
    assert court.open_incidents() == [], "judged after all"


def test_a_gpu_that_cannot_be_judged_keeps_the_evidence_that_came(court: Court) -> None:
    """The signal is good, so it is judged; only the move has to wait."""
    with court.units.begin(JUDGE, SET, quiet=True) as unit:
        unit.session.add(
            GpuStandingChange(
                gpu_uuid=GPU,
                origin=Standing.PROBATION,
                target=Standing.HEALTHY,
                at=unit.now,
                reason="test",
                actor="test",
                move_reason="nonsense",
            )
        )
    court.signal("condemning")
    court.judge()
    assert ("xid:95", GPU) in court.evidence()
    assert court.standing() is Standing.HEALTHY
    assert [incident.subject_id for incident in court.open_incidents()] == [GPU]


def to_and_fro(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> Move | None:
    """Rules with a bug: one takes GPU out, another brings it back without a proof."""
    if gpu.gpu_uuid != GPU:
        return decide(gpu, now_ms, policy)
    if gpu.standing is Standing.QUARANTINED:
        return move_to(gpu, Standing.PROBATION, MoveReason.BURN_IN_PASSED, now_ms)
    return move_to(gpu, Standing.QUARANTINED, MoveReason.LOW_SCORE, now_ms)


def test_a_gpu_that_the_rules_move_to_and_fro_stays_out_with_an_incident(
    court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transitions, "decide", to_and_fro)
    change(court, update(Gpu).where(Gpu.uuid == GPU).values(judge_at=court.clock.now))
    court.signal("good", OTHER)
    num_before = len(court.rows(GpuStandingChange))
    for _ in range(3 * MOVES_IN_A_LOOP):
        court.clock.advance(1)
        court.judge()
    assert (court.standing(), court.standing(OTHER)) == (Standing.QUARANTINED, Standing.QUARANTINED)
    court.clock.advance(AGAIN_AFTER.total_seconds())
    court.judge()
    moves = [row for row in court.rows(GpuStandingChange)[num_before:] if row.gpu_uuid == GPU]
    assert len(moves) <= MOVES_IN_A_LOOP + 1, "time alone does not start it again"
    (incident,) = court.open_incidents()
    assert (incident.kind, incident.subject_id) == ("judge_failed", GPU)
    assert "the rules do not come to rest" in incident.payload["fault"]
