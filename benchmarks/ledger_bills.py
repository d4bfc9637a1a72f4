"""A month of 1,000 GPUs closed hour by hour in PostgreSQL: sums and bills through the API against the true ones.

Prices change in the middle of the month. Faults and reclaims give time back. What the API answers must be the truth to
the millisecond and to the cent; inside of gap markers, whose hours it counts, the stored time stands for it.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import httpx

from benchmarks.console_stage import Stage, analyse, stage
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.ledger_agreement import Agreement, LineKey, agreement_of, ends_of, expected_lines
from benchmarks.ledger_rows import MonthRows
from benchmarks.sizes import Sizes
from control.ledger import rates
from ledger.accounts import Account
from muster.db.engine import NO_LIMITS, make_engine
from muster.domain.principals import Principal, Role
from muster.domain.rates import CreditedAccount, RateCard, RateCards
from simulator.month.facts import MODEL
from simulator.month.history import Shape, play_month
from simulator.month.reports import Reports, silences_of

SEED: Final = 7
SIZES: Final = Sizes(
    full=Shape(num_nodes=125, days=30.0), smallest=Shape(4, 0.5, failures_a_day=8.0, repair_s=14_400.0)
)
PRICES: Final[Mapping[str, tuple[str, ...]]] = {
    "reserved": ("2.10", "1.95"),
    "on_demand": ("3.4321", "3.30"),
    "spot": ("1.05", "0.999999"),
}
"""Price of a GPU-hour by tier, before and after the middle of the month."""
_END: Final = datetime(2026, 11, 1, tzinfo=UTC)
MONTH: Final = "2026-10"


@dataclass(frozen=True, slots=True)
class Bills:
    """Differences between the API and the truth: milliseconds of sums, lines of bills, and cents that are due."""

    sums_ms: int
    lines: int
    cents: int
    num_lines: int
    due: Decimal
    credits: Decimal


def measure(size: Shape) -> Groups:
    with stage(64) as ours:
        found, bills, num_computed, took_s = agreed(ours, size)
    for fault in found.faults:
        print(fault)
    state = found.state
    peers = {
        **ends_of(play_month(size, SEED)),
        "hours computed": float(num_computed),
        "corrections": float(state["corrections"]),
        "hours with gap markers": float(state["marked"]),
        "GPU-hours compared": float(found.num_cells - found.num_marked),
        "GPU-hours inside gap markers": float(found.num_marked),
        "took s": took_s,
    }
    money = {"bill lines": float(bills.num_lines), "due": float(bills.due), "credits": float(bills.credits)}
    name = f"ledger: {size.days:g} days of {size.num_gpus:,} GPUs in PostgreSQL"
    wrong = found.num_different + found.num_counted_twice + found.num_facts_different
    yield [
        Figure(f"{name}: GPU-hours unlike the truth outside gap markers", wrong, "", 0.0, peers=peers,
               basis=Basis.COUNT),
        Figure(f"{name}: unexplained", state["unexplained_ms"], "ms", 0.0, basis=Basis.COUNT),
        Figure(f"{name}: hours not closed", state["open"], "", 0.0, basis=Basis.COUNT),
        Figure(f"{name}: sums through the API unlike the truth", bills.sums_ms, "ms", 0.0, basis=Basis.COUNT),
        Figure(f"{name}: bill lines unlike time × price", bills.lines, "", 0.0, peers=money, basis=Basis.COUNT),
        Figure(f"{name}: what tenants owe unlike the truth", bills.cents, "cents", 0.0, basis=Basis.COUNT),
    ]  # fmt: skip


def agreed(ours: Stage, size: Shape) -> tuple[Agreement, Bills, int, float]:
    """Play the month on the stage. Return how ledger and bills agree, how many hours were computed, and the seconds."""
    began_s = time.perf_counter()
    history = play_month(size, SEED)
    reports = Reports(history, silences_of(history, SEED))
    begin = _END - timedelta(days=size.days)
    middle = size.num_hours // 2
    engine = make_engine(ours.postgres.url(), limits=NO_LIMITS)
    try:
        rows = MonthRows(engine, reports, begin)
        rows.fill()
        _set_prices(rows, begin, begin + timedelta(hours=middle))
        num_computed = rows.play()
        analyse(engine)
        found = agreement_of(engine, reports, begin, (middle,))
    finally:
        engine.dispose()
    with httpx.Client(base_url=ours.url, headers=ours.by_key, timeout=120) as client:
        bills = _bills(client, found, begin, begin + timedelta(hours=middle))
    return found, bills, num_computed, time.perf_counter() - began_s


def _set_prices(rows: MonthRows, begin: datetime, middle: datetime) -> None:
    cards = [
        RateCard(model=MODEL, tier=tier, begins_at=at, price_per_gpu_hour=price)
        for tier, prices in PRICES.items()
        for at, price in zip((begin, middle), prices, strict=True)
    ]
    wanted = RateCards(
        currency="EUR",
        credited_accounts=(CreditedAccount.REPLAYED, CreditedAccount.RECLAIM_LOST),
        cards=tuple(cards),
    )
    with rows.units.begin(Principal("month", Role.OPERATOR), rates.SET) as unit:
        rates.set_rates(unit, wanted, reason="the benchmark")


def _bills(client: httpx.Client, found: Agreement, begin: datetime, middle: datetime) -> Bills:
    span = f"since={begin:%Y-%m-%dT%H:%M:%SZ}&until={_END:%Y-%m-%dT%H:%M:%SZ}"
    summed: Counter[tuple[str, Account]] = Counter()
    answer: Any = client.get(f"/v1/ledger?{span}&group=tenant&group=account&limit=1000").raise_for_status().json()
    for one in answer["sums"]:
        summed[one["tenant_id"] or "", Account(one["account"])] += one["num_ms"]
    sums_ms = sum(abs(summed[key] - found.expected_ms[key]) for key in summed.keys() | found.expected_ms.keys())
    expected = expected_lines(found, PRICES)
    num_wrong = num_lines = cents = 0
    due = credits_ = Decimal(0)
    for tenant_id in sorted({key.tenant_id for key in expected}):
        path = f"/v1/statements/{MONTH}?tenant_id={tenant_id}"
        statement: Any = client.get(path).raise_for_status().json()
        lines = {_key(tenant_id, line, middle): _amounts(line) for line in statement["lines"]}
        own = {key: amounts for key, amounts in expected.items() if key.tenant_id == tenant_id}
        differing = [key for key in lines.keys() | own.keys() if lines.get(key) != own.get(key)]
        for key in differing[:5]:
            found.faults.append(f"{key}: {lines.get(key)}, truly {own.get(key)}")
        num_wrong += len(differing)
        num_lines += len(lines)
        true_due = sum((amount + credit for amount, credit in own.values()), Decimal(0))
        cents += int(abs(Decimal(statement["sums"]["due"]) - true_due) * 100)
        due += Decimal(statement["sums"]["due"])
        credits_ += Decimal(statement["sums"]["credits"])
    return Bills(sums_ms, num_wrong, cents, num_lines, due, credits_)


def _key(tenant_id: str, line: Mapping[str, Any], middle: datetime) -> LineKey:
    period = int(datetime.fromisoformat(line["from_at"]) >= middle)
    return LineKey(tenant_id, line["job_id"], line["tier"], period, Account(line["account"]))


def _amounts(line: Mapping[str, Any]) -> tuple[Decimal, Decimal]:
    return Decimal(line["amount"]), Decimal(line["credit"])
