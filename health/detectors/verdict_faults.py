"""Verdicts on running jobs as findings about the GPU or the host that they name. Source: our own watch.

A verdict rests on what a tenant's own processes report, so each finding is *reported*: it never quarantines. One hang
or one value that is no number says little of a GPU and weighs nothing (INFO). The same from several jobs says more
(``repeats/verdict_repeats``). A straggler and a corruption weigh by themselves, and are in shadow by default.

    kind                       rule              severity    by default
    hang                       job_hang          INFO        on
    value_fault                job_value_fault   INFO        on
    straggler                  job_straggler     WARNING     shadow
    corruption, divergence     job_corruption    DEGRADED    shadow

A finding is about the GPU of the named rank. By a cause of ``OUTSIDE_THE_GPU`` it is about the host and weighs nothing,
as does one by the cause ``UNDECIDED``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from health.detectors.detector import About, Findings, counts_for_ms
from health.detectors.gpu.xid import TENANT_MARK, mark_of
from health.detectors.modes import in_mode
from muster.domain.evidence.findings import Finding, Severity, Source, Trust
from muster.domain.ids import GpuUuid, JobId, NodeId, TenantId, VerdictId
from muster.domain.job.verdicts import BLAMES_PROGRAM, VerdictKind
from muster.domain.policy.health import HealthPolicy

HANG: Final = "job_hang"
VALUE_FAULT: Final = "job_value_fault"
STRAGGLER: Final = "job_straggler"
CORRUPTION: Final = "job_corruption"
VERSION: Final = 1
JOB_MARK: Final = "job_mark"
VERDICT_MARK: Final = "verdict_mark"
"""Keys in ``values``: a number for the job and for the verdict, as ``TENANT_MARK`` is for the tenant."""
OUTSIDE_THE_GPU: Final = frozenset({"network", "storage", "data_loader", "data", "host", "stopped_process"})
"""Causes that are outside the GPU: a network card, a disk, the host's processors, the rank's process."""
OF_NO_HARDWARE: Final = BLAMES_PROGRAM | {"dead_rank", "configuration", "imbalance"}
"""Causes that no GPU or host has: the program's, and an end of a rank, which is judged by its exit."""
UNDECIDED: Final = "undecided"
"""Cause of a verdict that does not distinguish a GPU from a program: its finding weighs nothing."""
ABOUTS: Final[Mapping[str, About]] = {
    HANG: About("a verdict on a hang that names the GPU or the host", "our own numbers", Severity.INFO),
    VALUE_FAULT: About("a verdict on values that are no numbers, on the GPU", "our own numbers", Severity.INFO),
    STRAGGLER: About("a verdict on a slow rank that names the GPU", "our own numbers", Severity.WARNING),
    CORRUPTION: About("a verdict on wrong values that names the GPU", "our own numbers", Severity.DEGRADED),
}
_RULE_OF: Final[Mapping[VerdictKind, str]] = {
    VerdictKind.HANG: HANG,
    VerdictKind.VALUE_FAULT: VALUE_FAULT,
    VerdictKind.STRAGGLER: STRAGGLER,
    VerdictKind.CORRUPTION: CORRUPTION,
    VerdictKind.DIVERGENCE: CORRUPTION,
}
_TEXT_OF_KIND: Final[Mapping[VerdictKind, str]] = {
    VerdictKind.HANG: "a hang",
    VerdictKind.VALUE_FAULT: "values that are no numbers",
    VerdictKind.STRAGGLER: "a slow rank",
    VerdictKind.CORRUPTION: "wrong values",
    VerdictKind.DIVERGENCE: "replicas that differ",
}


@dataclass(frozen=True, slots=True)
class NamedPlace:
    """A verdict with the place that it names. ``gpu_uuid``: of the first rank, if the job's ranks have one each."""

    verdict_id: VerdictId
    kind: VerdictKind
    cause: str
    job_id: JobId
    tenant_id: TenantId
    node_id: NodeId
    gpu_uuid: GpuUuid | None
    at_ms: int


def findings_of(named: NamedPlace, policy: HealthPolicy) -> Findings:
    """Return the finding of a verdict; none if neither GPU nor host is to blame, or its rule is off.

    The summary has no word of the tenant's program: other tenants may read the evidence of a shared GPU.
    """
    if named.cause in OF_NO_HARDWARE:
        return ()
    rule = _RULE_OF[named.kind]
    gpu_uuid = None if named.cause in OUTSIDE_THE_GPU else named.gpu_uuid
    severity = Severity.INFO if gpu_uuid is None or named.cause == UNDECIDED else ABOUTS[rule].worst
    finding = Finding(
        detector=rule,
        version=VERSION,
        fault_key=f"{rule}:{named.cause}",
        gpu_uuid=gpu_uuid,
        node_id=named.node_id,
        severity=severity,
        trust=Trust.REPORTED,
        source=Source.JOB,
        onset_ms=named.at_ms,
        counts_for_ms=counts_for_ms(severity, policy, rule),
        summary=f"a job reported {_TEXT_OF_KIND[named.kind]} here: verdict {named.verdict_id}, cause {named.cause}",
        values={
            TENANT_MARK: mark_of(named.tenant_id),
            JOB_MARK: mark_of(named.job_id),
            VERDICT_MARK: mark_of(named.verdict_id),
        },
    )
    return in_mode((finding,), policy)
