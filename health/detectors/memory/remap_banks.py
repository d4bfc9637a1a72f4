"""A memory bank without a spare row left. Source: NVIDIA's memory error guide: a bank has 8 spare rows.

The next uncorrectable error in that bank cannot be remapped, so the GPU takes no new work; no data is wrong yet.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "remap_banks"
ABOUT: Final = About("a memory bank has no spare row left", "NVIDIA row-remapper histogram", Severity.DEGRADED)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    banks = signal.values.get("remap_banks_none", 0)
    if not banks > 0:
        return NO_FINDINGS
    words = f"{banks:.0f} memory bank{'s have' if banks > 1 else ' has'} no spare row left"
    return (signal_finding(NAME, signal, NAME, Severity.DEGRADED, policy, words, values={"banks": banks}),)


def handles(signal: GpuSignal) -> tuple[str, ...]:
    return (NAME,) if has(signal, "remap_banks_none") else ()


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_STATE,), ABOUT, Nature.STATE, handles)
