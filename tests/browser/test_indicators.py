"""The pages of the indicators with something counted: readable and usable by everybody, at a desk and on a phone."""

from datetime import timedelta

from control.core.unit_of_work import utc_now
from control.fleet import inventory
from tests.browser.browsing import Browsing
from tests.browser.small_fleet import SmallFleet
from tests.browser.test_places import CHARTED
from tests.console.test_figures import STORE
from tests.fleet_factory import OPERATOR


def counted(fleet: SmallFleet) -> None:
    """Have jobs of two tenants counted, by hour over ten days; more failed recently."""
    tenants = (fleet.tenant_id, fleet.other.tenant_id)
    last = utc_now().replace(minute=0, second=0, microsecond=0)
    with fleet.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        for hours in range(1, 240, 3):
            given = {"at": last - timedelta(hours=hours), "tenant": tenants[hours % 2]}
            unit.session.execute(STORE, {**given, "part": "succeeded", "num": 9})
            unit.session.execute(STORE, {**given, "part": "infrastructure", "num": 1 + (hours < 100)})


def test_indicators_are_listed_and_drawn_at_every_width_and_in_both_themes(
    console: Browsing, fleet: SmallFleet
) -> None:
    counted(fleet)
    console.inspect_in_each_check("/console/figures", "list")
    console.page.get_by_role("link", name="job_success", exact=True).click()
    console.page.get_by_role("link", name="compare with the period before").click()
    console.page.locator(CHARTED).first.wait_for()
    address = console.page.url.removeprefix(console.watch.base_url)
    assert "compare=true" in address
    console.inspect_in_each_check(address, "compared", ready=CHARTED)
    console.inspect_in_each_check(address.replace("range=7d", "range=24h") + "&by=tenant", "by tenant", ready=CHARTED)
