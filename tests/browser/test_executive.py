"""The executive page with something counted: readable and usable by everybody, at a desk and on a phone."""

from datetime import timedelta
from itertools import count

from sqlalchemy import select

from control.core.unit_of_work import utc_now
from control.health.rollups import take_once
from ledger.accounts import Account
from muster.db.models import LedgerHour
from tests.browser.browsing import Browsing
from tests.browser.small_fleet import SmallFleet
from tests.browser.test_indicators import counted
from tests.browser.test_places import CHARTED
from tests.control.ledger.test_charges import MS, add_hours, card, set_cards
from tests.control.ledger.test_spending import add_fact


def used(fleet: SmallFleet) -> None:
    """Have two tenants train in a day of this and of the week before, at a price."""
    last = utc_now().replace(minute=0, second=0, microsecond=0)
    with fleet.units.read() as session:
        known = set(session.scalars(select(LedgerHour.hour)))  # the browser's tests share one fleet
    for days, trained in ((1, 50), (9, 30)):
        at = next(hour for back in count() if (hour := last - timedelta(days=days, hours=back)) not in known)
        add_hours(fleet.units, at)
        add_fact(fleet.units, at, Account.PRODUCTIVE, trained * MS, fleet.tenant_id)
        add_fact(fleet.units, at, Account.REPLAYED, 7 * MS, fleet.other.tenant_id)
        add_fact(fleet.units, at, Account.QUARANTINED, (days + 3) * MS)
        add_fact(fleet.units, at, Account.FREE, (100 - trained) * MS)
    set_cards(fleet.units, card(last.replace(hour=0) - timedelta(days=30), "2.50"))


def test_the_executive_page_holds_at_every_width_and_in_both_themes(console: Browsing, fleet: SmallFleet) -> None:
    counted(fleet)
    used(fleet)
    take_once(fleet.units)
    console.inspect_in_each_check("/console/executive?range=7d&compare=true", "counted", ready=CHARTED)
    console.see("Costs by tenant")
    assert "better before" in console.words()
    console.page.get_by_role("link", name="Job success rate").click()
    console.see("M1: job_success")
    assert "range=7d" in console.page.url


def test_an_executive_page_without_any_hour_holds(console: Browsing, fleet: SmallFleet) -> None:
    console.inspect_in_each_check("/console/executive?since=2026-01-01&until=2026-01-02", "empty")
    console.see("No tenant used a GPU in that time")
    console.see("Nothing to draw yet")
