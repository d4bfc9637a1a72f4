"""Why a job waits, the place held for it, the contract of a reclaim, the queue, and a plan before it is submitted."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from control.placement.fleet_views import placed_views
from control.policy.policies import active_policy
from muster.domain.ids import JobId
from muster.domain.principals import Role
from scheduler.fleet.topology import FleetState
from tests.browser.browsing import Browsing
from tests.browser.conftest import Browse
from tests.browser.played_fleet import DONE
from tests.browser.small_fleet import SmallFleet

WALL_TIME_S = 7_200.0


@pytest.fixture
def gang(fleet: SmallFleet) -> Iterator[JobId]:
    """Waits for all whole hosts, of which one is busy for two hours; another job came later, and passes it."""
    whole = _num_whole_hosts(fleet)
    first = fleet.submit_by(fleet.other, name="evaluation-2", shape={"gpus_per_node": 8}, wall_time_s=WALL_TIME_S)
    fleet.run(first)
    gang = fleet.submit(name="world-model", shape={"nodes": whole, "gpus_per_node": 8}, wall_time_s=60.0)
    fleet.cycle()
    passing = fleet.submit(name="short-check", shape={"gpus_per_node": 8}, wall_time_s=600.0)
    fleet.run(passing)
    fleet.cycle()
    yield gang
    fleet.cancel(gang)
    for job_id in (passing, first):
        fleet.end(job_id, DONE)


def _num_whole_hosts(fleet: SmallFleet) -> int:
    """Return how many hosts could give 8 GPUs now, whatever other tests have left."""
    with fleet.units.read() as session:
        policy = active_policy(session)
        state = FleetState(placed_views(session, fleet.units.clock(), policy), policy)
    return int((state.tier("on_demand").counts == 8).sum())


def test_a_waiting_job_reports_what_binds_its_place_and_what_passes(console: Browsing, gang: JobId) -> None:
    console.inspect_in_each_check(f"/console/jobs/{gang}", "waits")
    why = console.page.locator("section:has(#waits-title)")
    expect(why.locator(".is-binding")).to_have_count(1)
    expect(why).to_contain_text("Jobs on its place")
    expect(why.locator("li", has_text="short-check")).to_contain_text("came after it, runs there meanwhile")
    expect(why).to_contain_text("Changes that would let it start at once")


def test_the_queue_is_checked(console: Browsing, gang: JobId) -> None:
    console.inspect_in_each_check("/console/queue", "queue")
    expect(console.page.locator(f"#{gang}")).to_contain_text("world-model")


def test_the_quotas_are_checked(console: Browsing, fleet: SmallFleet) -> None:
    console.inspect_in_each_check("/console/quotas", "quotas")
    expect(console.page.locator("table.quotas")).to_contain_text("on_demand")


def test_both_sides_of_a_reclaim_read_its_contract(console: Browsing, browse: Browse, fleet: SmallFleet) -> None:
    """The victim's page is checked in `test_places.py`."""
    console.inspect_in_each_check(f"/console/jobs/{fleet.beneficiary}", "beneficiary")
    contract = console.page.locator(".contract").first
    expect(contract).to_contain_text("for this job, from night-sweep")
    expect(contract).to_contain_text("GPU-seconds")
    member = browse(Role.TENANT_MEMBER)
    member.open(f"/console/jobs/{fleet.beneficiary}")
    expect(member.page.locator(".contract").first).to_contain_text("another tenant's job")
    expect(member.page.locator("main")).not_to_contain_text("night-sweep")


def test_a_plan_is_queried_by_its_form_and_stores_nothing(console: Browsing, browse: Browse, gang: JobId) -> None:
    member = browse(Role.TENANT_MEMBER)
    member.open("/console/jobs")
    member.page.get_by_role("link", name="Plan a job").click()
    member.page.get_by_label("GPUs a host").fill("8")
    member.page.get_by_label("Hosts", exact=True).fill("2")
    with member.page.expect_navigation():
        member.page.get_by_role("button", name="Plan").click()
    expect(member.page.locator("#plan-title")).to_be_visible()
    console.open("/console/queue")
    before = console.page.locator("tbody tr").count()
    console.inspect_in_each_check(
        "/console/plan?nodes=2&gpus_per_node=8&tier=reserved&tenant=" + _tenant(console), "plan-reclaims"
    )
    console.inspect_in_each_check("/console/plan?nodes=1&gpus_per_node=2&tenant=" + _tenant(console), "plan-starts")
    console.open("/console/queue")
    assert console.page.locator("tbody tr").count() == before


def test_the_folded_part_of_the_form_keeps_what_was_typed(console: Browsing) -> None:
    console.open("/console/plan")
    form = console.page.locator("form[action='/console/plan']")
    expect(form.get_by_label("Layout")).to_be_hidden()
    form.get_by_text("Place, layout, labels and name").click()
    form.get_by_label("Hosts", exact=True).fill("2")
    form.get_by_label("GPUs a host").fill("4")
    form.get_by_label("Tier").select_option("reserved")
    form.get_by_label("Layout").fill("tp=8")
    form.get_by_label("Tensor-parallel groups may span hosts").check()
    form.get_by_label("Not on hosts with").fill("disk=old\nzone=a|b")
    with console.page.expect_navigation():
        form.get_by_role("button", name="Plan").click()
    expect(form.get_by_label("Layout")).to_have_value("tp=8")
    expect(form.get_by_label("Not on hosts with")).to_have_value("disk=old\nzone=a|b")
    expect(form.get_by_label("Tensor-parallel groups may span hosts")).to_be_checked()
    expect(console.page.locator("main")).to_contain_text("0 of 1 tensor-parallel groups have one node each")
    console.inspect_in_each_check(console.page.url.removeprefix(console.watch.base_url), "plan-folded")


def test_what_no_job_can_be_is_stated_next_to_the_form(console: Browsing) -> None:
    asked = "/console/plan?nodes=2&gpus_per_node=2&min_nodes=3&layout=dp%3D2&slices=rack%3D3"
    with console.expecting(422):
        console.open(asked, status=422)
    expect(console.page.get_by_role("alert")).to_contain_text("“Elastic from” 3 is more than “Hosts”, which is 2")
    expect(console.page.get_by_label("Slices")).to_have_value("rack=3")
    console.inspect("plan-refused")


def _tenant(console: Browsing) -> str:
    console.open("/console/plan")
    return console.page.locator("[name=tenant] option").first.get_attribute("value") or ""
