"""Verdicts of several jobs that name one GPU. One hang may have any cause; hangs of three jobs share the GPU.

The finding is reported, so it leads to SUSPECT at most, and within the breaker. By default the rule is in shadow: its
finding is shown as a proposal and weighs nothing.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings
from health.detectors.gpu.xid import TENANT_MARK
from health.detectors.repeats.repeat import TIMES, Seen
from health.detectors.verdict_faults import HANG, JOB_MARK, VALUE_FAULT
from health.evidence.index import of_detector
from muster.domain.evidence.findings import Severity

NAME: Final = "job_fault_repeats"
SOURCES: Final = frozenset({HANG, VALUE_FAULT})
ABOUT: Final = About("verdicts of 3 jobs that name one GPU", "our own numbers", Severity.DEGRADED)
_FAULTS: Final = {HANG: "hangs", VALUE_FAULT: "values that are no numbers"}


def key_of(detector: str) -> str:
    """Return the fault key of the rule's finding about verdicts of one kind."""
    return f"{NAME}:{detector}"


def judge(seen: Seen) -> Findings:
    """Return the finding about the jobs whose verdicts named the newest's GPU within the window."""
    newest, rule = seen.newest, seen.policy.detectors.job_fault_repeats
    if newest.detector not in SOURCES or newest.gpu_uuid is None:
        return NO_FINDINGS
    found = seen.alike(rule.window_s, of_detector(newest.detector))
    num_jobs, num_tenants = (len({each.values.get(mark) for each in found}) for mark in (JOB_MARK, TENANT_MARK))
    if num_jobs < rule.times or num_tenants < rule.tenants:
        return NO_FINDINGS
    tenants = "one tenant" if num_tenants == 1 else f"{num_tenants} tenants"
    words = (
        f"{_FAULTS[newest.detector]} of {num_jobs} jobs of {tenants} named this GPU: SUSPECT is proposed, "
        "and a burn-in proves it"
    )
    values = {TIMES: float(num_jobs)}
    return (seen.found(NAME, Severity.DEGRADED, words, key=newest.detector, values=values),)
