"""A port whose link is bad again and again. Source: NVSentinel's analyzer (NIC degradation, per port)."""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings
from health.detectors.ports import port_degraded
from health.detectors.repeats import of_port
from health.detectors.repeats.repeat import NVSENTINEL, TIMES, Repeat, Seen
from health.evidence.index import of_fault
from muster.domain.evidence.findings import Severity

NAME: Final = "nic_repeats"


def judge(seen: Seen) -> Findings:
    rule = seen.policy.detectors.nic_repeats
    if seen.newest.detector != port_degraded.NAME:
        return NO_FINDINGS
    alike = seen.alike(rule.window_s, of_fault(seen.newest.fault_key))
    times = int(sum(each.values.get(TIMES, 1.0) for each in alike))
    return of_port.found(seen, NAME, times, rule, "had a bad link")


RULE: Final = Repeat(NAME, judge, About("a bad link 3 times in an hour", NVSENTINEL, Severity.DEGRADED))
