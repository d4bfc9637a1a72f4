"""Lists the kinds of incidents, which are conditions that need an operator, and which kinds a rule closes."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class IncidentKind(StrEnum):
    BREAKER_OPEN = "breaker_open"
    BURN_IN_ABANDONED = "burn_in_abandoned"
    GPU_CLAIMED_TWICE = "gpu_claimed_twice"
    JUDGE_FAILED = "judge_failed"
    LOOP_STALLED = "loop_stalled"
    NODE_STORAGE = "node_storage"
    QUOTA_BELOW_HOLDINGS = "quota_below_holdings"
    REPAIR_DUE = "repair_due"
    RETIREMENT_PROPOSED = "retirement_proposed"
    STORAGE = "storage"
    SUSPECT_PROGRAM = "suspect_program"
    UNREADABLE_READINGS = "unreadable_readings"


class IncidentState(StrEnum):
    OPEN = "open"
    CLOSED = "closed"


CLOSED_BY_RULE: Final[Mapping[str, str]] = {
    IncidentKind.BREAKER_OPEN: "Close its scopes with `muster breaker close`: it closes with the last of them.",
    IncidentKind.JUDGE_FAILED: "It is judged again every ten minutes, and closes once that succeeds.",
    IncidentKind.LOOP_STALLED: "Start the process that it names again: it closes once the loop advances.",
    IncidentKind.REPAIR_DUE: "Do what it says and start that repair with `muster gpu repair`, or dismiss what asks for "
    "it: it closes with that.",
    IncidentKind.RETIREMENT_PROPOSED: "Retire it with `muster gpu retire`, dismiss what asks for it, or repair it: it "
    "closes with that.",
    IncidentKind.SUSPECT_PROGRAM: "Release its job with `muster job release`: it closes with that.",
}
"""Kind → how an incident of this kind closes. Operators close incidents of the other kinds."""
