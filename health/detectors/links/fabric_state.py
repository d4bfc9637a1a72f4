"""A GPU that is not registered with its NVLink fabric. Source: ``nvmlGpuFabricInfo``.

Registration takes time after a boot: the fault weighs once it has outlasted ``health.warm_up.outlast_s``. A GPU without
a fabric reports 0, unsupported.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from health.evidence.suppression import outlasting
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "fabric_state"
NOT_READY: Final = "fabric_state:not_ready"
FAILED: Final = "fabric_state:failed"
ABOUT: Final = About("a GPU is not registered with its NVLink fabric", "NVML fabric info", Severity.DEGRADED)
_COMPLETED: Final = 3
_FABRIC_STATE_TEXTS: Final = {1: "has not begun", 2: "is in progress"}


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    state, status = signal.values.get("fabric_state"), signal.values.get("fabric_status", 0)
    if state == _COMPLETED and status != 0:
        key, words = FAILED, f"registration with the NVLink fabric failed (NVML {status:.0f})"
    elif state in _FABRIC_STATE_TEXTS:
        key, words = NOT_READY, f"registration with the NVLink fabric {_FABRIC_STATE_TEXTS[int(state)]}"
    else:
        return NO_FINDINGS
    values = {"state": state, "status": status}
    pending = outlasting(signal, policy.warm_up.outlast_s)
    return (signal_finding(NAME, signal, key, Severity.DEGRADED, policy, words, values=values, pending=pending),)


def handles(signal: GpuSignal) -> tuple[str, ...]:
    return (NOT_READY, FAILED) if has(signal, "fabric_state") else ()


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_STATE,), ABOUT, Nature.STATE, handles)
