"""Lists the kinds of incidents, which are conditions that need a person, and what a person does about each."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class IncidentKind(StrEnum):
    BREAKER_OPEN = "breaker_open"
    BURN_IN_ABANDONED = "burn_in_abandoned"
    GPU_CLAIMED_TWICE = "gpu_claimed_twice"
    JOB_ON_HOLD = "job_on_hold"
    JOB_STALLED = "job_stalled"
    JUDGE_FAILED = "judge_failed"
    LOOP_STALLED = "loop_stalled"
    MESSAGES_GIVEN_UP = "messages_given_up"
    NODE_LOST = "node_lost"
    NODE_STORAGE = "node_storage"
    OBJECTIVE_BURNING = "objective_burning"
    OUTSIDE_RESIDENCY = "outside_residency"
    QUOTA_BELOW_HOLDINGS = "quota_below_holdings"
    REPAIR_DUE = "repair_due"
    RETIREMENT_PROPOSED = "retirement_proposed"
    STORAGE = "storage"
    SUSPECT_PROGRAM = "suspect_program"
    UNREADABLE_READINGS = "unreadable_readings"


class IncidentState(StrEnum):
    OPEN = "open"
    CLOSED = "closed"


class IncidentSeverity(StrEnum):
    """How soon a person is needed: PAGE at once, TICKET in the next days, INFO not at all."""

    PAGE = "page"
    TICKET = "ticket"
    INFO = "info"

    @property
    def rank(self) -> int:
        """The larger, the sooner."""
        return _RANKS[self]


_RANKS: Final[Mapping[str, int]] = {"info": 0, "ticket": 1, "page": 2}
_PAGING: Final = frozenset(
    {
        IncidentKind.BREAKER_OPEN,
        IncidentKind.GPU_CLAIMED_TWICE,
        IncidentKind.JUDGE_FAILED,
        IncidentKind.LOOP_STALLED,
        IncidentKind.OUTSIDE_RESIDENCY,
        IncidentKind.STORAGE,
    }
)
"""Kinds that spread, or that break a promise, until a person acts."""


def severity_of(kind: str, facts: Mapping[str, object]) -> IncidentSeverity:
    """Return the severity of an incident of this kind with these facts.

    Facts that name one themselves have it. Nodes that were lost together are a page; one node is a ticket.
    """
    own = facts.get("severity")
    if isinstance(own, str) and own in _RANKS:
        return IncidentSeverity(own)
    is_domain = kind == IncidentKind.NODE_LOST and facts.get("domain") is not None
    return IncidentSeverity.PAGE if kind in _PAGING or is_domain else IncidentSeverity.TICKET


CLOSED_BY_RULE: Final[Mapping[str, str]] = {
    IncidentKind.BREAKER_OPEN: "Close its scopes with `muster breaker close`: it closes with the last of them.",
    IncidentKind.JOB_ON_HOLD: "Release its job with `muster job release`, or cancel it: it closes with that.",
    IncidentKind.JOB_STALLED: "It closes when the job makes progress, its attempt ends, or its verdict is dismissed.",
    IncidentKind.JUDGE_FAILED: "It is judged again every ten minutes, and closes once that succeeds.",
    IncidentKind.LOOP_STALLED: "Start the process that it names again: it closes once the loop advances.",
    IncidentKind.MESSAGES_GIVEN_UP: "Repair the connection to the broker: it closes an hour after the last message.",
    IncidentKind.NODE_LOST: "Bring its host back, or cordon the node: it closes with that.",
    IncidentKind.OBJECTIVE_BURNING: "It closes when the short window of each pair is below its rate again.",
    IncidentKind.OUTSIDE_RESIDENCY: "It closes when the job has ended there, or its hosts are within the rule.",
    IncidentKind.REPAIR_DUE: "Do what it says and start that repair with `muster gpu repair`, or dismiss what asks for "
    "it: it closes with that.",
    IncidentKind.RETIREMENT_PROPOSED: "Retire it with `muster gpu retire`, dismiss what asks for it, or repair it: it "
    "closes with that.",
    IncidentKind.SUSPECT_PROGRAM: "Release its job with `muster job release`: it closes with that.",
}
"""Kind → how an incident of this kind closes. Operators close incidents of the other kinds."""

_THEN_CLOSE: Final = "then close the incident"
TO_DO: Final[Mapping[str, str]] = {
    IncidentKind.BREAKER_OPEN: "`muster breaker list` shows the scopes. Find the common cause of the findings, then "
    "`muster breaker close`.",
    IncidentKind.BURN_IN_ABANDONED: "Repair what it names and order `muster burnin run`, or close the incident.",
    IncidentKind.GPU_CLAIMED_TWICE: "Find out which host has the board; remove the agent's state of the other host, "
    f"{_THEN_CLOSE}.",
    IncidentKind.JOB_ON_HOLD: "`muster job show` has the cause. Remove it and release the job, or cancel the job.",
    IncidentKind.JOB_STALLED: "`muster job explain` names rank, host and line. Cancel the job, or wait if it is right.",
    IncidentKind.JUDGE_FAILED: "Report the error with `muster support-bundle`. Its GPU keeps its standing until then.",
    IncidentKind.LOOP_STALLED: "Read the log of the process that it names, then start that process again.",
    IncidentKind.MESSAGES_GIVEN_UP: "Check the broker and its address. Hosts find their work at the next heartbeat.",
    IncidentKind.NODE_LOST: "Check the host's power, network and host worker; if it stays away, cordon the node.",
    IncidentKind.NODE_STORAGE: f"Check the host's mounts and disks, {_THEN_CLOSE}.",
    IncidentKind.OBJECTIVE_BURNING: "`muster objectives` shows rates and budget. Find the common cause of the bad "
    "events: newest attempts, their causes, storage, and what was changed last.",
    IncidentKind.OUTSIDE_RESIDENCY: "Cancel the job, drain the hosts, correct their label `site`, or widen the rule.",
    IncidentKind.QUOTA_BELOW_HOLDINGS: "Set a sufficient limit with `muster quota set`, or close the incident.",
    IncidentKind.REPAIR_DUE: "`muster gpu show` has the evidence. Start the repair with `muster gpu repair`.",
    IncidentKind.RETIREMENT_PROPOSED: "Have the board replaced and retire it with `muster gpu retire`.",
    IncidentKind.STORAGE: f"Check space and availability of that place, {_THEN_CLOSE}.",
    IncidentKind.SUSPECT_PROGRAM: "Check the program. `muster job release` states that it is not to blame.",
    IncidentKind.UNREADABLE_READINGS: f"Check the host's agent and driver, {_THEN_CLOSE}.",
}
"""Kind → what a person does. An incident whose own facts say more has ``to_do`` among them."""


def to_do(kind: str, facts: Mapping[str, object]) -> str:
    """Return what a person does about an open incident of this kind with these facts."""
    own = facts.get("to_do")
    return own if isinstance(own, str) else TO_DO.get(kind, "Read its details, act on them, and close it.")
