"""The pages of utilisation, costs and statements with a fortnight counted: readable and usable by everybody."""

from control.core.unit_of_work import utc_now
from muster.domain.principals import Role
from tests.browser.acting import opened
from tests.browser.browsing import Browsing
from tests.browser.conftest import Browse
from tests.browser.money import money_of
from tests.browser.small_fleet import SmallFleet
from tests.browser.test_places import CHARTED


def test_money_is_shown_at_every_width_and_in_both_themes(console: Browsing, browse: Browse, fleet: SmallFleet) -> None:
    money_of(fleet)
    console.inspect_in_each_check("/console/utilisation?range=7d&compare=true", "utilisation", ready=CHARTED)
    console.inspect_in_each_check("/console/costs", "costs")
    dialog = opened(console, "Set a budget")
    assert "vision-lab" in dialog.inner_text()
    console.require_accessible()
    console.keep("first budget")
    console.inspect_in_each_check("/console/statements", "months")
    console.page.get_by_role("link", name=f"{utc_now():%B %Y}").click()
    console.inspect_in_each_check(console.page.url.removeprefix(console.watch.base_url), "statement")
    member = browse(Role.TENANT_MEMBER)
    member.inspect_in_each_check("/console/costs", "own costs")
    member.inspect_in_each_check("/console/utilisation?range=24h", "own utilisation", ready=CHARTED)
