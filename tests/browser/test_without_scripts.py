"""A browser that runs no scripts: everything is still read, found and done."""

from playwright.sync_api import Locator, expect

from muster.domain.principals import Role
from tests.browser.browsing import Browsing
from tests.browser.conftest import Browse
from tests.browser.control_plane import ControlPlane
from tests.browser.small_fleet import Hit, SmallFleet


def test_one_signs_in_and_reads_which_gpu_is_sick_and_why(
    browse: Browse, control_plane: ControlPlane, hit: Hit
) -> None:
    stranger = browse(None, scripts=False)
    stranger.open("/console")
    stranger.page.fill("[name=name]", control_plane.person)
    stranger.page.fill("[name=password]", control_plane.password)
    stranger.page.get_by_role("button", name="Sign in").click()
    stranger.see("Faults, and the actions on them")
    instead = stranger.page.locator("noscript p")
    expect(instead).to_contain_text("The map needs scripts")
    stranger.keep("fleet")
    instead.locator("a").click()
    stranger.page.get_by_label("Standing").select_option("QUARANTINED")
    stranger.page.get_by_role("button", name="Show").click()
    stranger.page.locator(f'a[href="/console/gpus/{hit.gpu}"]').click()
    stranger.see("XID 95: uncorrectable memory error, not contained")
    expect(instead).to_contain_text("Charts need scripts")
    stranger.keep("gpu")


def test_every_place_has_its_words(browse: Browse, fleet: SmallFleet, hit: Hit) -> None:
    operator = browse(Role.OPERATOR, scripts=False)
    words = {
        "jobs": "night-sweep",
        f"jobs/{hit.job_id}": "resumed from step 120",
        "reclaims": "min left",
        "nodes/h100-1": "pretrain",
        "events": "Dated facts",
        "system": "Circuit breaker",
    }
    for place, told in words.items():
        operator.open(f"/console/{place}")
        operator.see(told)


def test_a_change_is_previewed_on_a_page_of_its_own_and_done(browse: Browse, fleet: SmallFleet) -> None:
    operator = browse(Role.OPERATOR, scripts=False)
    gpu = fleet.free_gpus()[-7]
    operator.open(f"/console/gpus/{gpu}")
    ask(operator, "Cordon", reason="no scripts here").get_by_role("button", name="What would it do?").click()
    operator.see("Nothing is changed yet. It would do this:")
    operator.keep("preview")
    operator.page.get_by_role("link", name="Back").click()
    operator.see("None. Placement here depends on its standing alone.")
    ask(operator, "Cordon", reason="no scripts here").locator("button[value=do]").click()
    operator.see("no scripts here")
    ask(operator, "Release", reason="done").locator("button[value=do]").click()
    operator.see("None. Placement here depends on its standing alone.")


def test_a_phone_has_its_places(browse: Browse, fleet: SmallFleet) -> None:
    operator = browse(Role.OPERATOR, scripts=False)
    operator.page.set_viewport_size({"width": 390, "height": 844})
    operator.open("/console/jobs")
    expect(operator.page.get_by_role("link", name="Reclaims")).to_be_visible()
    operator.keep("phone")


def ask(operator: Browsing, label: str, *, reason: str) -> Locator:
    """The dialog that the browser itself opens."""
    operator.page.get_by_role("button", name=label, exact=True).filter(visible=True).first.click()
    dialog = operator.page.locator("dialog[open]")
    dialog.get_by_label("Reason").fill(reason)
    return dialog
