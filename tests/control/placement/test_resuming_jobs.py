"""A job that was evacuated waits the moment that its good GPUs take to be proved clean, and no longer."""

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from muster.db.models import AllocationGpu
from muster.domain.ids import GpuUuid, JobId
from muster.domain.states import Cause
from tests.control.attempts.test_suspects import STOPPED, World
from tests.control.conftest import SetClock
from tests.fleet_factory import enrol_host, make_fleet
from tests.played_host import PlayedHost


@pytest.fixture
def world(clock: SetClock, units: UnitOfWorkFactory) -> World:
    """Return a world in which one host of four GPUs is in contact."""
    fleet = make_fleet(units)
    host = PlayedHost(units, enrol_host(units, "big", num_gpus=4), boot_id="boot-of-big")
    return World(units, fleet.tenant, fleet.tenant_id, fleet.node_id, clock, {str(host.node_id): host})


def evacuated(world: World) -> tuple[JobId, PlayedHost, GpuUuid, GpuUuid]:
    """A job of two GPUs, one of which broke; its ranks have ended, and nothing is proved clean yet."""
    job_id = world.submit(shape={"gpus_per_node": 2})
    bad, good = world.run_to_its_gpus(job_id)
    world.report(bad)
    world.judge()
    world.clock.advance(1)
    (host,) = world.hosts.values()
    newest = world.attempts(job_id)[-1]
    host.report(newest.attempt.id, newest.attempt.fence, "exited", record=STOPPED)
    assert world.attempts(job_id)[-1].attempt.cause is Cause.EVACUATED
    world.reconcile()
    world.cycle()
    assert len(world.attempts(job_id)) == 1, "two other GPUs are free, and not taken"
    return job_id, host, bad, good


def test_the_good_gpu_is_kept_once_it_is_clean(world: World) -> None:
    job_id, host, bad, good = evacuated(world)
    first = world.attempts(job_id)[-1].attempt
    host.report(first.id, first.fence, "cleaned")
    world.cycle()
    (part,) = world.attempts(job_id)[-1].hosts
    assert len(world.attempts(job_id)) == 2
    assert good in part.gpus
    assert bad not in part.gpus


def test_a_host_that_proves_nothing_keeps_no_job_waiting(world: World) -> None:
    job_id, host, bad, good = evacuated(world)
    world.clock.advance(11)
    host.beat()
    world.reconcile()
    world.cycle()
    (part,) = world.attempts(job_id)[-1].hosts
    assert len(world.attempts(job_id)) == 2
    assert not {bad, good} & set(part.gpus)
    with world.units.read() as session:
        assert session.query(AllocationGpu).count() == 4
