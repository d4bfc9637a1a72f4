"""Pages that keep themselves current: nothing is loaded again, and nothing is taken from a person's hands."""

import re
from datetime import timedelta

from playwright.sync_api import Route, expect

from control.fleet import overrides
from muster.domain.principals import Role
from muster.domain.states import Standing
from tests.browser.browsing import PATIENCE_MS, Browsing
from tests.browser.conftest import Browse
from tests.browser.control_plane import ControlPlane
from tests.browser.played_fleet import DONE
from tests.browser.small_fleet import SmallFleet
from tests.fleet_factory import OPERATOR

LEFT = "time[data-countdown]"


def test_a_gpus_page_shows_what_another_person_did_to_it(
    console: Browsing, fleet: SmallFleet, control_plane: ControlPlane
) -> None:
    gpu = fleet.free_gpus()[-6]
    console.open(f"/console/gpus/{gpu}")
    console.page.evaluate("window.isTheSamePage = true")
    with fleet.units.begin(OPERATOR, overrides.OVERRIDE) as unit:
        until = unit.now + timedelta(days=365)
        overrides.override(unit, gpu, Standing.SUSPECT, until=until, reason="seen from elsewhere")
    control_plane.report_events()
    console.see("SUSPECT set by")
    assert console.page.evaluate("window.isTheSamePage === true"), "it was not loaded again"
    with fleet.units.begin(OPERATOR, overrides.RELEASE) as unit:
        overrides.release(unit, gpu, reason="done")


def test_jobs_come_and_go_in_the_list(console: Browsing, fleet: SmallFleet, control_plane: ControlPlane) -> None:
    console.open("/console/jobs")
    job_id = fleet.submit(name="just-now")
    control_plane.report_events()
    row = console.page.locator("tr", has_text="just-now")
    expect(row.locator(".badge")).to_have_text("QUEUED", timeout=PATIENCE_MS)
    fleet.run(job_id)
    control_plane.report_events()
    expect(row.locator(".badge")).to_have_text("ACTIVE", timeout=PATIENCE_MS)
    fleet.end(job_id, DONE)
    control_plane.report_events()
    expect(row.locator(".badge")).to_have_text("SUCCEEDED", timeout=PATIENCE_MS)


def test_what_comes_while_the_stream_is_being_opened_is_not_missed(
    console: Browsing, fleet: SmallFleet, control_plane: ControlPlane
) -> None:
    def late(route: Route) -> None:
        fleet.submit(name="in-between")
        control_plane.report_events()
        route.continue_()

    console.page.route("**/console/live*", late, times=1)
    console.open("/console/jobs")
    expect(console.page.locator("tr", has_text="in-between")).to_be_visible(timeout=PATIENCE_MS)


def test_a_log_follows_is_searched_and_waits_where_one_reads(browse: Browse, fleet: SmallFleet) -> None:
    job_id = fleet.submit(name="talks", shape={"gpus_per_node": 2})
    fleet.run(job_id)
    fleet.write_log(job_id, "step 1 loss 4.0\n")
    member = browse(Role.TENANT_MEMBER)
    member.open(f"/console/jobs/{job_id}")
    log, said = member.page.locator("[data-log]"), member.page.locator("[data-log-said]")
    expect(log).to_contain_text("step 1 loss 4.0")
    expect(said).to_have_text("live", timeout=PATIENCE_MS)
    fleet.write_log(job_id, "step 2 loss 3.1\n")
    expect(log).to_contain_text("step 2 loss 3.1", timeout=PATIENCE_MS)
    fleet.write_log(job_id, "<b>no tag</b> \x1b[31mred\x1b[0m\n", rank=1)
    expect(log).to_contain_text("<b>no tag</b> red", timeout=PATIENCE_MS)
    member.page.get_by_placeholder("Lines that have").fill("loss 3")
    expect(said).to_have_text("1 line")
    expect(log.locator("mark")).to_have_text("loss 3")
    member.keep("searched")
    member.page.get_by_placeholder("Lines that have").fill("")
    member.page.get_by_role("button", name="Pause").click()
    fleet.write_log(job_id, "step 3 loss 2.7\n")
    expect(said).to_have_text("paused; 1 more", timeout=PATIENCE_MS)
    expect(log).not_to_contain_text("step 3")
    member.page.get_by_role("button", name="Continue").click()
    expect(log).to_contain_text("step 3 loss 2.7")
    fleet.end(job_id, DONE)
    expect(said).to_have_text("the end of it", timeout=PATIENCE_MS)
    member.inspect("at its end")


def test_a_log_is_narrowed_to_one_rank_and_taken_home(console: Browsing, fleet: SmallFleet) -> None:
    job_id = fleet.submit(name="two-voices", shape={"gpus_per_node": 2})
    fleet.run(job_id)
    fleet.write_log(job_id, "the first rank\n")
    fleet.write_log(job_id, "the second rank\n", rank=1)
    fleet.end(job_id, DONE)
    console.open(f"/console/jobs/{job_id}")
    choice = console.page.locator("[data-log-choice]")
    second = choice.locator("option", has_text="rank 1 on").get_attribute("value")
    with console.page.expect_navigation():
        choice.select_option(value=second)
    assert "the second rank" in console.words("[data-log]")
    assert "the first rank" not in console.words("[data-log]")
    with console.page.expect_download() as download:
        console.page.get_by_role("link", name="Download this stream").click()
    assert download.value.path().read_text() == "the second rank\n"


def test_a_reclaim_counts_down_to_its_deadline_and_no_further(console: Browsing, fleet: SmallFleet) -> None:
    console.page.clock.install()
    console.open("/console/reclaims?state=NOTIFIED")
    left = console.page.locator(LEFT)
    words = left.inner_text()
    found = re.fullmatch(r"(\d+) min left", words)
    assert found, f"two hours of notice, hardly begun: {words}"
    console.page.clock.fast_forward("30:00")
    expect(left).to_have_text(re.compile(rf"({int(found[1]) - 30}|{int(found[1]) - 31}) min left"), timeout=PATIENCE_MS)
    console.page.clock.fast_forward("02:00:00")
    expect(left).to_have_text("over", timeout=PATIENCE_MS)


def test_what_a_person_holds_is_not_taken_by_what_changes(
    console: Browsing, fleet: SmallFleet, control_plane: ControlPlane
) -> None:
    console.open("/console/jobs")
    held = console.page.get_by_role("link", name="pretrain").first
    held.focus()
    job_id = fleet.submit(name="comes-between")
    control_plane.report_events()
    console.page.get_by_role("link", name="comes-between").wait_for()
    assert console.page.evaluate("document.activeElement.innerText") == "pretrain"
    fleet.cancel(job_id)
