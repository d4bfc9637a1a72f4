"""A GPU that computes while no program is on it: a kernel that outlived its program, or one that the driver hides.

Agents report ``idle_…`` only of a GPU on which none of their samples saw a program in the window (GPM's SM utilisation,
or the least utilisation of NVML's samples where there is no GPM). No tool of the field judges it; the numbers are our
own.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "idle_busy"
ABOUT: Final = About("a GPU computes though no program is on it", "NVML GPM; our own numbers", Severity.WARNING)
_SM: Final = "idle_sm_percent"
_UTILISATION: Final = "idle_utilisation_percent"


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    rule = policy.detectors.idle_busy
    sm, utilisation = signal.values.get(_SM), signal.values.get(_UTILISATION)
    if sm is not None:
        name, busy, limit, what = "sm_percent", sm, rule.sm_percent, "of its SMs were busy"
    elif utilisation is not None:
        name, busy, limit, what = (
            "utilisation_percent",
            utilisation,
            rule.utilisation_percent,
            "of the time a kernel ran",
        )
    else:
        return NO_FINDINGS
    if busy <= limit:
        return NO_FINDINGS
    words = f"{busy:.0f}% {what} while no program was on it"
    return (signal_finding(NAME, signal, NAME, Severity.WARNING, policy, words, values={name: busy}),)


def handles(signal: GpuSignal) -> tuple[str, ...]:
    return (NAME,) if has(signal, _SM) or has(signal, _UTILISATION) else ()


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_STATE,), ABOUT, Nature.STATE, handles)
