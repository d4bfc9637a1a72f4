"""The money of the tour: prices are set once, and a charge that no attempt explains ends it."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from local.tour import spending
from local.tour.output import StepFailedError
from muster.client.rest import RestClient
from tests.local.test_tour import world_of
from tests.recorded_server import Answer, RecordedServer, Requested, serving

CARD = {"model": "H100", "tier": "spot", "begins_at": "2026-11-01T00:00:00Z", "price_per_gpu_hour": "3.6"}
COST = {
    "job_id": "job_1",
    "name": "main",
    "tier": "spot",
    "currency": "EUR",
    "gpu_hours": "0.050000",
    "price_per_gpu_hour": "3.6",
    "spent": "0.18",
    "credits": "0",
    "goodput": 0.5,
    "lost_share": 0.25,
    "checkpoint_share": 0.05,
}

UNCHARGED = {**COST, "job_id": "job_3", "name": "second", "gpu_hours": "0.000000", "spent": "0"}


@contextmanager
def stack(cost: dict[str, Any], *, has_rates: bool = True, gpus: int = 2) -> Iterator[RecordedServer]:
    """A control plane with two jobs of the tour, whose attempts had their GPUs for 90 s; the second is not charged."""
    now = time.time()
    moments = {name: datetime.fromtimestamp(at, UTC).isoformat() for name, at in (("at", now), ("end", now + 90))}
    job = {"id": "job_1", "name": "main", "spec": {"labels": {"tour": "yes"}}, "created_at": moments["at"]}
    queued = {**job, "id": "job_3", "name": "second"}
    foreign = {**job, "id": "job_2", "spec": {"labels": {}}}
    attempt = {"placed_at": moments["at"], "ended_at": moments["end"], "hosts": [{"gpus": ["GPU-1"] * gpus}]}
    rates: dict[str, Any] = {"cards": [CARD]} if has_rates else {}
    answers: dict[str, Any] = {
        "/v1/policy": {"document": {"tiers": {"spot": {}, "night": {}}}},
        "/v1/gpus": {"items": [{"model": "H100"}], "next_cursor": None},
        "/v1/jobs": {"items": [job, queued, foreign], "next_cursor": None},
        "/v1/jobs/job_1": {**job, "attempts": [attempt]},
        "/v1/jobs/job_3": {**queued, "attempts": [attempt]},
        "/v1/job-comparisons": {"items": [cost, UNCHARGED], "next_cursor": None},
    }

    def answer(requested: Requested, _number: int) -> Answer:
        path = requested.path.split("?")[0]
        if path == "/v1/rates" and requested.method == "POST":
            rates.update(json.loads(requested.body)["document"])
        return Answer(200, {"document": rates or None} if path == "/v1/rates" else answers[path])

    with serving(answer) as server:
        yield server


def shown(cost: dict[str, Any], folder: Path, **given: Any) -> tuple[str, list[Requested]]:
    with stack(cost, **given) as server, RestClient(server.url, "mst_test") as client:
        world, said = world_of(client, folder)
        world.teller.started_s = time.monotonic() - 5
        spending.spend(world)
    return said.getvalue(), server.requested


def test_the_jobs_of_the_tour_have_their_cost_and_their_accounts(tmp_path: Path) -> None:
    said, requested = shown(COST, tmp_path)
    assert "180 GPU-seconds are charged, and no job's are more than its attempts had" in said
    assert "50% trained, 25% lost or trained again, 5% in checkpoints" in said
    assert "0.18 EUR" in said
    assert [each.path for each in requested if "job-comparisons" in each.path] == [
        "/v1/job-comparisons?job=job_1&job=job_3"
    ]
    assert {each.method for each in requested} == {"GET"}, "prices that are set stay"


def test_prices_are_set_for_each_tier_where_there_are_none(tmp_path: Path) -> None:
    cost = {**COST, "price_per_gpu_hour": "0.9", "spent": "0.045"}
    _, requested = shown(cost, tmp_path, has_rates=False)
    (made,) = [json.loads(each.body)["document"]["cards"] for each in requested if each.method == "POST"]
    assert [(card["tier"], card["price_per_gpu_hour"]) for card in made] == [("night", "3.00"), ("spot", "0.90")]


@pytest.mark.parametrize(
    ("cost", "gpus", "words"),
    [
        (COST, 1, "charged for more: main"),
        ({**COST, "spent": "0.19"}, 2, "unpriced or wrong: main"),
        ({**COST, "spent": None, "credits": None}, 2, "unpriced or wrong: main"),
        ({**COST, "price_per_gpu_hour": "7.2", "spent": "0.36"}, 2, "unpriced or wrong: main"),
    ],
    ids=["more than was assigned", "not hours times price", "unpriced", "another price"],
)
def test_a_charge_that_nothing_explains_ends_the_tour(
    cost: dict[str, Any], gpus: int, words: str, tmp_path: Path
) -> None:
    with pytest.raises(StepFailedError, match=words):
        shown(cost, tmp_path, gpus=gpus)
