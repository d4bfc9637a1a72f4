"""Settings that a GPU of a fleet should have. Source: Azure's node checks.

Without ECC, wrong data would stay unnoticed: no new jobs. Without persistence mode the driver is loaded again for each
program: that is stated. Application clocks under the board's own slow a whole gang, but may be deliberate: they are to
be watched, as a power limit is. The drift report shows whether they are the same throughout a fleet.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from muster.domain.evidence.findings import EventKind, Finding, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "gpu_settings"
ECC: Final = "gpu_settings:ecc"
PERSISTENCE: Final = "gpu_settings:persistence"
_APPLICATION_CLOCKS: Final = ("application_clock_mhz", "default_application_clock_mhz")
CLOCKS: Final = "gpu_settings:application_clocks"
ABOUT: Final = About(
    "ECC is off (degraded), application clocks are under the board's own (warning), or persistence mode is off (info)",
    "Azure node health checks",
    Severity.DEGRADED,
)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    found = list[Finding]()
    if signal.values.get("ecc_enabled", 1) == 0:
        found.append(signal_finding(NAME, signal, ECC, Severity.DEGRADED, policy, "ECC is off"))
    if signal.values.get("persistence_enabled", 1) == 0:
        found.append(signal_finding(NAME, signal, PERSISTENCE, Severity.INFO, policy, "persistence mode is off"))
    clock_mhz, own_mhz = (signal.values.get(name, 0) for name in _APPLICATION_CLOCKS)
    if 0 < clock_mhz < own_mhz:
        words = f"application clocks are set to {clock_mhz:.0f} MHz, the board's own are {own_mhz:.0f}"
        values = {"clock_mhz": clock_mhz, "own_mhz": own_mhz}
        found.append(signal_finding(NAME, signal, CLOCKS, Severity.WARNING, policy, words, values=values))
    return tuple(found) or NO_FINDINGS


def handles(signal: GpuSignal) -> tuple[str, ...]:
    told = (
        (ECC, ("ecc_enabled",)),
        (PERSISTENCE, ("persistence_enabled",)),
        (CLOCKS, _APPLICATION_CLOCKS),
    )
    return tuple(key for key, names in told if has(signal, *names))


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_STATE,), ABOUT, Nature.STATE, handles)
