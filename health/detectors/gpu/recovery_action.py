"""The recovery action that the driver requests through NVML: the first authority on what a fault means."""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, Reading, SampleDetector
from health.xid.recovery import SEVERITY_OF, action_of_nvml
from muster.domain.evidence.findings import Severity
from muster.domain.gpu.metrics import INDEX
from muster.domain.policy.health import HealthPolicy

NAME: Final = "recovery_action"
REQUESTED_ACTION: Final = "action"
"""Key in ``values``: NVML's number, also where it was found to be one fault with an XID."""
_ACTION: Final = INDEX["recovery_action"]


def judge(reading: Reading, policy: HealthPolicy) -> Findings:
    """Return a finding as long as the driver requests an action."""
    value = reading.sample.values[_ACTION]
    if not value:
        return NO_FINDINGS
    action = action_of_nvml(value)
    words = f"the driver asks for {action} (NVML recovery action {value:.0f})"
    told = {REQUESTED_ACTION: value}
    return (reading.finding(NAME, f"{NAME}:{action}", SEVERITY_OF[action], policy, words, reads=_ACTION, values=told),)


ABOUT: Final = About("the driver asks for a reset, a reboot or a drain", "NVML field 230", Severity.CONDEMNING)
DETECTOR: Final = SampleDetector(NAME, 1, judge, is_standing=True, about=ABOUT)
