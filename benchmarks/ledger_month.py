"""The page of a month: sums of GPU time over 31 days of 10,000 GPUs, through the API and its own process.

The executive page of that month is measured too: it has facts of figures, and the month before as well.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import httpx
from sqlalchemy import text

from benchmarks.console_stage import stage
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from control.ledger.measuring import MEASURED
from muster.db.engine import NO_LIMITS, make_engine

BAR_MS: Final = 300.0
_MONTH: Final = datetime(2026, 10, 1, tzinfo=UTC)
_SPAN: Final = "since=2026-10-01T05:00:00Z&until=2026-11-01T00:00:00Z"
PAGES: Final = {
    "by account": f"/v1/ledger?{_SPAN}",
    "by tenant and account": f"/v1/ledger?{_SPAN}&group=tenant&group=account",
    "by rack and account": f"/v1/ledger?{_SPAN}&group=rack&group=account",
    "by day and account": f"/v1/ledger?{_SPAN}&group=day&group=account",
    "of one tenant by cause": f"/v1/ledger?{_SPAN}&group=account&group=cause&tenant_id=ten_3",
}
EXECUTIVE: Final = "/console/executive?since=2026-10-01&until=2026-10-31"
_FACTS: Final = text("""
INSERT INTO ledger_facts (begins_at, span_s, account, cause, tenant_id, tier, job_class, model, cohort_key, rack, site,
    num_ms)
SELECT CAST(:month AS timestamptz) + begun * interval '1 hour', 3600, account, '',
    'ten_' || (rack + tenant) % 20, (ARRAY['reserved', 'on_demand', 'spot'])[1 + tenant % 3], '', 'NVIDIA H100',
    'h100-' || rack % 5, 'rack-' || rack, 'site-' || rack % 3, 60000 + (begun * 7919 + rack * 31 + tenant) % 50000
FROM generate_series(0, :hours - 1) AS begun, generate_series(0, :racks - 1) AS rack,
    generate_series(0, 5) AS tenant,
    unnest(ARRAY['productive', 'starting', 'saving', 'idle', 'cleaning', 'replayed', 'reclaim_lost']) AS account
UNION ALL
SELECT CAST(:month AS timestamptz) + begun * interval '1 hour', 3600, account, cause, '', '', '', 'NVIDIA H100',
    'h100-' || rack % 5, 'rack-' || rack, 'site-' || rack % 3, 30000 + (begun * 104729 + rack) % 20000
FROM generate_series(0, :hours - 1) AS begun, generate_series(0, :racks - 1) AS rack,
    (VALUES ('free', ''), ('pending', 'capacity'), ('pending', 'fragmentation'), ('cordoned', 'maintenance'),
        ('quarantined', 'finding'), ('draining', 'drain')) AS kinds (account, cause)
""")
_DAYS: Final = text("""
INSERT INTO ledger_facts (begins_at, span_s, account, cause, tenant_id, tier, job_class, model, cohort_key, rack, site,
    num_ms)
SELECT date_trunc('day', begins_at, 'UTC'), 86400, account, cause, tenant_id, tier, job_class, model, cohort_key, rack,
    site, sum(num_ms)
FROM ledger_facts WHERE span_s = 3600 GROUP BY 1, 3, 4, 5, 6, 7, 8, 9, 10, 11
""")
_DAYS_BEFORE: Final = text("""
INSERT INTO ledger_facts (begins_at, span_s, account, cause, tenant_id, tier, job_class, model, cohort_key, rack, site,
    num_ms)
SELECT begins_at - interval '31 days', span_s, account, cause, tenant_id, tier, job_class, model, cohort_key, rack,
    site, num_ms
FROM ledger_facts WHERE span_s = 86400
""")
_HOURS: Final = text("""
INSERT INTO ledger_hours (hour, computed_at, closed_at, revision, num_gpus, capacity_ms, unexplained_ms, awaits, gaps,
    measured)
SELECT CAST(:month AS timestamptz) + begun * interval '1 hour', now(), now(), 0, :gpus, 0, 0, 0, '{}',
    jsonb_object_agg(name, 60000)
FROM generate_series(-:hours, :hours - 1) AS begun, unnest(CAST(:measured AS text[])) AS name GROUP BY begun
""")
_FIGURES: Final = text("""
INSERT INTO figure_facts (figure, part, begins_at, span_s, tenant_id, tier, job_class, site, num, total, least, most,
    buckets, counts)
