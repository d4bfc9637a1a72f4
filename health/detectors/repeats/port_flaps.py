"""A port that flaps again and again. Source: gpud."""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings
from health.detectors.ports import port_flap
from health.detectors.repeats import of_port
from health.detectors.repeats.repeat import Repeat, Seen
from health.evidence.index import of_fault
from muster.domain.evidence.findings import Severity

NAME: Final = "port_flaps"


def judge(seen: Seen) -> Findings:
    rule = seen.policy.detectors.port_flaps
    if seen.newest.detector != port_flap.NAME:
        return NO_FINDINGS
    times = len(seen.alike(rule.window_s, of_fault(seen.newest.fault_key)))
    return of_port.found(seen, NAME, times, rule, "flapped")


RULE: Final = Repeat(NAME, judge, About("a port flaps 3 times", "gpud", Severity.DEGRADED))
