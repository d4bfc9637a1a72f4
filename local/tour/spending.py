"""The money of step 7: what the tour's own jobs cost by the account of their GPU time."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from local.tour.world import LABEL, Document, World, seconds_of

PRICES: Final[Mapping[str, str]] = {"reserved": "3.50", "on_demand": "3.00", "spot": "0.90"}
"""An hour of a GPU by tier, where none are set; other tiers cost as much as on_demand."""
CURRENCY: Final = "EUR"
MOST_JOBS: Final = 20
_ROUNDING_S: Final = 1.0
_LEAST: Final = Decimal("0.000001")


def spend(world: World) -> None:
    """Set prices if none are set, and check what the jobs of this tour cost against the time of their attempts."""
    begun_s = time.time() - (time.monotonic() - world.teller.started_s)
    _price(world, begun_s)
    own = [job for job in world.tenant.jobs(limit=200) if _is_ours(job, begun_s)][:MOST_JOBS]
    if not own:
        return
    jobs = world.until(
        "what the jobs cost is known",
        lambda: world.tenant.compare_jobs([job["id"] for job in own])["items"],
        bool,
        seen=str,
        log="api",
    )
    _require_assigned(world, own, jobs)
    _require_priced(world, jobs)


def _price(world: World, begun_s: float) -> None:
    if world.operator.rates()["document"] is not None:
        return
    begins = datetime.fromtimestamp(begun_s, UTC).replace(minute=0, second=0, microsecond=0)
    tiers = world.operator.policy()["document"]["tiers"]
    cards = [
        {
            "model": model,
            "tier": tier,
            "begins_at": f"{begins:%Y-%m-%dT%H:%M:%SZ}",
            "price_per_gpu_hour": PRICES.get(tier, PRICES["on_demand"]),
        }
        for model in sorted({gpu["model"] for gpu in world.operator.gpus()})
        for tier in sorted(tiers)
    ]
    world.operator.set_rates({"currency": CURRENCY, "cards": cards}, "prices of the tour")


def _is_ours(job: Document, begun_s: float) -> bool:
    return job["spec"]["labels"].get(LABEL) is not None and seconds_of(job["created_at"]) >= begun_s


def _require_assigned(world: World, own: Sequence[Document], jobs: Sequence[Document]) -> None:
    """Require that no job is charged more GPU-seconds than its attempts had, and show what they were."""
    charged_s = {job["job_id"]: float(job["gpu_hours"]) * 3600 for job in jobs}
    assigned_s = {job["id"]: sum(map(_assigned_s, world.tenant.job(job["id"])["attempts"])) for job in own}
    more = [job["name"] for job in own if charged_s[job["id"]] > assigned_s[job["id"]] + _ROUNDING_S]
    shares = {name: _share(jobs, name) for name in ("goodput", "lost_share", "checkpoint_share")}
    world.require(
        f"{sum(charged_s.values()):,.0f} GPU-seconds are charged, and no job's are more than its attempts had",
        f"charged for more: {', '.join(more)}"
        if more
        else f"{shares['goodput']:.0%} trained, {shares['lost_share']:.0%} lost or trained again, "
        f"{shares['checkpoint_share']:.0%} in checkpoints; the rest started, was slowed or idle",
        "api",
        is_so=sum(charged_s.values()) > 0 and not more,
    )


def _require_priced(world: World, jobs: Sequence[Document]) -> None:
    """Require that each job costs its GPU-hours at their price, except for what is given back."""
    unpriced = [job["name"] for job in jobs if job["spent"] is None]
    due = sum((Decimal(job["spent"]) for job in jobs if job["spent"] is not None), Decimal(0))
    given_back = sum((Decimal(job["credits"]) for job in jobs if job["credits"] is not None), Decimal(0))
    prices = _prices_by_tier(world)
    wrong = [job["name"] for job in jobs if job["spent"] is not None and not _is_priced_right(job, prices)]
    currency = jobs[0]["currency"]
    world.require(
        "each job costs its GPU-hours at a price of its tier",
        f"{due:.2f} {currency}, {given_back:.2f} of faults given back; "
        + (f"unpriced or wrong: {', '.join([*unpriced, *wrong])}" if unpriced or wrong else _dearest(jobs)),
        "api",
        is_so=not unpriced and not wrong,
    )


def _prices_by_tier(world: World) -> dict[str, list[Decimal]]:
    found: dict[str, list[Decimal]] = {}
    for card in (world.operator.rates()["document"] or {}).get("cards", ()):
        found.setdefault(card["tier"], []).append(Decimal(card["price_per_gpu_hour"]))
    return found


def _is_priced_right(job: Document, prices: Mapping[str, Sequence[Decimal]]) -> bool:
    hours, price = Decimal(job["gpu_hours"]), Decimal(job["price_per_gpu_hour"] or 0)
    if not hours:
        return Decimal(job["spent"]) == 0
    known = prices.get(job["tier"], ())
    is_of_its_tier = bool(known) and min(known) - _LEAST <= price <= max(known) + _LEAST
    charged = Decimal(job["spent"]) - Decimal(job["credits"])
    return is_of_its_tier and abs(hours * price - charged) <= (price + 1) * _LEAST


def _dearest(jobs: Sequence[Document]) -> str:
    first = max(jobs, key=lambda job: Decimal(job["spent"]))
    return f"the dearest is {first['name']} in {first['tier']} with {Decimal(first['spent']):.2f}"


def _assigned_s(attempt: Document) -> float:
    until_s = time.time() if attempt["ended_at"] is None else seconds_of(attempt["ended_at"])
    num_gpus = sum(len(host["gpus"]) for host in attempt["hosts"])
    return num_gpus * (until_s - seconds_of(attempt["placed_at"]))


def _share(jobs: Sequence[Mapping[str, Any]], name: str) -> float:
    """Return the share over all jobs, by their GPU-hours."""
    hours = sum(float(job["gpu_hours"]) for job in jobs if job[name] is not None)
    return sum(float(job["gpu_hours"]) * job[name] for job in jobs if job[name] is not None) / hours if hours else 0.0
