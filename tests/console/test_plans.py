"""What a page shows of a pending job, of the queue, and of a job that was not submitted yet."""

import re
from collections.abc import Sequence
from datetime import timedelta

import pytest
from sqlalchemy import update

from control.jobs import jobs
from control.tenants import planning
from muster.db.models import Attempt, TenantPlanning
from muster.domain.ids import JobId, TenantId
from muster.domain.job.spec import JobSpec
from muster.domain.principals import Principal, Role, system_principal
from tests.console.conftest import Console
from tests.fleet_factory import OPERATOR
from workers.control.scheduler_loop import run_cycle


def submit(seen: Console, name: str, *, of: TenantId | None = None, **fields: object) -> JobId:
    owner = Principal(name="member", role=Role.TENANT_MEMBER, tenant_id=of or seen.fleet.tenant_id)
    document = {"name": name, "program": {"script": "/srv/train.py"}, **fields}
    with seen.units.begin(owner, jobs.SUBMIT) as unit:
        return jobs.submit(unit, JobSpec.model_validate(document, strict=False)).id


def cycle(seen: Console) -> Sequence[JobId]:
    return [placed.job_id for placed in run_cycle(seen.units, system_principal("scheduler")).placements]


@pytest.fixture
def crowded(seen: Console) -> JobId:
    """Both GPUs of the fleet are held by the other tenant, for an hour."""
    seen.fleet.beat()
    whole = {"nodes": 1, "gpus_per_node": 2}
    job_id = submit(seen, "canary-in-the-way", of=seen.other_tenant, shape=whole, wall_time_s=3600.0)
    assert cycle(seen) == [job_id]
    return job_id


def test_a_waiting_jobs_page_reports_what_binds_what_is_before_it_and_from_when_on(
    seen: Console, crowded: JobId
) -> None:
    first = submit(seen, "first", shape={"nodes": 1, "gpus_per_node": 2}, wall_time_s=60.0)
    last = submit(seen, "last", shape={"nodes": 1, "gpus_per_node": 1})
    cycle(seen)
    page = seen.text(f"/console/jobs/{first}")
    assert "Why it waits" in page
    assert re.search(r"in_use binds .* in use, or being proved clean", page)
    assert "Before it no job" in page
    assert "Its place is free" in page
    assert "2 GPUs will be its own" in page
    assert re.search(r"canary-in-the-way : 2 GPUs", page)
    assert "Before it 1 job for 2 GPUs" in seen.text(f"/console/jobs/{last}")


def test_pages_of_a_tenant_that_may_not_plan_now_show_what_is_stored(seen: Console, crowded: JobId) -> None:
    job_id = submit(seen, "mine", shape={"nodes": 1, "gpus_per_node": 2})
    cycle(seen)
    with seen.units.begin(OPERATOR, planning.CHARGE, quiet=True) as unit:
        unit.session.add(TenantPlanning(tenant_id=seen.fleet.tenant_id, left_s=-60.0, at=unit.now))
    page = seen.text(f"/console/jobs/{job_id}", "tenant_member")
    assert "Waits: " in page, "the reason of the newest cycle"
    assert "Why it waits" not in page
    refused = seen.get("/console/plan?nodes=1&gpus_per_node=2", "tenant_member")
    assert refused.status_code == 429
    assert "limits.tenant.planning_s_per_minute" in refused.text
    assert seen.get("/console/plan?nodes=1&gpus_per_node=2").status_code == 422, "an operator names a tenant first"


def test_a_tenant_reads_why_it_waits_and_nothing_of_which_it_waits_for(seen: Console, crowded: JobId) -> None:
    job_id = submit(seen, "mine", shape={"nodes": 1, "gpus_per_node": 2})
    cycle(seen)
    page = seen.text(f"/console/jobs/{job_id}", "tenant_member")
    assert "Why it waits" in page
    assert "canary" not in page
    assert "Where it will start" not in page
    assert seen.get(f"/console/jobs/{job_id}", "other_tenant").status_code == 404


def test_the_part_of_the_page_is_requested_alone_and_is_empty_once_it_waits_no_more(
    seen: Console, crowded: JobId
) -> None:
    job_id = submit(seen, "mine", shape={"nodes": 1, "gpus_per_node": 2})
    part = seen.text(f"/console/jobs/{job_id}?part=attempts", hx_request="true")
    assert "Why it waits" in part
    assert "Training" not in part
    assert "Why it waits" not in seen.text(f"/console/jobs/{job_id}?part=tables", hx_request="true")
    assert "Why it waits" not in seen.text(f"/console/jobs/{crowded}?part=attempts", hx_request="true")


