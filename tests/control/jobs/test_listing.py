"""The listed jobs by key and by page are the same jobs, whatever the filter and the caller."""

from datetime import timedelta

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import jobs
from control.jobs.listing import JobFilter, list_jobs, newest_jobs
from control.tenants import keys
from control.tenants.keys import Caller, caller_with
from muster.domain.ids import JobId, NodeId, TenantId
from muster.domain.principals import Permission, Principal, Role
from muster.domain.states import JobState
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import Stage, make_stage
from tests.fleet_factory import OPERATOR


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Five jobs of two tenants, a second apart; the first of them is cancelled, and the second runs."""
    made = make_stage(units, clock)
    stranger = made.add_tenant("globex")
    vision, sweep = {"team": "vision"}, {"team": "vision", "sweep": "7"}
    made.fleet.cancel(made.submit("on_demand", name="a"))
    clock.advance(1)
    made.run("on_demand", name="b", labels=vision)
    for name, by, labels in (("b", stranger, vision), ("a", None, sweep), ("a", stranger, {})):
        clock.advance(1)
        made.submit("on_demand", name=name, by=by, labels=labels)
    return made


def caller_as(stage: Stage, reader: Principal) -> Caller:
    with stage.units.begin(OPERATOR, keys.CREATE) as unit:
        made = keys.create(unit, name="reader", role=reader.role, tenant_id=reader.tenant_id)
    return caller_with(stage.units, made.token.text, address=None, request_id=None)


def by_key(caller: Caller, wanted: JobFilter) -> list[JobId]:
    found = caller.ask(Permission.JOB_READ, *newest_jobs(wanted, limit=3)).found
    return [job.id for job in found or ()]


def by_page(stage: Stage, reader: Principal, wanted: JobFilter) -> list[JobId]:
    with stage.units.begin(reader, jobs.READ, dry_run=True, quiet=True) as unit:
        return [each.job.id for each in list_jobs(unit, wanted, limit=3)]


def test_a_key_and_a_page_list_the_same_jobs(stage: Stage) -> None:
    every = by_page(stage, OPERATOR, JobFilter())
    assert len(every) == 3
    with stage.units.begin(OPERATOR, jobs.READ, dry_run=True, quiet=True) as unit:
        (newest, *_) = list_jobs(unit, JobFilter(), limit=1)
    filters = [
        JobFilter(),
        JobFilter(name="a"),
        JobFilter(name_part="B"),
        JobFilter(name_part="%"),
        JobFilter(tier="on_demand"),
        JobFilter(tier="spot"),
        JobFilter(job_class="standard"),
        JobFilter(job_class="production"),
        JobFilter(states=[JobState.QUEUED]),
        JobFilter(states=[JobState.CANCELLED]),
        JobFilter(tenant_id=stage.fleet.tenant_id),
        JobFilter(tenant_id=TenantId("ten_nobody")),
        JobFilter(before=(newest.job.created_at, newest.job.id)),
        JobFilter(is_oldest_first=True),
        JobFilter(before=(newest.job.created_at - timedelta(seconds=2), newest.job.id), is_oldest_first=True),
        JobFilter(since=newest.job.created_at),
        JobFilter(until=newest.job.created_at),
        JobFilter(labels={"team": "vision"}),
        JobFilter(labels={"team": "vision", "sweep": "7"}),
        JobFilter(label_names=["sweep"]),
        JobFilter(label_names=["absent"]),
        JobFilter(node_id=stage.fleet.node_id),
        JobFilter(node_id=NodeId("node_none")),
    ]
    member = Principal(name="mia", role=Role.TENANT_MEMBER, tenant_id=stage.fleet.tenant_id)
    for reader in (OPERATOR, member):
        caller = caller_as(stage, reader)
        for wanted in filters:
            assert by_key(caller, wanted) == by_page(stage, reader, wanted), (reader.role, wanted)
    found = [len(by_page(stage, OPERATOR, wanted)) for wanted in filters[-10:]]
    assert found == [3, 2, 1, 3, 3, 1, 1, 0, 1, 0]
    assert set(by_page(stage, member, JobFilter())) != set(every), "a tenant reads its own alone"
