"""What the lines of memory errors and clean-ups ask for: containment and resets of 94 and 95, parts of 171 and 172."""

import pytest

from health.detectors.registry import judge_signal
from health.xid.catalogue import CATALOGUE, XidClass
from health.xid.kernel_log import KernelLogReader
from health.xid.reading import ErrorReading, read_fault, read_xid
from health.xid.recovery import Action
from muster.domain.evidence.findings import EventKind, Severity, Source
from tests.health.case_factory import POLICY, signal

RESTART, RESET, DRAIN = Action.RESTART_JOB, Action.RESET_GPU, Action.DRAIN_AND_RESET
PROGRAMS_OWN = "Contained: SM (0x1). RST: No, D-RST: No"
LINES = [
    (94, PROGRAMS_OWN, RESTART, Severity.INFO),
    (94, "Contained: CE User Channel (0x9). RST: No, D-RST: No", RESTART, Severity.INFO),
    (94, "Contained: MMU. RST: No, D-RST: No", RESTART, Severity.INFO),
    (94, "Contained: LTC CBC (0x2,0x0). RST: No, D-RST: Yes", DRAIN, Severity.DEGRADED),
    (94, "Contained: DED CBC (0x0, 0x1). physAddr: 0x00012340 RST: No, D-RST: Yes", DRAIN, Severity.DEGRADED),
    (94, "Contained: SM (0x1). RST: Yes, D-RST: No", RESET, Severity.CONDEMNING),
    (94, "Uncontained: SM (0x1). RST: No, D-RST: No", DRAIN, Severity.DEGRADED),
    (94, "Contained: SM (0x1). RST: No", DRAIN, Severity.DEGRADED),
    (94, "Ch 00000008", DRAIN, Severity.DEGRADED),
    (95, "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No", RESET, Severity.CONDEMNING),
    (95, "Uncontained: FBHUB. RST: Yes; D-RST: No", RESET, Severity.CONDEMNING),
    (95, "Uncontained: LTC GPC (0x0, 0x1). RST: No, D-RST: No", RESET, Severity.CONDEMNING),
    (95, "Contained: SM (0x1). RST: No, D-RST: No", RESET, Severity.CONDEMNING),
    (95, "Uncontained: LTC CBC (0x1). RST: No, D-RST: Yes", RESET, Severity.CONDEMNING),
    (171, "Double Bit ECC Error in FBPA 4 subpartition 1", RESET, Severity.CONDEMNING),
    (172, "Contained: SM (0x1). RST: No, D-RST: No", RESET, Severity.CONDEMNING),
    (45, "Ch 0000000b", Action.NONE, Severity.INFO),
    (45, "Preemptive cleanup, due to previous errors", Action.NONE, Severity.INFO),
]
AGREEING = {
    Action.NONE: {XidClass.IGNORE},
    Action.RESTART_JOB: {XidClass.RESTART_APP},
    Action.MONITOR: {XidClass.MONITOR, XidClass.WORKFLOW},
    Action.DRAIN_P2P: {XidClass.WORKFLOW},
    Action.DRAIN_AND_RESET: {XidClass.RESET_GPU},
    Action.RESET_GPU: {XidClass.RESET_GPU},
    Action.REBOOT_NODE: {XidClass.REBOOT},
    Action.FIELD_DIAGNOSIS: {XidClass.HARDWARE},
    Action.REPLACE: {XidClass.HARDWARE},
}
"""Action → the classes that call for it. A workflow is watched until the text of the error decides."""


def read_line(code: int, text: str) -> ErrorReading:
    (fault,) = KernelLogReader().read(f"NVRM: Xid (PCI:0000:41:00): {code}, pid=7321, name=python3, {text}")
    return read_fault(fault)


@pytest.mark.parametrize(("code", "text", "action", "severity"), LINES)
def test_the_line_itself_decides_action_class_and_severity(
    code: int, text: str, action: Action, severity: Severity
) -> None:
    read = read_line(code, text)
    assert read.action is action
    assert read.xid_class in AGREEING[action]
    (found,) = judge_signal(signal(EventKind.XID, code=code, text=text, source=Source.KERNEL_LOG), POLICY)
    assert found.severity is severity
    assert found.threatens_correctness is CATALOGUE[code].threatens_correctness


@pytest.mark.parametrize("code", CATALOGUE)
def test_class_and_action_agree_for_every_code_without_a_text(code: int) -> None:
    read = read_xid(code)
    assert read.xid_class in AGREEING[read.action]


def test_the_parts_that_a_line_names_are_read() -> None:
    assert read_line(94, "Contained: LTC CBC (0x2,0x0). RST: No, D-RST: Yes").decoded == {
        "unit": "LTC CBC",
        "is_contained": True,
        "needs_reset": False,
        "needs_drain_and_reset": True,
    }
    assert read_line(94, "Contained SRAM ECC error").decoded == {"memory": "SRAM"}
    assert read_line(171, "Double Bit ECC Error in FBPA 4 subpartition 1").decoded == {
        "memory": "DRAM",
        "fbpa": 4,
        "subpartition": 1,
    }
    assert read_line(48, "Double Bit ECC Error at partition 1, subpartition 2").decoded == {
        "partition": 1,
        "subpartition": 2,
    }
    assert read_line(172, "").decoded == {"memory": "SRAM"}
    assert read_line(45, "channel 0x00000015").decoded == {"channel": 21}
    assert read_line(45, "Preemptive cleanup, due to previous errors").decoded == {"follows_errors": True}
