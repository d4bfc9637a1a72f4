"""The fleet page: every GPU on a map that keeps itself current, and what went wrong as text."""

from muster.domain.principals import Role
from tests.browser.browsing import Browsing
from tests.browser.conftest import Browse
from tests.browser.control_plane import ControlPlane
from tests.browser.small_fleet import NUM_GPUS, Hit, SmallFleet

DRAWN = "[data-map][data-ready]"


def count(console: Browsing, standing: str) -> int:
    return int(console.page.locator(f"[data-count={standing}]").inner_text())


def test_the_fleet_holds_at_every_width_and_in_both_themes(console: Browsing, hit: Hit) -> None:
    console.inspect_in_each_check("/console", ready=DRAWN)


def test_every_gpu_is_on_the_map_and_counted_by_standing(console: Browsing, fleet: SmallFleet) -> None:
    console.open("/console", ready=DRAWN)
    assert console.page.locator("[data-map]").get_attribute("data-ready") == str(NUM_GPUS)
    counts = [int(each.inner_text()) for each in console.page.locator("[data-count]").all()]
    assert sum(counts) == NUM_GPUS


def test_a_newcomer_reads_which_gpu_is_sick_why_which_job_it_hit_and_what_was_done(console: Browsing, hit: Hit) -> None:
    console.open("/console?faults=more", ready=DRAWN)  # other tests' faults may be newer
    timeline = console.page.locator(".fault-timeline", has_text="pretrain").first
    words = " ".join(timeline.inner_text().split())
    assert "slot" in words
    assert "XID 95" in words, "why"
    assert "Quarantined" in words
    assert "attempt 1, ended evacuated" in words, "what it hit"
    assert "Resumed attempt 2" in words, "what was done"


def test_a_gpu_that_breaks_is_counted_without_a_reload(
    console: Browsing, fleet: SmallFleet, hit: Hit, control_plane: ControlPlane
) -> None:
    console.open("/console", ready=DRAWN)
    before = count(console, "QUARANTINED")
    healthy = next(gpu for gpu in fleet.free_gpus() if gpu != hit.gpu)
    fleet.report(healthy)
    control_plane.report_events()
    console.wait_for_words("[data-count=QUARANTINED]", str(before + 1))
    console.page.locator(f'.fault-timeline a[href="/console/gpus/{healthy}"]').first.wait_for()
    console.keep("broken")


def test_the_map_is_walked_by_arrow_keys_and_states_where_one_is(console: Browsing, fleet: SmallFleet) -> None:
    console.open("/console", ready=DRAWN)
    console.tab_to("Map of the fleet")
    said = console.page.locator("[data-map-said]")
    console.press("ArrowRight")
    assert said.inner_text().startswith("h100-1, GPU 0, rack-1. ")
    console.press("ArrowRight")
    console.press("ArrowDown")
    assert said.inner_text().startswith("h100-2, GPU 1, rack-1. ")
    console.keep("walked")
    with console.page.expect_navigation():
        console.press("Enter")
    assert console.page.url.endswith("/console/gpus/GPU-h100-2-1")


def test_the_map_is_painted_by_what_one_requests(console: Browsing, hit: Hit) -> None:
    console.open("/console", ready=DRAWN)
    pictures = set()
    for mode in ("Score", "Utilisation", "Temperature", "Tenant", "Standing"):
        button = console.page.locator("[data-map-modes]").get_by_role("button", name=mode)
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        pictures.add(console.page.locator("[data-map-canvas]").screenshot())
        console.inspect(f"by {mode}")
    assert len(pictures) == 5, "each shows something else"


def test_light_and_dark_is_chosen_once_and_kept(console: Browsing, fleet: SmallFleet) -> None:
    console.open("/console", ready=DRAWN)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = console.page.evaluate(ground)
    console.page.get_by_role("button", name="Light or dark").click()
    dark = console.page.evaluate(ground)
    assert dark != light
    console.open("/console", ready=DRAWN)
    assert console.page.evaluate(ground) == dark


def test_a_tenant_sees_the_gpus_that_its_jobs_hold_and_what_hit_them(
    browse: Browse, fleet: SmallFleet, hit: Hit
) -> None:
    member = browse(Role.TENANT_MEMBER)
    member.inspect_in_each_check("/console", "tenant", ready=DRAWN)
    assert member.page.locator("[data-map]").get_attribute("data-ready") == str(len(fleet.gpus_of(hit.job_id)))
    member.see("Your GPUs")
    member.see("pretrain")
    for link in member.page.locator("main a").all():
        path = link.get_attribute("href")
        assert member.page.evaluate("path => fetch(path).then((answer) => answer.status)", path) == 200, path
