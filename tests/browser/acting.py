"""What a person does on a page: the dialog from the button that opens it to the page that shows its effect."""

from collections.abc import Mapping

from playwright.sync_api import Locator, expect

from tests.browser.browsing import PATIENCE_MS, Browsing


def opened(person: Browsing, label: str, *, within: str = "main") -> Locator:
    """The dialog behind the button of that name."""
    person.page.locator(within).get_by_role("button", name=label, exact=True).first.click()
    dialog = person.page.locator("dialog[open]")
    dialog.wait_for()
    return dialog


def previewed(dialog: Locator) -> str:
    """What it would leave, in the words of the dialog."""
    dialog.get_by_role("button", name="What would it do?").click()
    dialog.locator(".consequences li").first.wait_for()
    return " ".join(dialog.locator(".consequences").inner_text().split())


def confirmed(person: Browsing, dialog: Locator) -> str:
    """Done, and what the page says of it."""
    with person.page.expect_navigation(url="**done=**", wait_until="commit"):
        dialog.locator("button[value=do]").click()
    toast = person.page.locator("[data-toast]")
    expect(toast).not_to_be_empty(timeout=PATIENCE_MS)
    return toast.text_content() or ""


def act(
    person: Browsing,
    label: str,
    *,
    reason: str,
    typed: str | None = None,
    fields: Mapping[str, str] | None = None,
    within: str = "main",
) -> tuple[str, str]:
    """With a reason, its preview and, where it destroys, the name: what it would leave, and what the page then says."""
    dialog = opened(person, label, within=within)
    dialog.get_by_label("Reason").fill(reason)
    for name, value in (fields or {}).items():
        dialog.locator(f"[name={name}]").fill(value)
    would = previewed(dialog)
    person.require_accessible()
    person.keep(f"{label} asked")
    if typed is not None:
        expect(dialog.locator("button[value=do]")).to_be_disabled()
        dialog.locator("[name=typed]").fill(typed)
    return would, confirmed(person, dialog)
