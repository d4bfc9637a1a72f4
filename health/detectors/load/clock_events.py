"""Clocks held down by hardware: a rate rule over the last samples, one bit at a time.

Source: NVML's clock event reasons; gpud's rate of 6 in 10 samples. The power cap, idle, application clocks and a peer's
sync boost are no faults. The power brake is pulled by the rack's supply: a warning, since the GPU is not to blame. ``HW
slowdown`` is set along with thermal slowdown and power brake, so it counts only without them.
"""

from dataclasses import dataclass, replace
from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, Reading
from muster.domain.evidence.findings import Finding, Severity
from muster.domain.gpu.metrics import INDEX
from muster.domain.policy.health import HealthPolicy

NAME: Final = "clock_events"
VERSION: Final = 1
HW_SLOWDOWN: Final = 0x8
SW_THERMAL: Final = 0x20
HW_THERMAL: Final = 0x40
POWER_BRAKE: Final = 0x80
HARMFUL: Final = HW_SLOWDOWN | SW_THERMAL | HW_THERMAL | POWER_BRAKE
_REASONS: Final = INDEX["clock_event_reasons"]


@dataclass(frozen=True, slots=True)
class ClockRule:
    bit: int
    name: str
    text: str
    severity: Severity


ABOUT: Final = About(
    "clocks are held down by heat, power or hardware in 6 of 10 samples",
    "NVML clock event reasons; gpud",
    Severity.DEGRADED,
)
CLOCK_EVENT_RULES: Final = (
    ClockRule(HW_SLOWDOWN, "hw_slowdown", "hardware slowdown", Severity.DEGRADED),
    ClockRule(SW_THERMAL, "sw_thermal", "thermal slowdown by software", Severity.WARNING),
    ClockRule(HW_THERMAL, "hw_thermal", "thermal slowdown by hardware", Severity.DEGRADED),
    ClockRule(POWER_BRAKE, "power_brake", "power brake (the rack's power, not this GPU)", Severity.WARNING),
)

Windows = tuple[int, ...]
"""Last samples of each rule as bits, the newest lowest: 1 where the rule's reason was set."""
NO_WINDOWS: Final[Windows] = (0,) * len(CLOCK_EVENT_RULES)


def judge(windows: Windows, reading: Reading, policy: HealthPolicy) -> tuple[Windows, Findings]:
    """Return the next windows, and a finding of each rule over its rate.

    A sample without the reading does not count.
    """
    value = reading.sample.values[_REASONS]
    if value is None:
        return windows, NO_FINDINGS
    reasons = harmful_in(value)
    if not reasons and windows == NO_WINDOWS:
        return windows, NO_FINDINGS
    span = (1 << policy.clock_events.window_samples) - 1
    onward = tuple(
        (window << 1 | bool(reasons & rule.bit)) & span for window, rule in zip(windows, CLOCK_EVENT_RULES, strict=True)
    )
    least = policy.clock_events.harmful_samples
    found = (
        _finding(rule, window, reading, policy)
        for window, rule in zip(onward, CLOCK_EVENT_RULES, strict=True)
        if window.bit_count() >= least
    )
    return onward, tuple(found)


def harmful_in(value: float) -> int:
    """Return the bits of a reading that count, the cause alone where one bit follows from another."""
    reasons = int(value) & HARMFUL
    return reasons & ~HW_SLOWDOWN if reasons & (HW_THERMAL | POWER_BRAKE) else reasons


def _finding(rule: ClockRule, window: int, reading: Reading, policy: HealthPolicy) -> Finding:
    count, span = window.bit_count(), policy.clock_events.window_samples
    words = f"clocks held down by {rule.text} in {count} of the last {span} samples"
    found = reading.finding(
        NAME,
        f"{NAME}:{rule.name}",
        rule.severity,
        policy,
        words,
        reads=_REASONS,
        values={"samples": float(count), "window": float(span)},
    )
    return replace(found, version=VERSION)
