"""Settings that a GPU of a fleet should have. Source: Azure's node checks.

Without ECC nobody would know of wrong data: no new jobs. Without persistence mode the driver is loaded for each program
anew: that is told.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, Tells, signal_finding
from health.detectors.readings import has
from muster.domain.evidence import EventKind, Finding, GpuSignal, Severity
from muster.domain.health_policy import HealthPolicy

NAME: Final = "gpu_settings"
ECC: Final = "gpu_settings:ecc"
PERSISTENCE: Final = "gpu_settings:persistence"
ABOUT: Final = About("ECC is off (degraded), or persistence mode (info)", "Azure node health checks", Severity.DEGRADED)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    found = list[Finding]()
    if signal.values.get("ecc_enabled", 1) == 0:
        found.append(signal_finding(NAME, signal, ECC, Severity.DEGRADED, policy, "ECC is off"))
    if signal.values.get("persistence_enabled", 1) == 0:
        found.append(signal_finding(NAME, signal, PERSISTENCE, Severity.INFO, policy, "persistence mode is off"))
    return tuple(found) or NO_FINDINGS


def tells_of(signal: GpuSignal) -> tuple[str, ...]:
    ecc = (ECC,) if has(signal, "ecc_enabled") else ()
    return (*ecc, PERSISTENCE) if has(signal, "persistence_enabled") else ecc


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_STATE,), ABOUT, Tells.STATE, tells_of)