def test_the_queue_stands_in_its_order_and_a_tenants_jobs_keep_their_places_in_it(
    seen: Console, crowded: JobId
) -> None:
    submit(seen, "long", shape={"nodes": 1, "gpus_per_node": 2}, wall_time_s=36_000.0)
    submit(seen, "short", shape={"nodes": 1, "gpus_per_node": 2}, wall_time_s=60.0)
    submit(seen, "canary-reserved", of=seen.other_tenant, tier="reserved", shape={"nodes": 1, "gpus_per_node": 2})
    cycle(seen)
    page = seen.text("/console/queue").partition("Waits since")[2]
    assert page.index("canary-reserved") < page.index("short") < page.index("long")
    assert "in use" in page
    own = seen.text("/console/queue", "tenant_member")
    assert "canary" not in own
    assert "3 jobs wait in all" in own
    assert re.search(r" 2 short .* 3 long ", own)


def test_a_plan_reports_an_operator_where_and_a_tenant_that_it_starts(seen: Console) -> None:
    seen.fleet.beat()
    asked = "/console/plan?nodes=1&gpus_per_node=2&tier=on_demand"
    page = seen.text(f"{asked}&tenant={seen.fleet.tenant_id}")
    assert "It would start at once" in page
    assert "Where it would start" in page
    assert "muster job plan --nodes 1 --gpus 2 --tier on_demand" in page
    assert "It would start at once" in seen.text(asked, "tenant_member")


def test_a_plan_that_reclaims_reports_from_which_it_would_and_reclaims_nothing(seen: Console) -> None:
    seen.fleet.beat()
    victim = submit(seen, "canary-sweep", of=seen.other_tenant, tier="spot", shape={"nodes": 1, "gpus_per_node": 2})
    assert cycle(seen) == [victim]
    with seen.units.begin(system_principal("test"), jobs.SUBMIT, quiet=True) as unit:
        unit.session.execute(update(Attempt).values(running_at=unit.now - timedelta(hours=2)))
    asked = "/console/plan?gpus_per_node=2&tier=reserved"
    page = seen.text(f"{asked}&tenant={seen.fleet.tenant_id}")
    for told in (
        "GPUs would be reclaimed for it",
        "Jobs that would be reclaimed",
        "2 GPUs after",
        "Its GPUs would be due",
    ):
        assert told in page
    assert "being reclaimed" not in page
    own = seen.text(asked, "tenant_member")
    assert "another job, spot: 2 GPUs after" in own
    assert "canary" not in own


def test_a_plan_that_waits_reports_why_and_what_would_let_it_start(seen: Console, crowded: JobId) -> None:
    page = seen.text("/console/plan?nodes=1&gpus_per_node=2&tier=on_demand", "tenant_member")
    assert "A place would be held for it" in page
    assert "it would start on are idle and would be held for it" in page
    assert "Its place would be free" in page
    assert "in_use binds" in page
    assert "canary" not in page


