"""A PCIe link that is slower or narrower under load than GPU and slot allow. Source: DCGM's diagnosis.

Idle cards slow their link down by themselves, so only readings under load count, once the fault has lasted: a card that
wakes up is slow for a moment.
"""

from typing import Final

from health.detectors.detector import About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from health.evidence.suppression import outlasting
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "pcie_link"
ABOUT: Final = About(
    "under load the PCIe link has fewer lanes or a lower generation than it can have", "DCGM", Severity.DEGRADED
)
_PARTS: Final = (("generation", "generation {}"), ("width", "{} lanes"))


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    return tuple(
        signal_finding(
            NAME,
            signal,
            f"{NAME}:{part}",
            Severity.DEGRADED,
            policy,
            f"PCIe under load: {words.format(f'{loaded:.0f}')} of {best:.0f}",
            values={"loaded": loaded, "best": best},
            pending=outlasting(signal, policy.warm_up.outlast_s),
        )
        for part, words in _PARTS
        if (loaded := signal.values.get(f"pcie_loaded_{part}")) is not None
        and (best := signal.values.get(f"pcie_max_{part}")) is not None
        and 0 < loaded < best
    )


def handles(signal: GpuSignal) -> tuple[str, ...]:
    return tuple(f"{NAME}:{part}" for part, _ in _PARTS if has(signal, f"pcie_loaded_{part}", f"pcie_max_{part}"))


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_STATE,), ABOUT, Nature.STATE, handles)
