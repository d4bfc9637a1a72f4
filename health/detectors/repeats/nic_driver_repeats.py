"""Faults of a node's network cards by their driver, again. Source: NVSentinel's analyzer (NIC driver error, per node).

All cards of the node count together: one fault each on three cards is a fault of a part that they share.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings
from health.detectors.node import nic_driver
from health.detectors.repeats.repeat import NVSENTINEL, TIMES, Repeat, Seen
from health.evidence.index import of_detector
from muster.domain.evidence.findings import Severity

NAME: Final = "nic_driver_repeats"


def judge(seen: Seen) -> Findings:
    rule = seen.policy.detectors.nic_driver_repeats
    if seen.newest.detector != nic_driver.NAME:
        return NO_FINDINGS
    alike = seen.alike(rule.window_s, of_detector(nic_driver.NAME))
    times = len(alike)
    if times < rule.times:
        return NO_FINDINGS
    cards = ", ".join(sorted({nic_driver.card_of(each.fault_key) for each in alike}))
    words = f"the driver of this node's network cards reported {times} faults in {rule.window_s / 3600:g} h: {cards}"
    return (seen.found(NAME, Severity.DEGRADED, words, values={TIMES: float(times)}),)


RULE: Final = Repeat(
    NAME,
    judge,
    About("faults of a node's network cards, by their driver, 3 times in an hour", NVSENTINEL, Severity.DEGRADED),
)
