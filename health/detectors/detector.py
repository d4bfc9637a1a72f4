"""What a detector is: a named, versioned, pure rule from a GPU's readings, or from an event, to findings."""

from collections.abc import Callable
from dataclasses import dataclass

from muster.domain.evidence import Finding, GpuSample, GpuSignal, Severity, Source, Trust
from muster.domain.health_policy import HealthPolicy
from muster.domain.ids import GpuUuid, NodeId

Findings = tuple[Finding, ...]
NO_FINDINGS: Findings = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample with what a rule needs beside it.

    ``previous`` is the last sample that answered: its counters are carried over polls that failed, so a rise is seen
    once, whatever lies between. None on first sight.
    """

    node_id: NodeId
    previous: GpuSample | None
    sample: GpuSample

    def finding(
        self,
        detector: str,
        fault: str,
        severity: Severity,
        policy: HealthPolicy,
        summary: str,
        *,
        version: int = 1,
        threatens_correctness: bool = False,
        values: dict[str, float] | None = None,
    ) -> Finding:
        """A measured finding about this GPU, seen by NVML at the sample's time."""
        return Finding(
            detector=detector,
            version=version,
            fault_key=fault,
            gpu_uuid=self.sample.gpu_uuid,
            node_id=self.node_id,
            severity=severity,
            trust=Trust.MEASURED,
            source=Source.NVML,
            onset_ms=self.sample.at_ms,
            counts_for_ms=counts_for_ms(severity, policy),
            summary=summary,
            threatens_correctness=threatens_correctness,
            values=values or {},
        )


@dataclass(frozen=True, slots=True)
class SampleDetector:
    """``judge`` is asked at every sample. ``is_standing``: it states its fault as long as it stands, not its rise."""

    name: str
    version: int
    judge: Callable[[Reading, HealthPolicy], Findings]
    is_standing: bool


@dataclass(frozen=True, slots=True)
class SignalDetector:
    """``judge`` is asked of every event."""

    name: str
    version: int
    judge: Callable[[GpuSignal, HealthPolicy], Findings]


@dataclass(frozen=True, slots=True)
class Closing:
    """A standing fault of a GPU (or, where ``gpu_uuid`` is None, of the node) that was seen to be over at ``at_ms``.

    ``found``: how many are back, for a fault that is over only when as many are there as its ``expected`` says.
    """

    fault_key: str
    node_id: NodeId
    gpu_uuid: GpuUuid | None
    at_ms: int
    found: float | None = None


def counts_for_ms(severity: Severity, policy: HealthPolicy) -> int:
    return int(policy.score.weight(severity).counts_for_s * 1000)


def signal_finding(
    detector: str,
    signal: GpuSignal,
    fault: str,
    severity: Severity,
    policy: HealthPolicy,
    summary: str,
    *,
    version: int = 1,
    threatens_correctness: bool = False,
    values: dict[str, float] | None = None,
) -> Finding:
    """A finding about the event's GPU, or its node, with the event's source and time."""
    return Finding(
        detector=detector,
        version=version,
        fault_key=fault,
        gpu_uuid=signal.gpu_uuid,
        node_id=signal.node_id,
        severity=severity,
        trust=Trust.REPORTED if signal.source is Source.JOB else Trust.MEASURED,
        source=signal.source,
        onset_ms=signal.at_ms,
        counts_for_ms=counts_for_ms(severity, policy),
        summary=summary,
        threatens_correctness=threatens_correctness,
        values=values or {},
    )
