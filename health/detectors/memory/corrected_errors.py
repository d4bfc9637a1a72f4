"""Corrected memory errors in a board's life. Source: Azure fails a GPU over these totals.

No program read wrong data; the GPU takes no new work. The totals are reported when they rise, so the fault of an idle
GPU decays.
"""

from typing import Final

from health.detectors.detector import About, Findings, SignalDetector, signal_finding
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "corrected_errors"
ABOUT: Final = About("corrected ECC errors in a board's life pass their limit", "Azure node checks", Severity.DEGRADED)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    limits = {"sram": policy.detectors.corrected_errors.sram_max, "dram": policy.detectors.corrected_errors.dram_max}
    return tuple(
        signal_finding(
            NAME,
            signal,
            f"{NAME}:{place}",
            Severity.DEGRADED,
            policy,
            f"{total:.0f} corrected ECC errors in {place.upper()}, more than {limit}",
            values={"errors": total},
        )
        for place, limit in limits.items()
        if (total := signal.values.get(f"ecc_corrected_{place}_total", 0)) > limit
    )


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_RATES,), ABOUT, Nature.RATE)
