"""What a scenario says of a plan that is only asked for, and of a job that planned work keeps waiting."""

from typing import Any

from simulator.scenarios.document import Scenario
from simulator.scenarios.world import play

TOPOLOGY = {"nodes": [{"names": "a[0-1]", "path": ["A"]}]}


def requested(**document: Any) -> list[dict[str, Any]]:
    return play(Scenario.model_validate({"topology": TOPOLOGY, **document}))


def only(decisions: list[dict[str, Any]], kind: str, job: str) -> dict[str, Any]:
    (found,) = [one for one in decisions if (one["kind"], one["job"]) == (kind, job)]
    return found


def test_a_plan_that_takes_from_others_states_what_that_costs_and_when_it_starts() -> None:
    victim = {"name": "victim", "tier": "spot", "nodes": ["a0", "a1"], "started_s": -7200, "last_checkpoint_s": -60}
    decisions = requested(
        jobs={"running": [victim]},
        policy={"reclaim": {"cap_fraction": 1.0}},
        requests=[
            {"at_s": 10, "plan": {"name": "gang", "tier": "reserved", "nodes": 2}},
            {"at_s": 10, "submit": {"name": "gang", "tier": "reserved", "nodes": 2}},
        ],
    )
    planned, reclaim = only(decisions, "planned", "gang"), only(decisions, "reclaim", "gang")
    assert planned["cost_gpu_s"] == reclaim["cost_gpu_s"] >= 16 * 70
    assert planned["starts"] == {"earliest_s": 130.0, "latest_s": 130.0}


def test_a_plan_that_waits_states_within_which_range_it_starts() -> None:
    decisions = requested(
        jobs={"running": [{"name": "busy", "nodes": ["a0", "a1"], "wall_time_s": 1000}]},
        requests=[{"at_s": 10, "plan": {"name": "one"}}],
    )
    planned = only(decisions, "planned", "one")
    assert 10 < planned["starts"]["earliest_s"] < planned["starts"]["latest_s"] < 1100
    assert "cost_gpu_s" not in planned


def test_a_plan_that_starts_at_once_has_neither() -> None:
    planned = only(requested(requests=[{"at_s": 10, "plan": {"name": "one"}}]), "planned", "one")
    assert not {"starts", "cost_gpu_s"} & set(planned)


WORK = [{"domain": "A", "starts_s": 7200, "lasts_s": 3600, "lead_s": 600}]


def test_what_has_a_place_after_planned_work_is_shown_how_many_hosts_it_is_on() -> None:
    jobs = {"queued": [{"name": "long", "nodes": 2, "wall_time_s": 10_800}]}
    decisions = requested(maintenance=WORK, jobs=jobs, until_s=11_000)
    by_then = "become free by 2000-01-01T03:00:00Z without reclaim, once planned work on 2 hosts is over"
    before, during = (one["why"] for one in decisions if one["kind"] == "held")
    assert f"{by_then}, and 16 of the 16 that it will start on are idle" in before
    assert f"{by_then}, and 0 of the 16 that it will start on are idle" in during
    assert only(decisions, "placed", "long")["at_s"] == 10_800.0


def test_what_fits_only_after_planned_work_is_reported_when_hosts_close_and_when_it_is_over() -> None:
    decisions = requested(
        policy={"queue": {"holds_per_cohort": 0}},
        maintenance=WORK,
        jobs={"queued": [{"name": "long", "nodes": 2, "wall_time_s": 10_800}]},
        requests=[{"at_s": 1, "plan": {"name": "asked", "nodes": 2, "wall_time_s": 10_800}}],
        until_s=11_000,
    )
    waits = [one["why"] for one in decisions if (one["kind"], one["job"]) == ("waits", "long")]
    for why in (waits[0], only(decisions, "planned", "asked")["why"]):
        assert "close for planned work before it would end, the first at 2000-01-01T01:50:00Z" in why, "lead_s before"
        assert "with every GPU idle it fits if it ends before hosts close for planned work, or starts once" in why
        assert why.endswith("the planned work is over on 2 hosts at 2000-01-01T03:00:00Z")
        assert "even with every GPU idle" not in why
    assert waits[1].endswith("over on 2 hosts at 2000-01-01T03:00:00Z"), "while it lasts"
    assert only(decisions, "placed", "long")["at_s"] == 10_800.0


def test_what_fits_before_planned_work_is_placed_or_reported_the_wall_time_with_which_it_would_be() -> None:
    requests = [
        {"at_s": at_s, "plan": {"name": name, "nodes": 2, "wall_time_s": wall_time_s}}
        for at_s, name, wall_time_s in ((1, "short", 6_000), (2, "between", 6_700))
    ]
    decisions = requested(maintenance=WORK, requests=requests)
    assert only(decisions, "planned", "short")["nodes"] == ["a0", "a1"]
    (change,) = only(decisions, "planned", "between")["changes"]
    assert 6_000 < change["wall_time_s"] < 6_600, "gone before hosts close"


def test_planned_work_that_is_in_no_way_is_not_reported() -> None:
    decisions = requested(
        maintenance=[{"nodes": ["a1"], "starts_s": 7200}],
        jobs={"queued": [{"name": "wide", "nodes": 3, "wall_time_s": 60}]},
    )
    assert "planned work" not in only(decisions, "waits", "wide")["why"]


def test_a_window_leaves_a_cordon_by_hand_and_a_longer_window_as_they_are() -> None:
    decisions = requested(
        topology={"nodes": [{"names": "a0"}]},
        gpus=[{"node": "a0", "is_cordoned": True}],
        maintenance=[{"nodes": ["a0"], "starts_s": 100, "lasts_s": 60}],
        jobs={"queued": [{"name": "one", "wall_time_s": 60}]},
        requests=[{"at_s": 400, "change": {"node": "a0"}}],
    )
    assert only(decisions, "placed", "one")["at_s"] == 400
    longer = [{"nodes": ["a0"], "starts_s": 50, "lasts_s": 600}, {"nodes": ["a0"], "starts_s": 100, "lasts_s": 60}]
    decisions = requested(
        topology={"nodes": [{"names": "a0"}]},
        maintenance=longer,
        requests=[{"at_s": 200, "submit": {"name": "one", "wall_time_s": 60}}],
        until_s=900,
    )
    assert only(decisions, "placed", "one")["at_s"] >= 650


def test_what_ends_while_it_waits_is_not_placed_and_ends_once() -> None:
    decisions = requested(
        jobs={"running": [{"name": "busy", "nodes": ["a0", "a1"], "duration_s": 100}], "queued": [{"name": "one"}]},
        requests=[{"at_s": 10, "end": "one"}, {"at_s": 20, "end": "one"}, {"at_s": 30, "cancel": "one"}],
        until_s=200,
    )
    assert [(one["at_s"], one["kind"]) for one in decisions if one["job"] == "one"] == [(0, "waits"), (10, "ended")]


def test_the_end_of_planned_work_is_not_notified_of_work_that_keeps_none_waiting() -> None:
    decisions = requested(
        gpus=[{"node": "a0", "is_cordoned": True}],
        maintenance=[{"nodes": ["a1"], "starts_s": 90_000}],
        jobs={
            "running": [{"name": "busy", "nodes": ["a1"], "duration_s": 600}],
            "queued": [{"name": "one", "wall_time_s": 60}],
        },
    )
    assert "planned work" not in only(decisions, "waits", "one")["why"]
