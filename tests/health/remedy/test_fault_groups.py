"""Faults with one remedy are one group: repairs are counted by it."""

from dataclasses import replace

import pytest

from health.remedy.fault_groups import fault_group_of
from health.xid.catalogue import KNOWLEDGE, entry_of
from muster.domain.evidence.findings import Severity
from muster.domain.evidence.traits import FaultGroup
from muster.domain.states import Standing
from tests.health.case_factory import as_fault, case, condemning

WITHOUT_A_PART = {54, 142}
"""Auxiliary power, and a video encoder: nothing else has the same remedy."""


def group_of(code: int) -> str:
    told = replace(as_fault(condemning("told"), f"xid:{code}", "xid"), values={"code": float(code)})
    return fault_group_of(case(Standing.QUARANTINED, told))


@pytest.mark.parametrize(
    ("code", "group"),
    [
        (95, FaultGroup.MEMORY),
        (156, FaultGroup.MEMORY),
        (79, FaultGroup.BUS),
        (167, FaultGroup.BUS),
        (136, FaultGroup.LINK),
        (170, FaultGroup.LINK),
        (46, FaultGroup.DRIVER),
    ],
)
def test_an_xid_belongs_to_the_part_that_its_remedy_mends(code: int, group: str) -> None:
    assert group_of(code) == group


def test_every_xid_that_condemns_has_a_group() -> None:
    codes = {row["code"] for row in KNOWLEDGE["codes"]}
    condemns = {code for code in codes if entry_of(code).severity is Severity.CONDEMNING}
    assert {code for code in condemns if group_of(code) == FaultGroup.OTHER} <= WITHOUT_A_PART
