"""The age of a GPU's signals by group, as its page shows it: when each was last delivered, and when it is overdue."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from control.fleet.read import GpuView
from control.telemetry.freshness import stored_freshness
from health.detectors.gpu.freshness import Freshness, GpuFreshness
from muster.domain.gpu.signal_groups import GROUP_TEXTS, SignalGroup
from muster.domain.policy.gpu_detectors import FreshnessPolicy
from muster.domain.times import to_time


@dataclass(frozen=True, slots=True)
class SignalAge:
    """One group of signals of one GPU.

    ``delivered_at``: None where its agent declared it and has delivered nothing yet. ``num_late``: of readings, samples
    in a row without an answer of the driver. ``is_overdue``: the age is over ``max_age_s``, or samples are late.
    """

    group: SignalGroup
    delivered_at: datetime | None
    max_age_s: float
    num_late: int
    is_overdue: bool

    @property
    def text(self) -> str:
        return GROUP_TEXTS[self.group]


@dataclass(frozen=True, slots=True)
class Signals:
    """The signals of one GPU. ``driver_latency_ms``: how long the driver took for its newest sample."""

    ages: tuple[SignalAge, ...] = ()
    driver_latency_ms: float | None = None


def signals_of(found: GpuView, limits: FreshnessPolicy, now: datetime) -> Signals:
    """Return the GPU's signals; none where its agent states no ages."""
    if found.signals is None:
        return Signals()
    known = stored_freshness(found.signals.freshness, found.node.id)
    if known is None:
        return Signals()
    gpu = known.gpus.get(found.gpu.uuid, GpuFreshness())
    ages = (*_own(gpu, limits, now), *_of_the_host(known, found.signals.received_at, limits, now))
    return Signals(ages, gpu.latency_ms)


def _own(gpu: GpuFreshness, limits: FreshnessPolicy, now: datetime) -> Iterator[SignalAge]:
    readings = _age(SignalGroup.READINGS, gpu.answered_ms, limits, now)
    is_overdue = readings.is_overdue or gpu.num_late >= limits.late_samples_max
    yield SignalAge(readings.group, readings.delivered_at, readings.max_age_s, gpu.num_late, is_overdue)
    if gpu.states_ms is not None:
        yield _age(SignalGroup.STATES, gpu.states_ms, limits, now)


def _of_the_host(
    known: Freshness, received_at: datetime | None, limits: FreshnessPolicy, now: datetime
) -> Iterator[SignalAge]:
    for name, at_ms in sorted(known.groups_ms.items()):
        yield _age(SignalGroup(name), at_ms, limits, now)
    is_silent = received_at is None or now - received_at >= timedelta(seconds=limits.agent_max_s)
    yield SignalAge(SignalGroup.AGENT, received_at, limits.agent_max_s, 0, is_silent)


def _age(group: SignalGroup, at_ms: int | None, limits: FreshnessPolicy, now: datetime) -> SignalAge:
    delivered_at, max_age_s = None if at_ms is None else to_time(at_ms), limits.max_age_s(group)
    is_overdue = delivered_at is not None and now - delivered_at > timedelta(seconds=max_age_s)
    return SignalAge(group, delivered_at, max_age_s, 0, is_overdue)
