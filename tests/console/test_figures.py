"""The pages of the indicators, over their facts in the store; a tenant reads its own."""

from datetime import timedelta

from sqlalchemy import text

from control.core.unit_of_work import utc_now
from control.fleet import inventory
from ledger.figures.indicators import INDICATORS
from tests.console.conftest import Console
from tests.fleet_factory import OPERATOR

STORE = text("""
    INSERT INTO figure_facts (figure, part, begins_at, span_s, tenant_id, tier, job_class, site, num, total, buckets,
        counts)
    VALUES ('job_success', :part, :at, 3600, :tenant, 'spot', 'standard', 'a', :num, 0, '{}', '{}')
    ON CONFLICT DO NOTHING  -- the browser's tests share one fleet
""")


def counted(seen: Console, part: str, num: int, *, days: int = 1) -> None:
    at = (utc_now() - timedelta(days=days)).replace(minute=0, second=0, microsecond=0)
    given = {"part": part, "at": at, "tenant": seen.other_tenant, "num": num}
    with seen.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        unit.session.execute(STORE, given)


def test_of_an_empty_fleet_each_page_states_that_nothing_was_counted(seen: Console) -> None:
    page = seen.text("/console/figures")
    for name in INDICATORS:
        assert name in page
        words = seen.text(f"/console/figures/{name}?by=tenant&compare=true")
        assert "Nothing was counted in that time" in words
    assert "Nothing was counted." in page


def test_a_value_stands_next_to_the_period_before_and_in_the_csv(seen: Console) -> None:
    counted(seen, "succeeded", 3)
    counted(seen, "infrastructure", 1)
    counted(seen, "succeeded", 5, days=9)
    assert "75.0% 100.0% -25.0 points worse" in seen.text("/console/figures")
    (chart,) = seen.get("/console/figures/job_success.json?compare=true").json()["charts"]
    assert chart["bounds"] == [0, 100], "a share"
    assert [line["points"][0][1] for line in chart["lines"]] == [75.0, 100.0]
    lines = seen.get("/console/figures/job_success.csv").text.splitlines()
    assert lines[-1] == "job_success,,now,,,0.75,,,"
    assert "other 75.0% 100.0%" in seen.text("/console/figures/job_success?by=tenant"), "tenants by their names"
    assert "75.0%" not in seen.text("/console/figures", "tenant_member")
    assert "75.0%" in seen.text("/console/figures", "other_tenant")


def test_a_bad_address_names_its_fault(seen: Console) -> None:
    assert seen.get("/console/figures/nothing").status_code == 404
    for path in ("figures", "figures.csv", "figures/job_success", "figures/job_success.json"):
        assert seen.get(f"/console/{path}?since=2026-02-30").status_code == 422


def test_groups_are_sorted_by_their_values_on_the_page_and_in_the_csv(seen: Console) -> None:
    counted(seen, "succeeded", 3)
    counted(seen, "infrastructure", 1)
    with seen.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        at = utc_now().replace(minute=0, second=0, microsecond=0) - timedelta(days=1)
        unit.session.execute(STORE, {"part": "succeeded", "at": at, "tenant": seen.fleet.tenant_id, "num": 1})
    for sort, values in (("groups.value", ["0.75", "1.0"]), ("-groups.value", ["1.0", "0.75"])):
        asked = f"by=tenant&sort={sort}"
        lines = seen.get(f"/console/figures/job_success.csv?table=groups&{asked}").text.splitlines()
        assert [line.split(",")[1] for line in lines[1:]] == values
        page = seen.text(f"/console/figures/job_success?{asked}")
        assert (page.index("75.0%") < page.rindex("100.0%")) == (values[0] == "0.75")
    assert seen.get("/console/figures/time_to_complete?sort=-groups.p50").status_code == 200
    for path in ("figures", "figures.csv", "figures/job_success", "figures/job_success.csv"):
        assert seen.get(f"/console/{path}?sort=-all.colour").status_code == 422
    listed = seen.get("/console/figures.csv?table=all&sort=-all.number").text.splitlines()
    assert listed[1].startswith("15,")
    assert "is one of: points, all" in seen.get("/console/figures.csv?table=x").text
