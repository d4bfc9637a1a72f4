"""No data is not health: groups of signals that stay away end admission, and a silent host condemns nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import text, update

from control.attempts.reconcile import beat
from control.health.agent_silence import state_silent_agents_once
from control.health.gpu_details import detail_of
from control.health.rule_cordons import hold_nodes_once
from control.policy.policies import ACTIVATE, store_policy
from muster.db.models import Cluster, Cordon, EvidenceRow, Node, NodeLatest
from muster.domain.ids import GpuUuid
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.states import Contact, Standing
from muster.wire.telemetry import GpuReport, NodeReport
from tests.control.health.conftest import GPU, JUDGE, OTHER, Court, sample
from tests.fleet_factory import OPERATOR
from tests.telemetry_reports import reading, report

LIMITS = DEFAULT_POLICY.health.detectors.freshness
READERS = ("xid_events", "kernel_log", "dcgm", "host")
FRESH: dict[str, Any] = {"ages_s": dict.fromkeys(READERS, 0.5), "node": NodeReport(num_gpus=2)}
OLD_AGENT: dict[str, Any] = {"node": NodeReport(num_gpus=2)}


def late(uuid: str = GPU) -> GpuReport:
    return structs.replace(reading(uuid), is_late=True, latency_ms=2000.0)


def inspected(uuid: str, age_s: float) -> GpuReport:
    return structs.replace(sample(uuid), ages_s={"states": age_s}, latency_ms=12.5)


def is_admitted(court: Court, uuid: GpuUuid = GPU) -> bool:
    """Whether the tier ``reserved`` takes it, after all that the judge has to do."""
    court.without_overrides()
    court.beat()
    court.judge()
    hold_nodes_once(court.units, JUDGE)
    with court.units.begin(OPERATOR, ACTIVATE, quiet=True) as unit:
        (reserved,) = [each for each in detail_of(unit, uuid).admission if each.tier == "reserved"]
    return reserved.is_admitted


def faults(court: Court, *, are_open: bool = True) -> set[tuple[str, str | None]]:
    return {(row.fault_key, row.gpu_uuid) for row in court.rows(EvidenceRow) if (row.closed_at is None) is are_open}


def accept_reports(court: Court) -> None:
    """The API takes reports, since long ago."""
    with court.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        unit.session.execute(update(Cluster).values(accepts_heartbeats_since=unit.now.replace(year=2000)))
        unit.session.execute(update(Cluster).values(api_alive_at=unit.now))
        beat(unit)


def test_a_gpu_that_does_not_answer_is_warned_then_not_admitted_then_condemned(court: Court) -> None:
    court.receive(sample(), sample(OTHER), **FRESH)
    court.receive(late(), sample(OTHER), **FRESH)
    assert is_admitted(court)
    assert faults(court) == {("freshness:readings:late", GPU)}
    court.receive(late(), sample(OTHER), **FRESH)
    assert is_admitted(court)
    court.receive(late(), sample(OTHER), **FRESH)
    assert not is_admitted(court)
    assert court.standing() is Standing.SUSPECT
    while court.standing() is Standing.SUSPECT:
        court.receive(late(), sample(OTHER), **FRESH)
        court.judge()
    (row,) = [row for row in court.rows(EvidenceRow) if row.fault_key == "freshness:readings:unresponsive"]
    assert (court.standing(), row.values["silent_s"]) == (Standing.QUARANTINED, 600.0)
    assert (court.standing(OTHER), is_admitted(court, OTHER)) == (Standing.HEALTHY, True)
    court.receive(sample(), sample(OTHER), **FRESH)
    court.judge()
    assert faults(court) == set(), "the answer ends it"
    assert court.standing() is Standing.QUARANTINED, "a burn-in has to prove it"


def test_a_driver_that_answers_for_no_gpu_holds_its_node_as_one_unit(court: Court) -> None:
    """Under the default breaker one move a GPU would end at a cap, and most of the GPUs would be admitted."""
    with court.units.begin(JUDGE, ACTIVATE) as unit:
        store_policy(unit, Policy(), reason="test")
    gpus = [GpuUuid(f"GPU-many-{number}") for number in range(8)]
    court.receive(*map(sample, gpus), **FRESH)
    for _ in range(70):
        court.receive(*map(late, gpus), **FRESH)
    assert not any(is_admitted(court, uuid) for uuid in gpus)
    assert {court.standing(uuid) for uuid in gpus} == {Standing.HEALTHY}
    court.receive(late(), *map(sample, gpus[1:]), **FRESH)
    assert [is_admitted(court, uuid) for uuid in gpus] == [False, *[True] * 7]


def _states(age_s: float) -> dict[str, Any]:
    return {"gpus": (inspected(GPU, age_s), inspected(OTHER, 1.0)), **FRESH}


def _reader(name: str) -> Callable[[float], dict[str, Any]]:
    def silenced(age_s: float) -> dict[str, Any]:
        return {"gpus": (sample(), sample(OTHER)), **FRESH, "ages_s": {**FRESH["ages_s"], name: age_s}}

    return silenced


SILENCED: dict[str, Callable[[float], dict[str, Any]]] = {
    "states": _states,
    **{name: _reader(name) for name in READERS},
}


@pytest.mark.parametrize("group", SILENCED)
def test_each_group_that_is_silenced_ends_admission_until_it_is_back(court: Court, group: str) -> None:
    limit_s: float = getattr(LIMITS, f"{group}_max_s")

    def receive(age_s: float) -> None:
        reported = SILENCED[group](age_s)
        court.receive(*reported.pop("gpus"), **reported)

    receive(1.0)
    receive(limit_s)
    assert is_admitted(court)
    receive(limit_s + 0.001)
    assert not is_admitted(court)
    whose = GPU if group == "states" else None
    assert faults(court) == {(f"freshness:{group}", whose)}
    assert court.standing() is (Standing.SUSPECT if whose else Standing.HEALTHY), "a reader is no GPU's fault"
    assert is_admitted(court, OTHER) is (whose is not None)
    receive(1.0)
    court.judge()
    assert faults(court) == set()
    assert is_admitted(court) is (whose is None), "a node is free at once; a GPU once its fault has decayed"


def test_a_silent_agent_on_a_live_host_holds_its_node_until_it_reports(court: Court) -> None:
    court.receive(sample(), sample(OTHER), **FRESH)
    court.clock.advance(LIMITS.agent_max_s - 1)
    court.beat()
    accept_reports(court)
    assert state_silent_agents_once(court.units, JUDGE) == 0
    assert is_admitted(court)
    court.clock.advance(2)
    accept_reports(court)
    assert state_silent_agents_once(court.units, JUDGE) == 1
    assert state_silent_agents_once(court.units, JUDGE) == 0, "stated again only after a while"
    assert not is_admitted(court)
    assert (faults(court), court.standing()) == ({("freshness:agent", None)}, Standing.HEALTHY)
    court.receive(sample(), sample(OTHER), **FRESH)
    assert is_admitted(court)
    assert faults(court) == set()
    assert [cordon.released_at is None for cordon in court.rows(Cordon)] == [False]


def test_the_report_of_an_agent_whose_clock_is_slow_ends_its_silence_too(court: Court) -> None:
    court.receive(sample(), sample(OTHER), **FRESH)
    court.clock.advance(LIMITS.agent_max_s + 1)
    court.beat()
    accept_reports(court)
    assert state_silent_agents_once(court.units, JUDGE) == 1
    court.clock.advance(10)
    court.take(report(99, court.now_ms - 60_000, sample(), sample(OTHER), **FRESH))
    assert is_admitted(court)
    assert faults(court) == set()


@pytest.mark.parametrize("judgement", ["judging.judged", "freshness.judge"])
def test_a_judgement_that_fails_takes_no_other_with_it(
    court: Court, monkeypatch: pytest.MonkeyPatch, judgement: str
) -> None:
    """One of two judgements of a report fails: late samples count as before, and the agent is no longer silent."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    court.receive(sample(), sample(OTHER), **FRESH)
    for _ in range(2):
        court.receive(late(), sample(OTHER), **FRESH)
    court.clock.advance(LIMITS.agent_max_s + 1)
    court.beat()
    accept_reports(court)
    state_silent_agents_once(court.units, JUDGE)
    with monkeypatch.context() as patch:
        patch.setattr(f"control.telemetry.{judgement}", fail)
        court.receive(late(), sample(OTHER, ecc_uncorrected_aggregate=1.0), **FRESH)
    assert court.intakes[0].judge.num_failed == 1
    court.judge()
    assert ("freshness:agent", None) not in faults(court)
    court.receive(late(), sample(OTHER), **FRESH)
    court.judge()
    assert ("freshness:readings:missing", GPU) in faults(court)


