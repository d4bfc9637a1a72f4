"""The way that counts, without a pointer: sign in, find the faulty GPU, read why, do something about it."""

from playwright.sync_api import expect

from tests.browser.browsing import PATIENCE_MS, Browsing
from tests.browser.control_plane import ControlPlane
from tests.browser.small_fleet import Hit, SmallFleet


def test_from_the_sign_in_page_to_why_a_gpu_is_sick_by_keyboard_alone(
    stranger: Browsing, control_plane: ControlPlane, hit: Hit
) -> None:
    stranger.open("/console?faults=more")  # other tests' faults may be newer
    expect(stranger.page.locator("[name=name]")).to_be_focused()
    stranger.page.keyboard.type(control_plane.person)
    stranger.tab_to("Password")
    stranger.page.keyboard.type(control_plane.password)
    with stranger.page.expect_navigation():
        stranger.press("Enter")
    stranger.page.locator("[data-map][data-ready]").wait_for()
    stranger.tab_to("h100-1 · slot 2")
    with stranger.page.expect_navigation():
        stranger.press("Enter")
    assert stranger.page.url.endswith(f"/console/gpus/{hit.gpu}")
    stranger.see("XID 95: uncorrectable memory error, not contained")
    stranger.tab_to("pretrain")
    stranger.keep("what it hit")
    with stranger.page.expect_navigation():
        stranger.press("Enter")
    stranger.see("Attempt 2 runs on h100-1, h100-2.")


def test_a_page_begins_with_the_way_past_its_navigation(console: Browsing, fleet: SmallFleet) -> None:
    console.open("/console/jobs")
    console.tab_to("Skip to the page")
    console.keep("skip")
    console.press("Enter")
    assert console.page.evaluate("document.activeElement.id") == "main"
    console.tab_to("Copy as CLI / curl")


def test_a_dialog_keeps_the_focus_and_gives_it_back(console: Browsing, hit: Hit) -> None:
    console.open(f"/console/gpus/{hit.gpu}")
    console.tab_to("Burn-in")
    console.press("Enter")
    dialog = console.page.locator("dialog[open]")
    dialog.wait_for()
    console.tab_to("Reason")
    console.page.keyboard.type("reseated")
    console.tab_to("What would it do?")
    console.press("Enter")
    expect(dialog.locator(".consequences li").first).to_be_visible(timeout=PATIENCE_MS)
    console.press("Escape")
    expect(dialog).to_be_hidden()
    assert console.page.evaluate("document.activeElement.innerText") == "Burn-in"


def test_the_menu_of_a_phone_opens_by_its_button(console: Browsing, fleet: SmallFleet) -> None:
    console.page.set_viewport_size({"width": 390, "height": 844})
    console.open("/console/jobs")
    places = console.page.get_by_label("Places", exact=True)
    expect(places.locator("visible=true")).to_have_count(0)
    button = console.tab_to("Places")
    console.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    expect(console.page.get_by_role("link", name="Reclaims")).to_be_visible()
    console.keep("menu")
    console.require_fit()
    console.require_accessible()
