"""The on-call page with failures and busy GPUs: readable and usable by everybody, at a desk and on a phone."""

from tests.browser.browsing import Browsing
from tests.browser.small_fleet import Hit, SmallFleet
from tests.browser.test_indicators import counted
from tests.browser.test_places import CHARTED


def test_failures_are_next_to_the_period_before(console: Browsing, fleet: SmallFleet, hit: Hit) -> None:
    counted(fleet)
    console.inspect_in_each_check("/console/on-call?range=7d&compare=true", "compared", ready=CHARTED)
    console.see("Newest errors")
    console.see("GPU and network saturation")
    console.page.get_by_role("link", name="1h", exact=True).click()
    console.see("in the last 1h")
    assert "compare=true" in console.page.url
