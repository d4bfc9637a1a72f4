"""Detector: a named, versioned, pure rule from a GPU's readings, or from an event, to findings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from muster.domain.evidence.findings import (
    EventKind,
    Finding,
    GpuSample,
    GpuSignal,
    Pending,
    Severity,
    Source,
    Trust,
)
from muster.domain.evidence.traits import Nature
from muster.domain.gpu.metrics import METRICS
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.health import HealthPolicy

Findings = tuple[Finding, ...]
NO_FINDINGS: Findings = ()


@dataclass(frozen=True, slots=True)
class OwnHeat:
    """Maxima in °C that a GPU reports of itself (NVML's thresholds GPU_MAX and MEM_MAX); None where it reports none."""

    gpu_max_c: float | None = None
    memory_max_c: float | None = None


NO_OWN_HEAT: Final = OwnHeat()


def own_heat_in(state: Mapping[str, float]) -> OwnHeat:
    """Return the GPU's own maxima from ``state``, the values of a ``gpu_state`` event."""
    return OwnHeat(state.get("temperature_max_c"), state.get("memory_temperature_max_c"))


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample together with what else a rule needs.

    ``previous`` is the last sample that answered: its counters are carried over polls that failed, so a rise is seen
    once, however many polls failed in between. None on first sight. ``model``: of the GPU, empty where it is unknown.
    ``own_heat``: the maxima that the GPU reports of itself.
    """

    node_id: NodeId
    previous: GpuSample | None
    sample: GpuSample
    model: str = ""
    own_heat: OwnHeat = NO_OWN_HEAT

    def finding(
        self,
        detector: str,
        fault: str,
        severity: Severity,
        policy: HealthPolicy,
        summary: str,
        *,
        reads: int | None = None,
        threatens_correctness: bool = False,
        values: dict[str, float] | None = None,
    ) -> Finding:
        """Return a measured finding about this GPU at the sample's time.

        Its source is the source of the metric that it ``reads``: NVML, or DCGM where NVML does not report it.
        """
        is_dcgms = reads is not None and METRICS[reads].name in self.sample.from_dcgm
        return Finding(
            detector=detector,
            version=1,
            fault_key=fault,
            gpu_uuid=self.sample.gpu_uuid,
            node_id=self.node_id,
            severity=severity,
            trust=Trust.MEASURED,
            source=Source.DCGM if is_dcgms else Source.NVML,
            onset_ms=self.sample.at_ms,
            counts_for_ms=counts_for_ms(severity, policy, detector),
            summary=summary,
            threatens_correctness=threatens_correctness,
            values=values or {},
        )


@dataclass(frozen=True, slots=True)
class About:
    """Text about a rule, for its page: what it finds, the source of the rule, and how bad the fault is at worst."""

    text: str
    source: str
    worst: Severity


@dataclass(frozen=True, slots=True)
class SampleDetector:
    """A rule whose ``judge`` is called for every sample.

    ``is_standing``: it states its fault as long as it stands, not its rise.
    """

    name: str
    version: int
    judge: Callable[[Reading, HealthPolicy], Findings]
    is_standing: bool
    about: About

    @property
    def nature(self) -> Nature:
        return Nature.STANDING if self.is_standing else Nature.MOMENT


def _of_nothing(_signal: GpuSignal) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class SignalDetector:
    """A rule whose ``judge`` is called for every event of ``kinds``.

    ``handles``: the keys of the faults about which an event of a state is conclusive: a fault among them that
    ``judge`` does not find in the event is over.
    """

    name: str
    version: int
    judge: Callable[[GpuSignal, HealthPolicy], Findings]
    kinds: tuple[EventKind, ...]
    about: About
    nature: Nature = Nature.MOMENT
    handles: Callable[[GpuSignal], tuple[str, ...]] = _of_nothing


@dataclass(frozen=True, slots=True)
class Closing:
    """A standing fault of a GPU (or, where ``gpu_uuid`` is None, of the node) that was seen to be over at ``at_ms``.

    ``found``: how many are back, for a fault that is over only when as many are there as its ``expected`` states.
    """

    fault_key: str
    node_id: NodeId
    gpu_uuid: GpuUuid | None
    at_ms: int
    found: float | None = None


def counts_for_ms(severity: Severity, policy: HealthPolicy, detector: str) -> int:
    return int(policy.score.weight(severity, detector).counts_for_s * 1000)


def signal_finding(
    detector: str,
    signal: GpuSignal,
    fault: str,
    severity: Severity,
    policy: HealthPolicy,
    summary: str,
    *,
    values: dict[str, float] | None = None,
    pending: Pending | None = None,
) -> Finding:
    """Return a finding about the event's GPU, with the event's source and time.

    It is about the node where the event names no GPU.
    """
    return Finding(
        detector=detector,
        version=1,
        fault_key=fault,
        gpu_uuid=signal.gpu_uuid,
        node_id=signal.node_id,
        severity=severity,
        trust=Trust.REPORTED if signal.source is Source.JOB else Trust.MEASURED,
        source=signal.source,
        onset_ms=signal.at_ms,
        counts_for_ms=counts_for_ms(severity, policy, detector),
        summary=summary,
        values=values or {},
        pending=pending,
    )


def node_finding(
    detector: str,
    signal: GpuSignal,
    fault: str,
    severity: Severity,
    policy: HealthPolicy,
    summary: str,
    *,
    values: dict[str, float] | None = None,
) -> Finding:
    """Return a finding as ``signal_finding`` does, about the event's node even if the event names a GPU."""
    found = signal_finding(detector, signal, fault, severity, policy, summary, values=values)
    return replace(found, gpu_uuid=None)
