"""One evacuation that fails does not keep the others."""

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork, declare_action
from control.health import evacuation
from muster.db.models import Attempt, Gpu
from muster.domain.ids import GpuUuid
from muster.domain.states import Standing, StopReason
from tests.control.health.conftest import JUDGE, Court

OUT = declare_action("test.out")


def test_one_that_fails_keeps_no_other(court: Court, monkeypatch: pytest.MonkeyPatch) -> None:
    court.fleet.beat()
    shape = {"nodes": 1, "gpus_per_node": 1}
    jobs = [court.fleet.submit(name=f"job-{number}", shape=shape) for number in range(2)]
    court.fleet.cycle()
    held = [court.fleet.attempts(job)[0].hosts[0].gpus[0] for job in jobs]
    with court.units.begin(JUDGE, OUT, quiet=True) as unit:
        for gpu in unit.session.scalars(select(Gpu).where(Gpu.uuid.in_(held))):
            gpu.standing = Standing.QUARANTINED
    grounds = evacuation._grounds

    def fail_on_the_first(unit: UnitOfWork, gpus: Sequence[GpuUuid]) -> Any:
        if held[0] in gpus:
            raise ZeroDivisionError
        return grounds(unit, gpus)

    monkeypatch.setattr(evacuation, "_grounds", fail_on_the_first)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            evacuation.evacuate_once(court.units, JUDGE)
    stopped = {row.job_id: row.stop_reason for row in court.rows(Attempt)}
    assert stopped == {jobs[0]: None, jobs[1]: StopReason.EVACUATION}
    monkeypatch.undo()
    assert evacuation.evacuate_once(court.units, JUDGE) == 1
