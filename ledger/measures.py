"""Figures over the ledger, each defined once: its formula and where the formula comes from.

A figure is None where there is nothing to divide by. Each sum is over a window, corrections included.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ledger.accounts import UNAVAILABLE, Account
from ledger.figures.definitions import Better
from muster.domain.amounts import MS_PER_HOUR

_OUT: Final = UNAVAILABLE | {Account.RETIRED}
IDLE: Final = (Account.SUSPECT, Account.SPARE, Account.HOLD, Account.DRAINING, Account.PENDING, Account.FREE)
WHILE_WAITING: Final = (Account.PENDING, Account.HOLD)


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of GPUs by account: assigned to attempts or being cleaned after one, and all others."""

    of_attempts: Mapping[Account, int] = field(default_factory=dict)
    of_no_attempt: Mapping[Account, int] = field(default_factory=dict)

    @property
    def capacity_ms(self) -> int:
        return sum(self.of_attempts.values()) + sum(self.of_no_attempt.values())


@dataclass(frozen=True, slots=True)
class JobTime:
    """Milliseconds of GPUs of jobs. ``run_ms``: from a job's first start to its end, its pauses between attempts too.

    A job counts with as many GPUs as it had last. ``productive_ms``: of all its GPUs.
    """

    productive_ms: int = 0
    run_ms: int = 0


@dataclass(frozen=True, slots=True)
class IdleTime:
    """Milliseconds of idle GPUs by place, of each hour apart.

    ``on_used_ms``: on hosts of which an attempt used a GPU in the same hour. ``in_used_racks_ms``: on other hosts of
    racks with such a host. ``waiting_ms``: of ``all_ms``, while a job waits.
    """

    all_ms: int = 0
    on_used_ms: int = 0
    in_used_racks_ms: int = 0
    waiting_ms: int = 0
    waiting_on_used_ms: int = 0


@dataclass(frozen=True, slots=True)
class Outage:
    """GPUs or a host that left service by a fault. ``out_ms``: until they were back; None: they are not."""

    out_ms: int | None


@dataclass(frozen=True, slots=True)
class Window:
    times: Times
    jobs: JobTime = field(default_factory=JobTime)
    idle: IdleTime = field(default_factory=IdleTime)
    outages: tuple[Outage, ...] = ()


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure. ``source``: what defines it so. ``better``: which values are."""

    name: str
    unit: str
    formula: str
    source: str
    of: Callable[[Window], float | None]
    better: Better = "higher"


def _allocation(window: Window) -> float | None:
    return _share(sum(window.times.of_attempts.values()), window.times.capacity_ms)


def _utilisation(window: Window) -> float | None:
    used = window.times.of_attempts
    return _share(sum(used.values()) - used.get(Account.CLEANING, 0), window.times.capacity_ms)


def _goodput(window: Window) -> float | None:
    return _share(window.times.of_attempts.get(Account.PRODUCTIVE, 0), window.times.capacity_ms)


def _ettr(window: Window) -> float | None:
    found = _share(window.jobs.productive_ms, window.jobs.run_ms)
    return None if found is None else min(found, 1.0)


def _availability(window: Window) -> float | None:
    return _share(_in_service_ms(window.times), window.times.capacity_ms - _all(window.times, (Account.RETIRED,)))


def _idle_while_waiting(window: Window) -> float | None:
    return _share(_all(window.times, WHILE_WAITING), window.times.capacity_ms)


def _scattered(window: Window) -> float | None:
    return _share(window.idle.waiting_on_used_ms, window.idle.waiting_ms)


def _fragmented_nodes(window: Window) -> float | None:
    return _share(window.idle.on_used_ms, window.idle.all_ms)


def _fragmented_racks(window: Window) -> float | None:
    return _share(window.idle.in_used_racks_ms, window.idle.all_ms)


def _mtbf(window: Window) -> float | None:
    found = _share(_in_service_ms(window.times), len(window.outages))
    return None if found is None else found / MS_PER_HOUR


def _mttr(window: Window) -> float | None:
    ended = [one.out_ms for one in window.outages if one.out_ms is not None]
    found = _share(sum(ended), len(ended))
    return None if found is None else found / MS_PER_HOUR


def _in_service_ms(times: Times) -> int:
    return times.capacity_ms - sum(times.of_no_attempt.get(account, 0) for account in _OUT)


def _all(times: Times, accounts: Sequence[Account]) -> int:
    return sum(times.of_no_attempt.get(account, 0) for account in accounts)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


SIMULATOR: Final = "simulator/traces/report.py"
LEDGER_FIGURES: Final = (
    Measure(
        "allocation",
        "share",
        "GPU time assigned to attempts or being cleaned after one ÷ enrolled GPU time",
        "this ledger",
        _allocation,
    ),
    Measure(
        "utilisation",
        "share",
        "GPU time that attempts had, from the placement to the exit ÷ enrolled GPU time",
        f"{SIMULATOR}: Report.utilisation",
        _utilisation,
    ),
    Measure(
        "goodput",
        "share",
        "productive GPU time: first executions of steps, without saves and slowness ÷ enrolled GPU time",
        f"{SIMULATOR}: Report.goodput",
        _goodput,
    ),
    Measure(
        "ettr",
        "share",
        "productive GPU time of jobs ÷ their GPUs × the time from the first start to the end; 1 at most",
        f"{SIMULATOR}: Report.ettr; Kokolis et al., HPCA 2025, without the wait before the first start",
        _ettr,
    ),
    Measure(
        "availability",
        "share",
        "GPU time in which the fleet could give the GPU to a job, or had ÷ enrolled GPU time that is not retired",
        "this ledger",
        _availability,
    ),
    Measure(
        "idle_while_waiting",
        "share",
        "GPU time pending or held for a job ÷ enrolled GPU time",
        f"{SIMULATOR}: Fragmentation.idle_while_waiting",
        _idle_while_waiting,
        "lower",
    ),
    Measure(
        "scattered",
        "share",
        "of the idle GPU time while a job waits: on hosts of which an attempt used a GPU in the same hour",
        f"{SIMULATOR}: Fragmentation.scattered, there by moments, here by hours",
        _scattered,
        "lower",
    ),
    Measure(
        "fragmented_nodes",
        "share",
        "of the idle GPU time: on hosts of which an attempt used a GPU in the same hour",
        f"{SIMULATOR}: LevelFragments of nodes, there by moments, here by hours",
        _fragmented_nodes,
        "lower",
    ),
    Measure(
        "fragmented_racks",
        "share",
        "of the idle GPU time: on other hosts of racks of which an attempt used a GPU in the same hour",
        f"{SIMULATOR}: LevelFragments of racks, there by moments, here by hours",
        _fragmented_racks,
        "lower",
    ),
    Measure(
        "mtbf",
        "GPU-hours",
        "GPU time in service ÷ how often GPUs or hosts left service by a fault",
        f"{SIMULATOR}: Report.failures, by the time in service",
        _mtbf,
    ),
    Measure(
        "mttr",
        "hours",
        "mean time of ended outages, from leaving service by a fault until it is back",
        "simulator/traces/failing.py: Failures.repair_s",
        _mttr,
        "lower",
    ),
)
"""All figures of this page, each by its name."""


def figures(window: Window) -> dict[str, float | None]:
    return {measure.name: measure.of(window) for measure in LEDGER_FIGURES}
