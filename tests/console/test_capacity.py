"""The page of capacity: the fleet and its groups over time, and the worst racks on the page of the fleet."""

import re
from dataclasses import replace
from datetime import datetime, timedelta
from html import unescape
from typing import Any

import pytest
from sqlalchemy import update

from console.capacity_charts import HEIGHT, WIDTH, sparkline
from console.ranges import Stretch
from control.core.unit_of_work import utc_now
from control.fleet import inventory
from control.health.rollups import take_once
from muster.db.models import Gpu, Node
from muster.domain.states import Contact
from tests.console.conftest import Console, words_of
from tests.fleet_factory import OPERATOR, enrol_host


def recorded(seen: Console) -> None:
    """Two racks; a GPU of r2 has the score 40."""
    enrol_host(seen.units, "beta", rack="r2")
    with seen.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        unit.session.execute(update(Node).values(contact=Contact.LIVE))
        unit.session.execute(update(Node).where(Node.id == seen.fleet.node_id).values(rack="r1&2"))
        unit.session.execute(update(Gpu).where(Gpu.uuid == "GPU-beta-1").values(score=40))
    assert take_once(seen.units)


def test_before_the_first_round_the_page_names_what_takes_one(seen: Console) -> None:
    assert "Nothing is recorded yet" in seen.text("/console/capacity")
    assert "Racks, the worst first" not in seen.text("/console")


def test_the_worst_rack_is_first_on_both_pages_with_its_score_and_capacity(seen: Console) -> None:
    recorded(seen)
    for address in ("/console/capacity", "/console"):
        page = seen.text(address)
        assert page.index("r2 40.0") < page.index("r1&2 100.0"), page
    assert "by=rack&amp;group=r1%262&amp;range=24h" in seen.get("/console").text
    fleet = seen.text("/console/capacity")
    assert "70.0 score 40 worst GPU 4 delivered 4 healthy 0 in use 0 reserved 4 free 0 out" in fleet, fleet


def test_each_kind_has_its_groups_and_each_group_its_page(seen: Console) -> None:
    recorded(seen)
    assert "beta its GPUs 40.0" in seen.text("/console/capacity?by=node")
    assert "No tenant has a GPU now" in seen.text("/console/capacity?by=tenant")
    assert "no site known" in seen.text("/console/capacity?by=site&group=&range=1y")
    rack = seen.text("/console/capacity?by=rack&group=r1%262&range=7d")
    assert "100.0 score" in rack
    assert "muster gpu rollup --by rack --group 'r1&2' --since 7d --csv" in rack


def test_groups_are_sorted_by_the_server_on_each_page_and_in_the_csv(seen: Console) -> None:
    recorded(seen)
    assert take_once(replace(seen.units, clock=lambda: utc_now() - timedelta(days=2)))
    for sort, names in (
        ("-groups.score", ["alpha", "beta"]),
        ("groups.out", ["alpha", "beta"]),
        ("-groups.group", ["beta", "alpha"]),
    ):
        page = seen.text(f"/console/capacity?by=node&sort={sort}")
        assert (page.index("alpha its GPUs") < page.index("beta its GPUs")) == (names[0] == "alpha"), sort
        lines = seen.get(f"/console/capacity.csv?by=node&sort={sort}").text.splitlines()
        assert [line.split(",")[0] for line in lines] == ["group", *names], sort
    for path in ("capacity", "capacity.csv"):
        assert seen.get(f"/console/{path}?sort=groups.colour").status_code == 422
    assert seen.get("/console/capacity.csv", "tenant_member").status_code == 403


