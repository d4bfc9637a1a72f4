"""What each side of a reclaim may read of it."""

import pytest

from control.core.paging import Part
from control.reclaim import read
from muster.domain.errors import NotFoundError
from muster.domain.ids import JobId, ReclaimId
from muster.domain.principals import Principal
from muster.domain.states import JobState, ReclaimState
from muster.identity import new_id
from tests.control.reclaim.stage import AFTER_MIN_RUN_S, LEFT, Stage
from tests.fleet_factory import OPERATOR


def listed(stage: Stage, actor: Principal, job_id: JobId | None = None) -> list[read.ReclaimView]:
    with stage.units.begin(actor, read.READ, quiet=True) as unit:
        return read.list_reclaims(unit, read.ReclaimFilter(job_id=job_id), Part(50))


def test_each_tenant_sees_its_own_side_and_an_operator_both(stage: Stage) -> None:
    victim_owner, beneficiary_owner, stranger = stage.fleet.tenant, stage.add_tenant("rival"), stage.add_tenant("third")
    spot = stage.run("spot", shape={"gpus_per_node": 2})
    stage.pass_time(AFTER_MIN_RUN_S)
    reserved = stage.submit("reserved", by=beneficiary_owner, shape={"gpus_per_node": 2})
    stage.cycle()
    seen = {who.name: listed(stage, who) for who in (victim_owner, beneficiary_owner, stranger, OPERATOR)}
    assert [(view.shows_victim, view.shows_beneficiary, view.shows_choice) for view in seen[victim_owner.name]] == [
        (True, False, False)
    ]
    assert [(view.shows_victim, view.shows_beneficiary) for view in seen["rival"]] == [(False, True)]
    assert seen["third"] == []
    assert [(view.shows_victim, view.shows_beneficiary) for view in seen[OPERATOR.name]] == [(True, True)]

    reclaim_id = stage.reclaim().id
    for who, asked in ((stranger, reclaim_id), (OPERATOR, ReclaimId(new_id("reclaim")))):
        with stage.units.begin(who, read.READ, quiet=True) as unit, pytest.raises(NotFoundError):
            read.get(unit, asked)
    with stage.units.begin(victim_owner, read.READ, quiet=True) as unit:
        assert read.get(unit, reclaim_id).reclaim.state is ReclaimState.NOTIFIED
        assert read.list_reclaims(unit, read.ReclaimFilter([ReclaimState.FORCED]), Part(50)) == []

    assert [view.reclaim.id for view in listed(stage, victim_owner, spot)] == [reclaim_id]
    assert listed(stage, victim_owner, reserved) == [], "to ask for a foreign job shows nothing of it"
    assert [view.reclaim.id for view in listed(stage, OPERATOR, reserved)] == [reclaim_id]


def test_the_timelines_name_the_other_side_only_within_one_tenant(stage: Stage) -> None:
    rival = stage.add_tenant("rival")
    stage.run("spot", shape={"gpus_per_node": 1})
    stage.run("spot", shape={"gpus_per_node": 1})
    stage.pass_time(AFTER_MIN_RUN_S)
    foreign = stage.submit("reserved", by=rival)
    stage.cycle()
    (first,) = stage.events("reclaim.notified")
    assert first.tenant_id == stage.fleet.tenant_id
    assert first.payload["beneficiary"] == {"tier": "reserved", "num_gpus": 1}
    assert first.payload["deadline_at"] == stage.reclaim().deadline_at.isoformat()
    assert foreign not in str(first.payload)
    assert str(rival.tenant_id) not in str(first.payload)
    (promised,) = stage.events("job.reclaim_held")
    assert (promised.tenant_id, promised.subject_id) == (rival.tenant_id, foreign)
    assert first.subject_id not in str(promised.payload)
    assert str(stage.fleet.tenant_id) not in str(promised.payload)

    stage.beat_all()
    stage.leave(stage.reclaim().victim_job_id, LEFT)
    stage.cycle()
    stage.beat_all()
    assert stage.job(foreign).state is JobState.ACTIVE
    stage.pass_time(3601)
    mine = stage.submit("reserved", name="mine")
    stage.cycle()
    second = stage.events("reclaim.notified")[-1]
    assert second.payload["beneficiary"] == {"tier": "reserved", "num_gpus": 1, "job_id": mine}
    assert second.subject_id == second.payload["job_id"], "it stands in the victim's own timeline"
