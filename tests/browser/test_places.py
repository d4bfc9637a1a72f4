"""Every place of the console, with something in it: readable and usable by everybody, at a desk and on a phone."""

import pytest

from muster.domain.principals import Role
from tests.browser.browsing import Browsing
from tests.browser.conftest import Browse
from tests.browser.small_fleet import Hit, SmallFleet

CHARTED = "[data-charts][data-ready]"
PLACES = {
    "jobs": "night-sweep",
    "reclaims": "quarter-close",
    "on-call": "Why attempts ended",
    "incidents": "acme holds 16 GPUs in the tier spot",
    "events?kind=gpu.": "gpu.quarantined",
    "audit?action=quota.set": "their contract ended",
    "system": "takes heartbeats since",
    "access": "local-operator",
    "gpus?model=A100": "a100-1",
    "gpus?standing=QUARANTINED": "Show all",
    "nodes": "a100-1",
    "cohorts": "Tensor cores multiply",
    "rack-pairs": "No host has reported another",
    "find?q=h100": "h100-8",
}
EMPTY = {
    "jobs?name=nothing-is-called-so": "No such job",
    "gpus?model=none": "No such GPU",
    "nodes?name=none": "No such node",
    "reclaims?state=WITHDRAWN": "No such reclaim",
    "events?kind=nothing.": "No such event",
    "audit?actor=nobody": "No such entry",
    "find?q=nothing-is-called-so": "Nothing was found",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_place_holds_at_every_width_and_in_both_themes(console: Browsing, fleet: SmallFleet, place: str) -> None:
    console.inspect_in_each_check(f"/console/{place}")
    console.see(PLACES[place])


@pytest.mark.parametrize("place", ["capacity", "capacity?by=node&range=7d", "capacity?by=cohort&range=1y"])
def test_capacity_is_drawn_at_every_width_and_in_both_themes(console: Browsing, fleet: SmallFleet, place: str) -> None:
    console.inspect_in_each_check(f"/console/{place}", ready=CHARTED)
    console.see("Delivered GPUs by use")
    drawn = console.page.get_by_role("img", name="Delivered GPUs by use").get_attribute("aria-label") or ""
    assert "out: from 0" in drawn, "the chart is there as text, too"
    console.page.get_by_role("link", name="rack", exact=True).click()
    console.page.get_by_role("link", name="rack-3", exact=True).click()
    console.see("rack-3")
    assert "group=rack-3" in console.page.url


def test_what_is_empty_reports_it_and_what_would_fill_it(console: Browsing, fleet: SmallFleet) -> None:
    for place, words in EMPTY.items():
        console.open(f"/console/{place}")
        console.see(words)
        console.inspect(place)


def test_a_gpu_that_is_out_states_why_since_when_and_what_would_bring_it_back(console: Browsing, hit: Hit) -> None:
    console.inspect_in_each_check(f"/console/gpus/{hit.gpu}", ready=CHARTED)
    told = console.words()
    assert "XID 95: uncorrectable memory error, not contained" in told
    assert "QUARANTINED" in told
    assert "reserved: no its standing is QUARANTINED, and this tier accepts HEALTHY" in told
    assert "To reserved and on_demand and spot, any one of: a person dismisses: XID 95" in told
    assert "a burn-in that begins from now on passes, and nothing of warning or worse is found until then" in told
    assert "results may be wrong" in told
    bar = console.page.get_by_role("img", name="Standings over time")
    assert "PROBATION for 28 d" in (bar.get_attribute("aria-label") or "")
    assert bar.locator("rect").count() == 4
    charts = console.page.locator("[data-charts] figure")
    assert "GPU core temperature" in charts.first.inner_text()
    assert "XID 95" in (charts.first.get_by_role("img").get_attribute("aria-label") or ""), "marked where it struck"


def test_a_node_shows_its_gpus_what_runs_there_and_where_it_stands(console: Browsing, hit: Hit) -> None:
    console.inspect_in_each_check("/console/nodes/h100-1")
    told = console.words()
    assert "rack rack-1" in told
    assert "pretrain" in told
    assert "QUARANTINED" in told


def test_a_job_that_was_hit_reports_its_attempts_placement_training_and_checkpoints(
    console: Browsing, hit: Hit
) -> None:
    console.inspect_in_each_check(f"/console/jobs/{hit.job_id}", ready=CHARTED)
    told = console.words()
    assert "Attempt 2 runs on h100-1, h100-2." in told
    assert "XID 95: uncorrectable memory error, not contained" in told
    assert "7 kept from attempt 1, 1 new" in told
    assert "from step 120" in told
    assert "TAINTED" in told
    assert "Where a step's time goes" in told
    assert "41.2 %" in told, "its MFU"
    assert "resumed from step 120" in told, "its log"
    assert "Rank 0 on h100-1 printed: h100-1:98:12" in told, "the root among its lines about faults"
    assert "8 lines of cascades and symptoms followed." in told
    assert console.page.locator(".slot--new").count() == 1
    console.page.get_by_role("link", name="1 attempt").click()
    console.page.locator(".slot--blamed").first.wait_for()
    console.inspect("attempt 1")


def test_a_job_that_must_leave_states_by_when_and_for_which(console: Browsing, fleet: SmallFleet) -> None:
    console.inspect_in_each_check(f"/console/jobs/{fleet.victim}", ready=CHARTED)
    told = console.words()
    assert "must leave, because" in told
    assert "Programs that still run then are killed." in told
    assert "incident-replay" in told
    console.open(f"/console/jobs/{fleet.beneficiary}")
    console.see("16 GPUs are being reclaimed for it")


def test_a_tenant_sees_its_job_and_the_gpu_it_holds_and_what_concerns_no_other(
    browse: Browse, fleet: SmallFleet, hit: Hit
) -> None:
    member = browse(Role.TENANT_MEMBER)
    member.inspect_in_each_check(f"/console/jobs/{hit.job_id}", ready=CHARTED)
    member.inspect_in_each_check(f"/console/gpus/{fleet.gpus_of(hit.job_id)[0]}", "gpu")
    for place in ("jobs", "reclaims", "events", "find?q=pretrain"):
        member.open(f"/console/{place}")
        if not place.startswith("find"):  # which leads to the job's page, as checked above
            member.inspect(place)
        told = member.words()
        assert "night-sweep" not in told, f"another tenant's job on {place}"
        assert "evaluation" not in told
    assert member.page.url.endswith(f"/console/jobs/{hit.job_id}"), "one thing is found: one is led to it"


def test_a_tenants_admin_sees_its_own_keys_and_audit(browse: Browse, fleet: SmallFleet) -> None:
    admin = browse(Role.TENANT_ADMIN)
    for place in ("access", "audit"):
        admin.open(f"/console/{place}")
        admin.inspect(place)
        told = admin.words()
        assert "local-operator" not in told
        assert "acme" not in told


def test_what_is_not_there_reports_it_and_leads_back(console: Browsing, fleet: SmallFleet) -> None:
    console.inspect_in_each_check("/console/gpus/GPU-none", status=404)
    console.page.get_by_role("link", name="To the fleet").click()
    console.see("Every GPU, in rack order")


def test_what_one_may_not_see_states_which_right_is_missing(browse: Browse, fleet: SmallFleet) -> None:
    member = browse(Role.TENANT_MEMBER)
    member.inspect_in_each_check("/console/system", status=403)
    member.see("metrics:read")
    member.open(f"/console/jobs/{fleet.victim}", status=404)
    member.see("To the fleet")


def test_a_question_that_cannot_be_read_states_what_is_accepted(console: Browsing, fleet: SmallFleet) -> None:
    console.open("/console/gpus?standing=HALE", status=422)
    console.see("UNPROVEN, PROBATION, HEALTHY, SUSPECT, QUARANTINED, REPAIR, RETIRED")
    console.inspect()
