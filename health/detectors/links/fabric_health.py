"""NVML's health mask of a GPU's NVLink fabric. Source: ``nvmlGpuFabricInfo_v2_t``.

Fields of two bits (0 unsupported, 1 true, 2 false), and one of four that names a wrong configuration (0 unsupported, 1
none). Like all of the fabric it weighs once it has outlasted ``health.warm_up.outlast_s``.
"""

from dataclasses import dataclass
from typing import Final

from health.detectors.detector import About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from health.evidence.suppression import outlasting
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "fabric_health"
ABOUT: Final = About(
    "the fabric's health mask reports a fault; a route that recovers (warning)",
    "NVML fabric info",
    Severity.DEGRADED,
)


@dataclass(frozen=True, slots=True)
class MaskField:
    shift: int
    bits: int
    name: str
    text: str
    severity: Severity = Severity.DEGRADED
    bad: int = 1
    """The value that is a fault, in a field of two bits."""

    def is_bad(self, mask: int) -> bool:
        value = mask >> self.shift & (1 << self.bits) - 1
        return value == self.bad if self.bits == 2 else value > 1


FABRIC_HEALTH_FIELDS: Final = (
    MaskField(0, 2, "bandwidth", "its bandwidth is degraded"),
    MaskField(2, 2, "recovery", "a route recovers", Severity.WARNING),
    MaskField(4, 2, "route", "a route is unhealthy"),
    MaskField(6, 2, "timeout", "accesses time out"),
    MaskField(8, 4, "configuration", "it is configured wrongly"),
    MaskField(12, 2, "partition", "it is in no partition", Severity.WARNING, bad=2),
    MaskField(14, 2, "manager", "its global fabric manager is disconnected", Severity.WARNING, bad=2),
)
SUMMARY: Final = "summary"
_SUMMARIES: Final = {
    2: ("the driver calls it unhealthy", Severity.DEGRADED),
    3: ("the driver calls its capacity limited", Severity.WARNING),
}


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """Return a finding for each bad field, and one from newer drivers' summary where no field states a cause."""
    mask = signal.values.get("fabric_health_bits", 0)
    mask = mask if 0 < mask < 1 << 32 else 0
    bad = [(each.name, each.text, each.severity) for each in FABRIC_HEALTH_FIELDS if each.is_bad(int(mask))]
    summary = _SUMMARIES.get(int(signal.values.get("fabric_health_summary", 0)))
    if not bad and summary is not None:
        bad = [(SUMMARY, *summary)]
    values = {"mask": mask}
    pending = outlasting(signal, policy.warm_up.outlast_s)
    return tuple(
        signal_finding(
            NAME, signal, f"{NAME}:{name}", severity, policy, f"NVLink fabric: {words}", values=values, pending=pending
        )
        for name, words, severity in bad
    )


def handles(signal: GpuSignal) -> tuple[str, ...]:
    if not has(signal, "fabric_health_bits"):
        return ()
    return (*(f"{NAME}:{each.name}" for each in FABRIC_HEALTH_FIELDS), f"{NAME}:{SUMMARY}")


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_STATE,), ABOUT, Nature.STATE, handles)
