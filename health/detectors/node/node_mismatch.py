"""GPUs of one model on one host with different settings: VBIOS, persistence mode, application clocks.

Source: Azure's node checks. About the node: it is unknown here which of two VBIOS is the right one, and the slowest GPU
sets the pace of a gang. The drift report shows nodes that differ from their fleet.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from health.detectors.detector import About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "node_mismatch"
ABOUT: Final = About(
    "GPUs of one model on one host differ in VBIOS, persistence mode or application clocks",
    "Azure node health checks",
    Severity.WARNING,
)
_MISMATCH_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "vbios_differs": ("vbios_version", "VBIOS"),
    "persistence_differs": ("persistence_enabled", "persistence mode"),
    "clocks_differ": ("application_clock_mhz", "application clocks"),
}
"""Name in a ``HOST_STATE`` → the compared reading, by the names of ``GPU_STATE`` and ``GPU_WORDS``, and its text."""


def differing(gpus: Iterable[Mapping[str, float | str]]) -> dict[str, float]:
    """Return by the names of ``HOST_STATE`` how many GPUs differ from most of their model in their own reports.

    ``gpus``: each GPU's states and texts in one mapping. A reading that fewer than two of a model report is left out.
    """
    by_model: dict[object, list[Mapping[str, float | str]]] = {}
    for gpu in gpus:
        by_model.setdefault(gpu.get("model"), []).append(gpu)
    found: dict[str, float] = {}
    for name, (reading, _) in _MISMATCH_TEXTS.items():
        told = [[gpu[reading] for gpu in alike if reading in gpu] for alike in by_model.values()]
        counted = [Counter(values) for values in told if len(values) > 1]
        if counted:
            found[name] = float(sum(each.total() - max(each.values()) for each in counted))
    return found


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    return tuple(
        signal_finding(
            NAME,
            signal,
            f"{NAME}:{reading}",
            Severity.WARNING,
            policy,
            f"{_num_gpus(number)} from most of their model in {words}",
            values={"gpus": number},
        )
        for name, (reading, words) in _MISMATCH_TEXTS.items()
        if (number := signal.values.get(name, 0)) > 0
    )


def _num_gpus(number: float) -> str:
    return f"{number:.0f} of the host's GPUs {'differs' if number == 1 else 'differ'}"


def handles(signal: GpuSignal) -> tuple[str, ...]:
    return tuple(f"{NAME}:{reading}" for name, (reading, _) in _MISMATCH_TEXTS.items() if has(signal, name))


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.HOST_STATE,), ABOUT, Nature.STATE, handles)