@pytest.mark.parametrize(
    ("requested", "reported"),
    [
        ("nodes=x&gpus_per_node=2", "Hosts: 'x' is no whole number, such as 2"),
        ("nodes=1&gpus_per_node=2&tier=gold", "Tier: the policy defines"),
        ("nodes=1&gpus_per_node=2&within=planet", "All in one: the fleet's tree has no level planet"),
        ("nodes=1&gpus_per_node=2&near=planet", "In one if it can be: the fleet's tree has no level planet"),
        ("nodes=1&gpus_per_node=2&balance=planet", "Spread evenly over each: the fleet's tree has no level planet"),
        ("nodes=999&gpus_per_node=8", "Shape: asks for 7992 GPUs"),
        ("nodes=0&gpus_per_node=8", "Hosts: must be at least 1"),
        ("nodes=1&gpus_per_node=1&wall_minutes=nan", "Wall time, minutes: 'nan' is no number of minutes"),
        ("nodes=1&gpus_per_node=1&wall_minutes=600000", "Wall time, minutes: must be at most 525,600"),
        ("nodes=1&gpus_per_node=1&wall_minutes=1e308", "Wall time, minutes: must be at most 525,600"),
        ("nodes=1&gpus_per_node=1&slices=rack%3D99999999999999999", "Slices: rack=999999999999999… is no number of"),
        ("nodes=1&gpus_per_node=1&wall_minutes=1e999", "Wall time, minutes: '1e999' is no number of minutes"),
        ("nodes=2&gpus_per_node=1&min_nodes=3", "Shape: “Elastic from” 3 is more than “Hosts”, which is 2"),
        ("gpus=8&nodes=2", "Shape: takes “GPUs in all” alone, the sum over its hosts, not with “Hosts”"),
        ("gpus=0", "GPUs in all: must be at least 1"),
        ("nodes=1&slices=rack", "Slices: 'rack' is not NAME=NUMBER, such as rack=16"),
        ("nodes=1&layout=tp", "Layout: 'tp' is not NAME=NUMBER, such as tp=8"),
        ("nodes=1&layout=ep%3D2", "Layout: 'ep' is no degree of a layout: pp, dp, fsdp and tp are"),
        (
            "nodes=1&tp_across_nodes=on",
            "Tensor-parallel groups may span hosts: it is part of a layout, which is missing",
        ),
        ("nodes=1&on_labels=zone", "On hosts with: 'zone' is not NAME=VALUE or NAME=VALUE|VALUE, such as zone=a"),
        ("nodes=1&not_on_labels=%3Da", "Not on hosts with: '=a' is not NAME=VALUE"),
        ("nodes=1&name=a+b", "Name: "),
        (f"nodes={'9' * 40}", "Hosts: must be at most 12,500"),
    ],
)
def test_what_no_job_can_be_is_stated_next_to_the_form(seen: Console, requested: str, reported: str) -> None:
    answer = seen.get(f"/console/plan?{requested}", "tenant_member")
    assert answer.status_code == 422
    assert reported in seen.text(f"/console/plan?{requested}", "tenant_member")
    assert "The question" in answer.text


def test_all_that_cannot_be_read_is_stated_at_once_and_kept_as_it_was_typed(seen: Console) -> None:
    answer = seen.get("/console/plan?nodes=x&slices=rack&on_labels=zone", "tenant_member")
    assert answer.text.count('aria-invalid="true"') == 3
    for typed in ('value="x"', 'value="rack"', ">zone</textarea>", '<details class="more-asked" open>'):
        assert typed in answer.text


def test_every_field_of_the_form_reaches_the_plan_and_the_command(seen: Console) -> None:
    seen.fleet.beat()
    asked = "gpus=2&tier=spot&near=rack&layout=tp%3D2&wall_minutes=5&name=train&not_on_labels=disk%3Dold"
    page = seen.text(f"/console/plan?{asked}&tenant={seen.fleet.tenant_id}")
    assert "It would start at once" in page
    assert (
        "muster job plan --total-gpus 2 --tier spot --near rack --layout tp=2 "
        "--not-on-label disk=old --wall-time 5m --name train"
    ) in page
    page = seen.text("/console/plan?gpus=2&slices=rack%3D2&on_labels=disk%3Dnew%7Cnvme", "tenant_member")
    assert "each 1 hosts in one rack, on hosts with disk=new|nvme" in page
    assert "--slice rack=2 --on-label 'disk=new|nvme'" in page


def test_what_is_folded_stands_open_only_while_it_states_something(seen: Console) -> None:
    assert '<details class="more-asked" open>' not in seen.get("/console/plan", "tenant_member").text
    asked = "/console/plan?nodes=&gpus_per_node=2&near=&balance=&name="
    assert '<details class="more-asked" open>' not in seen.get(asked, "tenant_member").text
    assert '<details class="more-asked" open>' in seen.get(f"{asked}train", "tenant_member").text


def test_a_size_that_is_left_empty_is_one(seen: Console) -> None:
    seen.fleet.beat()
    assert "It would start at once" in seen.text("/console/plan?nodes=&gpus_per_node=&gpus=", "tenant_member")


def test_a_caller_that_may_not_submit_plans_nothing(seen: Console) -> None:
    assert seen.get("/console/plan", "auditor").status_code == 403
    assert "Plan a job" not in seen.text("/console/jobs", "auditor")