def test_groups_continue_on_the_next_page(seen: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(seen)
    monkeypatch.setattr("console.capacity_tables.GROUPS_SHOWN", 1)
    older = ""
    for sort, first, second in (
        ("groups.score", "r2 40.0", "r1&2 100.0"),
        ("-groups.group", "r2 40.0", "r1&2 100.0"),
        ("-groups.out", "r2", "r1&2"),
    ):
        page = seen.get(f"/console/capacity?since={utc_now():%Y-%m-%d}&sort={sort}").text
        (older,) = re.findall(r'href="(/console/capacity[^"]*cursor=[^"]*)#groups-title"', page)
        assert first in words_of(page), sort
        assert second not in words_of(page)
        assert second in seen.text(unescape(older))
    assert seen.get(unescape(older).replace("cursor=", "cursor=x")).status_code == 400
    assert seen.get(unescape(older).replace("by=rack", "by=node")).status_code == 400


def test_the_next_page_keeps_the_group_without_a_name(seen: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(seen)
    monkeypatch.setattr("console.capacity_tables.GROUPS_SHOWN", 1)
    page = seen.get("/console/capacity?by=rack&group=&sort=groups.score").text
    (older,) = re.findall(r'href="(/console/capacity[^"]*cursor=[^"]*)#groups-title"', page)
    following = seen.get(unescape(older)).text
    (drawn, continued) = (re.findall(r"<h1>.*?</h1>|data-charts=\"[^\"]*\"", each) for each in (page, following))
    assert drawn == continued
    assert "no rack known" in drawn[0]


def test_the_charts_have_the_uses_that_add_up_to_what_is_delivered(seen: Console) -> None:
    recorded(seen)
    told: dict[str, Any] = seen.get("/console/capacity.json?range=7d").json()
    capacity, score = told["charts"]
    areas = {line["name"]: line["points"][-1][1] for line in capacity["lines"] if not line.get("is_over")}
    assert areas == {"in use": 0, "reserved": 0, "free": 4, "out": 0}
    assert {line["name"]: line["points"][-1][1] for line in score["lines"]} == {
        "score": 70.0,
        "mean": 85.0,
        "worst GPU": 40,
    }
    (rack, _) = seen.get("/console/capacity.json?by=rack&group=r1%262").json()["charts"]
    assert rack["lines"][2]["points"][0][1] == 2


def test_a_round_before_the_stretch_is_not_drawn(seen: Console) -> None:
    recorded(seen)
    assert take_once(replace(seen.units, clock=lambda: utc_now() - timedelta(days=2)))
    for shown, num_points in (("24h", 1), ("7d", 2), ("1y", 2)):
        (capacity, _) = seen.get(f"/console/capacity.json?range={shown}").json()["charts"]
        assert len(capacity["lines"][0]["points"]) == num_points


def test_dates_and_the_period_before_are_drawn_and_bad_dates_named(seen: Console) -> None:
    recorded(seen)
    assert take_once(replace(seen.units, clock=lambda: utc_now() - timedelta(days=2)))
    (_, score) = seen.get("/console/capacity.json?range=24h&compare=true").json()["charts"]
    assert [line["name"] for line in score["lines"] if line.get("is_before")] == [
        "score, before",
        "mean, before",
        "worst GPU, before",
    ]
    since = (utc_now() - timedelta(days=3)).date()
    free = seen.get(f"/console/capacity.json?since={since}&until=&compare=false").json()["charts"]
    assert len(free[0]["lines"][0]["points"]) == 2
    for query in ("since=2999-01-01", "since=2026-02-30", "until=yesterday", "since=2020-01-01"):
        for page in ("capacity", "capacity.json"):
            answer = seen.get(f"/console/{page}?{query}")
            assert answer.status_code == 422, query
            assert "since" in answer.text or "until" in answer.text


def test_a_tenant_sees_no_capacity_of_others(seen: Console) -> None:
    recorded(seen)
    assert seen.get("/console/capacity", "tenant_member").status_code == 403
    assert seen.get("/console/capacity.json", "tenant_member").status_code == 403
    assert "Racks" not in seen.text("/console", "tenant_member")


def test_a_line_of_scores_ends_at_its_edge_and_breaks_where_rounds_are_missing() -> None:
    now = utc_now()
    day = Stretch(now - timedelta(days=1), now)

    def at(hours: float, score_tenths: int) -> tuple[datetime, int]:
        return now - timedelta(hours=hours), score_tenths

    path = sparkline([at(24, 1000), at(23, 0), at(1, 500), at(0, 1000)], day)
    assert path.split(" h0.5 ")[0] == "M0.0 2.0"
    assert path.count("M") == 2, "from 23 to 1 hours ago nothing was recorded"
    assert path.endswith(f"L{WIDTH:.1f} 2.0")
    assert f" {HEIGHT - 2:.1f}" in path, "a score of 0 is at the foot"
    assert sparkline([], day) == ""
