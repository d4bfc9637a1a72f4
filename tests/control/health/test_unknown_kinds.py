"""Events of kinds that this release does not know wait for the one that does; one incident a kind reports them."""

import pytest
from sqlalchemy import update

from control.core.unit_of_work import declare_action
from control.evidence import unknown_kinds
from control.evidence.unknown_kinds import FAULT, KINDS_REPORTED, sort_unknown_kinds_once
from control.telemetry.retention import sweep_once
from health.detectors.registry import judge_signal
from muster.db.models import StoredSignal
from muster.domain.evidence.findings import Finding, GpuSignal
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing
from tests.control.health.conftest import GPU, JUDGE, Court
from tests.control.health.test_alarms import kept_out

UPGRADE = declare_action("test.upgrade")


def sort(court: Court) -> int:
    return sort_unknown_kinds_once(court.units, JUDGE)


def report(court: Court, *signal_ids: str, kind: str = "gpu_hums", is_open: bool = False) -> None:
    """As the intake stores them."""
    for signal_id in signal_ids:
        court.signal(signal_id, kind=kind, judged_at=court.clock.now, judge_fault=FAULT, is_open=is_open)


def known_now(court: Court) -> None:
    """Another release, for which this kind is an XID."""
    with court.units.begin(JUDGE, UPGRADE, quiet=True) as unit:
        unit.session.execute(update(StoredSignal).where(StoredSignal.kind == "gpu_hums").values(kind="xid"))


def test_they_are_judged_by_none_and_one_incident_names_the_kind(court: Court) -> None:
    report(court, "a", "b")
    for _ in range(2):
        assert sort(court) == court.judge() == 0
    (incident,) = court.open_incidents()
    assert (incident.kind, incident.subject_id, incident.payload["num_events"]) == ("judge_failed", "gpu_hums", 2)
    assert court.standing() is Standing.HEALTHY


def test_the_release_that_knows_the_kind_judges_what_was_kept_and_closes_the_incident(court: Court) -> None:
    report(court, "a")
    sort(court)
    known_now(court)
    assert sort(court) == 1
    assert court.open_incidents() == []
    court.judge()
    assert court.standing() is Standing.QUARANTINED
    assert sort(court) == 0, "once"


def test_what_would_condemn_keeps_its_gpu_out_of_placement_from_the_moment_it_is_taken_up(court: Court) -> None:
    report(court, "a")
    assert kept_out(court) == set()
    known_now(court)
    sort(court)
    assert kept_out(court) == {GPU}
    court.judge()
    assert kept_out(court) == set(), "the judge's word counts from now on"


def test_one_that_cannot_be_judged_stops_none_that_is_taken_up_with_it(
    court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(court, "a", "b")
    known_now(court)

    def judged(signal: GpuSignal, policy: HealthPolicy) -> tuple[Finding, ...]:
        if signal.signal_id == "a":
            raise RuntimeError
        return judge_signal(signal, policy)

    monkeypatch.setattr(unknown_kinds, "judge_signal", judged)
    assert sort(court) == 2
    assert [row.is_alarming for row in court.rows(StoredSignal)] == [False, True]


def test_one_that_is_never_closed_goes_with_the_rest_of_its_time(court: Court) -> None:
    report(court, "a", is_open=True)
    court.signal("b", is_open=True, judged_at=court.clock.now)
    court.clock.advance(400 * 86_400)
    assert sweep_once(court.units)["signals"] == 1
    assert [row.signal_id for row in court.rows(StoredSignal)] == ["b"], "a signal that stands by our own rule is kept"


@pytest.mark.parametrize("kind", ["finding", "closing"])
def test_what_only_our_own_judgement_states_is_never_taken_up_from_an_agent(court: Court, kind: str) -> None:
    report(court, "forged", kind=kind)
    assert sort(court) == 0
    assert court.rows(StoredSignal)[0].judged_at is not None


def test_an_agent_that_makes_up_kinds_opens_a_bounded_number_of_incidents(court: Court) -> None:
    for number in range(KINDS_REPORTED + 5):
        report(court, f"{number}", kind=f"kind_{number}")
    sort(court)
    assert len(court.open_incidents()) == KINDS_REPORTED
    sort(court)
    assert len(court.open_incidents()) == KINDS_REPORTED, "another round opens no more"