@pytest.mark.parametrize("contact", [Contact.SILENT, Contact.LOST])
def test_a_host_that_is_silent_as_a_whole_is_its_contacts_matter(court: Court, contact: Contact) -> None:
    court.receive(sample(), sample(OTHER), **FRESH)
    with court.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        unit.session.execute(update(Node).where(Node.id == court.node_id).values(contact=contact))
    for _ in range(20):
        court.clock.advance(LIMITS.agent_max_s)
        accept_reports(court)
        state_silent_agents_once(court.units, JUDGE)
    assert faults(court) == set()
    court.beat()
    assert state_silent_agents_once(court.units, JUDGE) == 0, "its agent has time to report when the host is back"
    assert faults(court) == set()


def test_an_outage_of_the_api_is_no_agents_silence(court: Court) -> None:
    court.receive(sample(), sample(OTHER), **FRESH)
    accept_reports(court)
    court.clock.advance(3600)
    with court.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        beat(unit)
    court.beat()
    assert state_silent_agents_once(court.units, JUDGE) == 0
    court.clock.advance(LIMITS.agent_max_s - 1)
    court.beat()
    with court.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        unit.session.execute(update(Cluster).values(api_alive_at=unit.now))
    assert state_silent_agents_once(court.units, JUDGE) == 0
    assert faults(court) == set()