SELECT figure, part, CAST(:month AS timestamptz) + day * interval '1 day', 86400, 'ten_' || tenant, tier, job_class,
    'site-' || site, 10, 50000, CASE WHEN has_spread THEN 1 END, CASE WHEN has_spread THEN 1000 END,
    CASE WHEN has_spread THEN ARRAY[1, 2, 3, 4, 5, 6, 7, 8, 9, 10] ELSE '{}' END,
    CASE WHEN has_spread THEN ARRAY[1, 1, 1, 1, 1, 1, 1, 1, 1, 1] ELSE '{}' END
FROM (VALUES ('job_success', 'succeeded', false), ('job_success', 'own', false),
        ('job_success', 'infrastructure', false), ('job_success', 'cancelled', false),
        ('time_to_complete', 'undisturbed', true), ('convergence', 'fell', false), ('convergence', 'rose', false)
    ) AS parts (figure, part, has_spread),
    generate_series(-:days, :days - 1) AS day, generate_series(0, 19) AS tenant,
    unnest(ARRAY['reserved', 'on_demand', 'spot']) AS tier, unnest(ARRAY['standard', 'production']) AS job_class,
    generate_series(0, 2) AS site
""")


@dataclass(frozen=True, slots=True)
class Size:
    """``gpus`` of the fleet whose month is summed up. ``times``: each page."""

    gpus: int
    days: int
    times: int


SIZES: Final = Sizes(full=Size(gpus=10_000, days=31, times=40), smallest=Size(gpus=128, days=2, times=1))


def measure(size: Size) -> Groups:
    with stage(64) as ours:
        num_facts, num_days = _fill(ours.postgres.url(), size)
        with httpx.Client(base_url=ours.url, headers=ours.by_key, timeout=60) as client:
            took = {name: sorted(_took_ms(client, path, size.times)) for name, path in PAGES.items()}
        with httpx.Client(base_url=ours.url, headers=ours.by_cookie, timeout=60) as client:
            executive = _p95(sorted(_page_ms(client, EXECUTIVE, size.times)))
        peers = {f"{name} p95 ms": _p95(own) for name, own in took.items()}
        peers |= {"facts": float(num_facts), "facts by day": float(num_days)}
        worst = max(map(_p95, took.values()))
        name = f"ledger: a month's page of {size.gpus:,} GPUs through the API, p95 of the slowest page"
        page = f"console: the executive page of a month of {size.gpus:,} GPUs, p95"
        yield [
            Figure(name, worst, "ms", BAR_MS, peers=peers, basis=Basis.BUSY),
            Figure(page, executive, "ms", BAR_MS, basis=Basis.BUSY),
        ]


def _fill(url: str, size: Size) -> tuple[int, int]:
    racks, hours = max(1, size.gpus // 128), size.days * 24
    engine = make_engine(url, limits=NO_LIMITS)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM ledger_hours"))
        num_facts = connection.execute(_FACTS, {"month": _MONTH, "hours": hours, "racks": racks}).rowcount
        num_days = connection.execute(_DAYS).rowcount
        connection.execute(_DAYS_BEFORE)
        known = {"month": _MONTH, "hours": hours, "gpus": size.gpus, "measured": list(MEASURED)}
        connection.execute(_HOURS, known)
        connection.execute(_FIGURES, {"month": _MONTH, "days": size.days})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE ledger_facts, figure_facts, ledger_hours"))
    engine.dispose()
    return num_facts, num_days


def _took_ms(client: httpx.Client, path: str, times: int) -> Iterator[float]:
    """Yield the milliseconds of each request; the first one, which plans the statement, comes before."""
    found: Any = client.get(path).raise_for_status().json()
    if not found["sums"] or not found["is_whole"]:
        raise AssertionError(f"{path} has no sums, or not all")
    for _ in range(times):
        began_s = time.perf_counter()
        client.get(path).raise_for_status()
        yield (time.perf_counter() - began_s) * 1000


def _page_ms(client: httpx.Client, path: str, times: int) -> Iterator[float]:
    """Yield the milliseconds of each request for a page with costs; the first one, which plans, comes before."""
    if "ten_3" not in client.get(path).raise_for_status().text:
        raise AssertionError(f"{path} names no tenant")
    for _ in range(times):
        began_s = time.perf_counter()
        client.get(path).raise_for_status()
        yield (time.perf_counter() - began_s) * 1000


def _p95(ordered: list[float]) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)]
