"""A host's wall clock: off the server's, or stepped. Our own numbers; leases depend on the boot clock alone."""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "host_clock"
OFFSET: Final = "host_clock:offset"
STEPS: Final = "host_clock:steps"
ABOUT: Final = About("the wall clock is over a second off, or was stepped", "our own numbers", Severity.WARNING)


def judge_offset(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    offset_s = signal.values.get("clock_offset_s", 0)
    if not abs(offset_s) > policy.detectors.host_clock.offset_max_s:
        return NO_FINDINGS
    words = f"the host's clock is {abs(offset_s):.1f} s {'ahead' if offset_s > 0 else 'behind'}"
    return (signal_finding(NAME, signal, OFFSET, Severity.WARNING, policy, words, values={"offset_s": offset_s}),)


def handles_offset(signal: GpuSignal) -> tuple[str, ...]:
    return (OFFSET,) if has(signal, "clock_offset_s") else ()


def judge_steps(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    steps = signal.values.get("clock_steps", 0)
    if not steps > 0:
        return NO_FINDINGS
    words = f"the host's clock was stepped {f'{steps:.0f} times' if steps > 1 else 'once'}"
    return (signal_finding(NAME, signal, STEPS, Severity.WARNING, policy, words, values={"steps": steps}),)


STATE_DETECTOR: Final = SignalDetector(
    NAME, 1, judge_offset, (EventKind.HOST_STATE,), ABOUT, Nature.STATE, handles_offset
)
RATE_DETECTOR: Final = SignalDetector(NAME, 1, judge_steps, (EventKind.HOST_RATES,), ABOUT, Nature.RATE)
