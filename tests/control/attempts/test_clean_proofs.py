"""Proofs that a host is clean: with a reason where no driver lists its GPUs' processes; late, and not at all."""

import pytest
from sqlalchemy import select

from api.job_views import attempt_view
from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import cordons
from muster.db.models import AttemptHost, AuditEntry, Cordon, Event
from muster.domain.errors import ValidationFailedError
from muster.domain.states import AttemptState
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, Fleet, make_fleet
from tests.played_host import PlayedHost

NO_DRIVER = "no NVIDIA driver is loaded"


@pytest.mark.parametrize("unknown", [NO_DRIVER, None], ids=["unknown", "known"])
def test_why_is_unknown_what_computes_is_reported_with_the_hosts_proof(
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


@pytest.fixture
def fleet(units: UnitOfWorkFactory) -> Fleet:
    return make_fleet(units)


@pytest.fixture
def host(fleet: Fleet) -> PlayedHost:
    host = PlayedHost(fleet.units, fleet.node_id)
    host.beat()
    return host


def ended(fleet: Fleet, host: PlayedHost) -> tuple[str, int]:
    """An attempt of one GPU whose program has ended there, and that is not proved clean yet."""
    job = fleet.submit(shape={"gpus_per_node": 1})
    fleet.cycle()
    attempt = fleet.attempts(job)[0].attempt
    assert host.claim(attempt.id, attempt.fence).granted
    host.report(attempt.id, attempt.fence, "started")
    host.report(attempt.id, attempt.fence, "exited", record={"launcher_exit_code": 0})
    return attempt.id, attempt.fence


def standing(fleet: Fleet) -> list[str]:
    with fleet.units.read() as session:
        return list(session.scalars(select(Cordon.reason_code).where(Cordon.released_at.is_(None))))


LEFT = {"clean": False, "why": "process 7 is left"}


def test_a_host_that_is_proved_clean_after_all_takes_new_work_again_and_states_why(
    fleet: Fleet, host: PlayedHost
) -> None:
    attempt = ended(fleet, host)
    host.report(*attempt, "cleaned", record=dict(LEFT))
    host.report(*attempt, "cleaned", record=dict(LEFT))
    assert standing(fleet) == ["unclean"], "one, however often it is reported"
    host.report(*attempt, "cleaned", record={"clean": True})
    assert standing(fleet) == []
    assert fleet.num_taken_gpus() == 0
    with fleet.units.read() as session:
        (told,) = session.scalars(select(Event).where(Event.kind == "node.uncordoned")).all()
        (entry,) = session.scalars(select(AuditEntry).where(AuditEntry.action == "cordon.release")).all()
        (proof,) = session.scalars(select(AttemptHost.clean_proof)).all()
    assert attempt[0] in told.payload["reason"]
    assert (entry.subject_id, entry.reason) == (told.payload["cordon_id"], told.payload["reason"])
    assert proof == {"clean": True}


def test_a_host_stays_cordoned_while_another_of_its_attempts_is_not_proved_clean(
    fleet: Fleet, host: PlayedHost
) -> None:
    first, second = ended(fleet, host), ended(fleet, host)
    for attempt in (first, second):
        host.report(*attempt, "cleaned", record=dict(LEFT))
    host.report(*first, "cleaned", record={"clean": True})
    assert standing(fleet) == ["unclean"]
    host.report(*second, "cleaned", record={"clean": True})
    assert standing(fleet) == []


def test_the_proof_of_one_attempt_ends_no_cordon_of_another(fleet: Fleet, host: PlayedHost) -> None:
    unclean = ended(fleet, host)
    host.report(*unclean, "cleaned", record=dict(LEFT))
    with fleet.units.begin(OPERATOR, cordons.RELEASE) as unit:
        cordons.release(unit, cordons.list_open(unit)[0].id, reason="the rest of it is known")
    sound = ended(fleet, host)
    host.report(*unclean, "cleaned", record=dict(LEFT))
    host.report(*sound, "cleaned")
    assert standing(fleet) == ["unclean"]


def test_a_cordon_by_a_person_outlives_the_proof(fleet: Fleet, host: PlayedHost) -> None:
    attempt = ended(fleet, host)
    with fleet.units.begin(OPERATOR, cordons.CREATE) as unit:
        cordons.create(unit, reason="a check of its fans", node_id=fleet.node_id)
    host.report(*attempt, "cleaned", record=dict(LEFT))
    host.report(*attempt, "cleaned", record={"clean": True})
    assert standing(fleet) == ["by_person"]


def test_an_unclean_word_that_comes_after_the_proof_or_of_another_boot_changes_nothing(
    fleet: Fleet, host: PlayedHost
) -> None:
    attempt = ended(fleet, host)
    host.report(*attempt, "cleaned", record=dict(LEFT))
    host.report(*attempt, "cleaned", record={"clean": True})
    host.report(*attempt, "cleaned", record=dict(LEFT))
    assert standing(fleet) == []
    other = ended(fleet, host)
    host.boot_id = "boot-before"
    host.report(*other, "cleaned", record=dict(LEFT))
    assert standing(fleet) == []


@pytest.mark.parametrize("clean", ["", [], {}, 0, 0.0, None, "true"])
def test_a_proof_that_is_neither_true_nor_false_is_refused_by_name(
    fleet: Fleet, host: PlayedHost, clean: object
) -> None:
    attempt = ended(fleet, host)
    with pytest.raises(ValidationFailedError, match=r"clean is .*; true or false is accepted"):
        host.report(*attempt, "cleaned", record={"clean": clean})
    with pytest.raises(ValidationFailedError, match="cannot be read"):
        host.report(*attempt, "cleaned", record={"clean": False, "why": "a\x00b"})
    assert (standing(fleet), fleet.num_taken_gpus()) == ([], 1)


def test_a_reboot_proves_it_too(fleet: Fleet, host: PlayedHost) -> None:
    attempt = ended(fleet, host)
    host.report(*attempt, "cleaned", record=dict(LEFT))
    host.boot_id, host.seq = "boot-2", 0
    host.beat()
    fleet.reconcile()
    assert (standing(fleet), fleet.num_taken_gpus()) == ([], 0)


def test_a_host_that_states_it_is_clean_of_what_it_never_claimed_is_received(
    fleet: Fleet, host: PlayedHost, clock: SetClock
) -> None:
    """Its claim was late: the attempt was given up, and with it this host's part counted as clean."""
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


def test_each_of_two_attempts_that_left_something_on_a_host_is_received(fleet: Fleet, host: PlayedHost) -> None:
    """The host is cordoned once; what the second left is reported all the same."""
    for attempt in (ended(fleet, host), ended(fleet, host)):
        host.report(*attempt, "cleaned", record=dict(LEFT))
    with fleet.units.read() as session:
        told = session.scalars(select(Event).where(Event.kind == "attempt.host_unclean")).all()
    assert [event.payload["reason"] for event in told] == ["process 7 is left"] * 2