def test_an_agent_of_the_release_before_is_judged_as_before(court: Court) -> None:
    """It states no ages: neither late samples, nor absence, nor its silence are held against anything."""
    court.receive(sample(), sample(OTHER), **OLD_AGENT)
    for _ in range(70):
        court.receive(reading(GPU), sample(OTHER), **OLD_AGENT)
    for _ in range(4):
        court.receive(sample(OTHER), **OLD_AGENT)
    court.clock.advance(3600)
    court.beat()
    accept_reports(court)
    assert state_silent_agents_once(court.units, JUDGE) == 0
    assert is_admitted(court)
    assert faults(court) == set()


def test_what_was_found_by_ages_ends_when_an_older_agent_takes_over(court: Court) -> None:
    court.receive(sample(), sample(OTHER), **FRESH)
    court.receive(late(), sample(OTHER), **{**FRESH, "ages_s": {"kernel_log": 1e6}})
    court.judge()
    assert faults(court) == {("freshness:readings:late", GPU), ("freshness:kernel_log", None)}
    court.receive(reading(GPU), sample(OTHER), **OLD_AGENT)
    court.judge()
    assert faults(court) == set()
    (row,) = [row for row in court.rows(NodeLatest) if row.node_id == court.node_id]
    assert (row.freshness, row.overdue_at) == (None, None)


def test_late_samples_are_counted_across_processes_and_events_count_as_none(court: Court) -> None:
    court.receive(sample(), sample(OTHER), **FRESH)
    for number in range(3):
        court.receive(late(), sample(OTHER), intake=court.open_intake(), **FRESH)
        court.receive(intake=court.intakes[number])
    court.judge()
    (row,) = [row for row in court.rows(EvidenceRow) if row.fault_key == "freshness:readings:missing"]
    assert row.values["late_samples"] == 3.0


def test_overdue_agents_are_found_by_an_index_that_most_reports_leave_alone(court: Court) -> None:
    """The promise at 100,000 GPUs: a pass costs what is overdue, and a report changes the index once in many."""
    changed = set()
    for _ in range(15):
        court.receive(sample(), sample(OTHER), **FRESH)
        (row,) = [row for row in court.rows(NodeLatest) if row.node_id == court.node_id]
        changed.add(row.overdue_at)
    assert len(changed) == 1, "the time is half of 300 s ahead at least"
    with court.units.read() as session:
        session.execute(text("SET LOCAL enable_seqscan = off"))
        plan = session.scalars(text("EXPLAIN SELECT FROM node_latest WHERE overdue_at <= now()")).all()
    assert "ix_node_latest_overdue_at" in "\n".join(plan)
