"""Each fault's timeline ends with the GPU's next fall, and shows the GPU's standing then."""

from datetime import timedelta

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet.fault_timeline import READ, FaultTimeline, fault_timelines
from control.fleet.inventory import ENROL
from muster.db.models import Gpu, GpuOverride, GpuStandingChange
from muster.domain.ids import GpuUuid
from muster.domain.states import Standing
from muster.identity import new_id
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, enrol_host

UUID = GpuUuid("GPU-a-0")
BACK = (Standing.QUARANTINED, Standing.PROBATION, Standing.HEALTHY)


@pytest.fixture
def gpu(units: UnitOfWorkFactory, clock: SetClock) -> "_Gpu":
    enrol_host(units, "a", num_gpus=1)
    clock.advance(2 * 86_400)  # the override of the enrolment is over
    found = _Gpu(units, clock)
    found.move(Standing.PROBATION, Standing.HEALTHY)
    return found


class _Gpu:
    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        self._units = units
        self._clock = clock

    def move(self, *targets: Standing) -> None:
        for target in targets:
            self._clock.advance(60)
            with self._units.begin(OPERATOR, ENROL, quiet=True) as unit:
                gpu = unit.session.get_one(Gpu, UUID)
                unit.session.add(
                    GpuStandingChange(
                        gpu_uuid=UUID, origin=gpu.standing, target=target, at=unit.now, reason="test", actor="judge"
                    )
                )
                gpu.standing = target

    def override(self, standing: Standing, *, for_s: float, ends_after_s: float | None = None) -> None:
        self._clock.advance(60)
        with self._units.begin(OPERATOR, ENROL, quiet=True) as unit:
            unit.session.add(
                GpuOverride(
                    id=new_id("override"), gpu_uuid=UUID, standing=standing, reason="test", actor="ops",
                    until=unit.now + timedelta(seconds=for_s), created_at=unit.now,
                    ended_at=None if ends_after_s is None else unit.now + timedelta(seconds=ends_after_s),
                )
            )  # fmt: skip

    def timelines(self) -> list[FaultTimeline]:
        """The oldest fault first."""
        with self._units.begin(OPERATOR, READ) as unit:
            return list(fault_timelines(unit, limit=9))[::-1]


def states(gpu: _Gpu) -> list[tuple[bool, Standing]]:
    return [(each.is_over, each.standing) for each in gpu.timelines()]


def test_a_fault_that_is_over_stays_so_when_the_gpu_falls_again(gpu: _Gpu) -> None:
    gpu.move(*BACK)
    assert states(gpu) == [(True, Standing.HEALTHY)]
    gpu.move(Standing.SUSPECT, Standing.QUARANTINED)
    assert states(gpu) == [
        (True, Standing.HEALTHY),
        (False, Standing.SUSPECT),
        (False, Standing.QUARANTINED),
    ]
    first, second, third = gpu.timelines()
    assert first.next_fall == second.move
    assert second.next_fall == third.move
    assert third.next_fall is None


def test_a_gpu_that_a_person_keeps_out_is_not_back(gpu: _Gpu) -> None:
    gpu.move(*BACK)
    gpu.override(Standing.QUARANTINED, for_s=3600)
    assert states(gpu) == [(False, Standing.QUARANTINED)]
    gpu.move(*BACK)
    assert states(gpu)[0] == (False, Standing.QUARANTINED), "it was kept out until its next fall"


@pytest.mark.parametrize(("for_s", "ends_after_s"), [(30.0, None), (3600.0, 30.0)])
def test_an_override_that_ended_before_the_next_fall_is_not_of_that_time(
    gpu: _Gpu, for_s: float, ends_after_s: float | None
) -> None:
    gpu.move(*BACK)
    gpu.override(Standing.QUARANTINED, for_s=for_s, ends_after_s=ends_after_s)
    gpu.move(*BACK)
    gpu.override(Standing.SUSPECT, for_s=3600)  # of the second fault alone
    assert states(gpu) == [(True, Standing.HEALTHY), (False, Standing.SUSPECT)]
