"""A host that is proved clean, though nobody could say what computes on its GPUs: it is clean, with a word."""

import pytest
from sqlalchemy import select

from api.job_views import attempt_view
from muster.db.models import Event
from muster.domain.states import AttemptState
from muster.services.unit_of_work import UnitOfWorkFactory
from tests.fleet_factory import make_fleet
from tests.played_host import PlayedHost
from tests.services.conftest import SetClock

NO_DRIVER = "no NVIDIA driver is loaded"


@pytest.mark.parametrize("unknown", [NO_DRIVER, None], ids=["unknown", "known"])
def test_why_nobody_knows_who_computes_is_told_with_the_hosts_proof(
    units: UnitOfWorkFactory, unknown: str | None
) -> None:
    fleet = make_fleet(units)
    host = PlayedHost(units, fleet.node_id)
    host.beat()
    job = fleet.submit(shape={"gpus_per_node": 1})
    fleet.cycle()
    attempt = fleet.attempts(job)[0].attempt
    assert host.claim(attempt.id, attempt.fence).granted
    host.report(attempt.id, attempt.fence, "started")
    host.report(attempt.id, attempt.fence, "exited", record={"launcher_exit_code": 0})
    proof: dict[str, object] = {"clean": True, "gpu_processes_unknown": unknown}
    host.report(attempt.id, attempt.fence, "cleaned", record=proof)
    assert fleet.num_taken_gpus() == 0
    with units.read() as session:
        (told,) = session.scalars(select(Event).where(Event.kind == "attempt.host_clean")).all()
    assert told.payload.get("gpu_processes_unknown") == unknown
    (part,) = attempt_view(fleet.attempts(job)[0])["hosts"]
    assert part["gpu_processes_unknown"] == unknown


def test_a_host_that_says_it_is_clean_of_what_it_never_claimed_is_heard(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    """Its claim was late: the attempt was given up, and with it this host's part counted as clean."""
    fleet = make_fleet(units)
    host = PlayedHost(units, fleet.node_id)
    host.beat()
    job = fleet.submit(shape={"gpus_per_node": 1})
    fleet.cycle()
    attempt = fleet.attempts(job)[0].attempt
    fleet.reconcile()
    clock.advance(61)
    fleet.reconcile()
    assert fleet.attempts(job)[0].attempt.state is AttemptState.ENDED
    assert not host.claim(attempt.id, attempt.fence).granted
    refused: dict[str, object] = {"spawn_error": "not started", "spawn_fault": "refused"}
    assert host.report(attempt.id, attempt.fence, "exited", "cleaned", record=refused) == 0


def test_each_of_two_attempts_that_left_something_on_a_host_is_heard(
    units: UnitOfWorkFactory,
) -> None:
    """The host is cordoned once; what the second left is told all the same."""
    fleet = make_fleet(units)
    host = PlayedHost(units, fleet.node_id)
    host.beat()
    jobs = [fleet.submit(shape={"gpus_per_node": 1}) for _ in range(2)]
    fleet.cycle()
    for job in jobs:
        attempt = fleet.attempts(job)[0].attempt
        assert host.claim(attempt.id, attempt.fence).granted
        host.report(attempt.id, attempt.fence, "started")
        host.report(attempt.id, attempt.fence, "exited", record={"launcher_exit_code": 0})
        host.report(attempt.id, attempt.fence, "cleaned", record={"clean": False, "why": "a process is left"})
    with units.read() as session:
        told = session.scalars(select(Event).where(Event.kind == "attempt.host_unclean")).all()
    assert [event.payload["why"] for event in told] == ["a process is left"] * 2
