"""What the judge asks of many GPUs is what it asks of each, in as many statements as of one."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import event, select

from control.health import cases
from control.health.burn_ins.orders import ORDER
from control.health.cases import cases_of
from health.standing.gpu_case import GpuCase
from muster.db.models import BurnIn, Gpu, GpuStandingChange, Repair
from muster.domain.evidence.repairs import RepairAction, RepairOutcome
from muster.domain.ids import GpuUuid
from muster.domain.states import BurnInOutcome, BurnInState, Standing
from muster.identity import new_id
from tests.control.health.conftest import GPU, JUDGE, OTHER, Court


@pytest.fixture
def tried(court: Court) -> Court:
    """One GPU with moves, burn-ins and repairs; the board of another was repaired in that one's slot."""
    court.signal("ecc", code=95)
    while court.judge():
        pass
    with court.units.begin(JUDGE, ORDER, quiet=True) as unit:
        unit.session.get_one(Gpu, OTHER).serial = "board-2"
        unit.session.add_all(_repair(uuid, serial, unit.now) for uuid, serial in ((GPU, None), (GPU, "board-2")))
        unit.session.add_all(
            BurnIn(
                id=new_id("burn_in"),
                gpu_uuid=GPU,
                node_id=court.node_id,
                state=BurnInState.JUDGED,
                outcome=outcome,
                figures={},
                comparison_key="a kind",
                reason="test",
                ordered_by="test",
                ordered_at=unit.now - timedelta(days=days),
                began_at=unit.now - timedelta(days=days),
                ended_at=unit.now - timedelta(days=days, hours=-1),
            )
            for days, outcome in ((3, BurnInOutcome.FAILED), (2, BurnInOutcome.PASSED))
        )
    return court


def _repair(uuid: GpuUuid, serial: str | None, now: datetime) -> Repair:
    return Repair(
        id=new_id("repair"),
        gpu_uuid=uuid,
        serial=serial,
        fault_group="memory" if serial is None else "bus",
        action=RepairAction.RESET,
        reason="test",
        started_by="test",
        began_at=now,
        ended_at=now,
        outcome=RepairOutcome.FAILED,
    )


def all_cases(court: Court) -> tuple[dict[GpuUuid, GpuCase], dict[GpuUuid, GpuCase], list[int]]:
    """Of all at once, of each alone, and how many statements that took: of all, then of one."""
    statements: list[str] = []
    with court.units.begin(JUDGE, ORDER, quiet=True) as unit:
        gpus = unit.session.scalars(select(Gpu).order_by(Gpu.uuid)).all()
        engine = unit.session.get_bind()
        event.listen(engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
        together = cases_of(unit, gpus)
        numbers = [len(statements)]
        alone = {gpu.uuid: cases_of(unit, [gpu])[gpu.uuid] for gpu in gpus}
        numbers.append((len(statements) - numbers[0]) // len(gpus))
    return together, alone, numbers


def test_of_many_gpus_each_has_its_own_past(tried: Court) -> None:
    together, alone, numbers = all_cases(tried)
    assert len(together) > 1
    assert together == alone
    assert numbers[0] == numbers[1], "no statement a GPU"
    broken, other = together[GPU], together[OTHER]
    assert broken.standing is Standing.QUARANTINED
    assert [move.to_standing for move in broken.moves] == [Standing.QUARANTINED]
    assert [each.fault_key for each in broken.evidence] == ["xid:95"]
    assert [each.has_passed for each in broken.burn_ins] == [False, True]
    assert sorted(each.fault_group for each in broken.repairs) == ["bus", "memory"]
    assert (other.moves, other.evidence, other.burn_ins) == ((), (), ())
    assert [each.fault_group for each in other.repairs] == ["bus"], "by the board's serial"


def test_no_more_of_a_past_is_requested_than_is_remembered(tried: Court, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOVES_REMEMBERED", "BURN_INS_REMEMBERED", "REPAIRS_REMEMBERED"):
        monkeypatch.setattr(cases, name, 1)
    with tried.units.begin(JUDGE, ORDER, quiet=True) as unit:
        newest = unit.session.scalars(select(GpuStandingChange).order_by(GpuStandingChange.id.desc())).first()
        (found,) = cases_of(unit, [unit.session.get_one(Gpu, GPU)]).values()
    assert newest is not None
    assert [move.to_standing for move in found.moves] == [newest.target]
    assert [each.has_passed for each in found.burn_ins] == [True]
    assert len(found.repairs) == 1
