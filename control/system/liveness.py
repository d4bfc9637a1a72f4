"""Liveness of the control plane: how long ago each of its loops advanced, by the reports of its processes.

A process reports the progress of its loops (``muster.progress``), not that it exists. Any number of processes may run a
loop: it stands still when none of them advances. Then an incident is open, whichever process is left to open it.
"""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, text

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.incidents import incidents
from muster.db.leader_lease import instance_name
from muster.db.queries.liveness import NEWEST
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.principals import system_principal
from muster.progress import Progress

REPORT: Final = declare_action("liveness.report")
JUDGE: Final = declare_action("liveness.judge")
KIND: Final = IncidentKind.LOOP_STALLED
SCHEDULER: Final = "scheduler"
API_LOOPS: Final = ("requests", "beat", "ingest")
KEEPERS: Final = (
    *("sequencer", "sealer", "relay", "fan_out", "notifications"),
    *("judge", "suspects", "node_holds", "silent_agents", "repairs", "stalls", "stragglers", "idle"),
    *("attention", "unknown_kinds", "burn_in", "reconciler", "clearings", "expiry", "retention", "telemetry"),
    *("energy", "peers", "content", "lost_content", "ledger", "objectives", "tenant_budgets"),
    *("failure_rates", "rollups", "figures"),
)
STARTED_BY: Final[Mapping[str, str]] = {
    **dict.fromkeys(API_LOOPS, "muster api"),
    SCHEDULER: "muster scheduler",
    **dict.fromkeys(KEEPERS, "muster worker control"),
}
"""The loops that a control plane needs, and the command that starts each."""
GRACE: Final = timedelta(seconds=60)
"""How long a process reports before it judges others: after an outage of all, each needs time to start."""
GAP: Final = timedelta(seconds=30)
"""Longest time between two reports of a process that reports: after more, others may not have reported either."""
KEPT: Final = timedelta(days=1)
_PRINCIPAL: Final = system_principal("liveness")
_STORE: Final = text("""
    INSERT INTO loop_progress (loop, instance, component, host, advanced_at, reported_at, limit_s)
    VALUES (:loop, :instance, :component, :host, clock_timestamp() - make_interval(secs => :age_s), clock_timestamp(),
        :limit_s)
    ON CONFLICT (loop, instance) DO UPDATE SET advanced_at = excluded.advanced_at, reported_at = excluded.reported_at,
        limit_s = excluded.limit_s
""")
_FORGET: Final = text("DELETE FROM loop_progress WHERE reported_at < clock_timestamp() - CAST(:kept AS interval)")
_TURN: Final = text("SELECT pg_try_advisory_xact_lock(hashtext('muster liveness'))")
_OPEN: Final = "SELECT subject_id FROM incidents WHERE kind = %(kind)s AND closed_at IS NULL"


@dataclass(frozen=True, slots=True)
class LoopAge:
    """A loop over all processes. ``age_s``: of the newest progress of any of them; None: none has ever reported."""

    loop: str
    started_by: str
    age_s: float | None
    limit_s: float | None

    @property
    def is_stalled(self) -> bool:
        return self.age_s is not None and self.limit_s is not None and self.age_s > self.limit_s


@dataclass(slots=True)
class Reporter:
    """The reports of one process. ``component``: its part of the control plane, as ``muster health`` names it."""

    units: UnitOfWorkFactory
    component: str
    host: str = field(default_factory=socket.gethostname)
    instance: str = field(default_factory=instance_name)
    _since: datetime | None = None
    _reported_at: datetime | None = None

    def report(self, beats: Sequence[Progress]) -> None:
        """Store the progress of this process's loops, and judge that of all. Raises ``UnavailableError``."""
        with self.units.begin(_PRINCIPAL, REPORT, quiet=True) as unit:
            connection = unit.session.connection()
            connection.execute(_STORE, [self._row(beat) for beat in beats])
            connection.execute(_FORGET, {"kept": KEPT})
        if self._since is None or self._reported_at is None or unit.now - self._reported_at > GAP:
            self._since = unit.now
        self._reported_at = unit.now
        if unit.now - self._since >= GRACE:
            judge(self.units)

    def _row(self, beat: Progress) -> dict[str, Any]:
        return {
            "loop": beat.name,
            "instance": self.instance,
            "component": self.component,
            "host": self.host,
            "age_s": beat.age_s,
            "limit_s": beat.limit_s,
        }


def loop_ages(connection: Connection) -> list[LoopAge]:
    """Return every loop that a control plane needs, the ones that stand still first, by the database's clock alone."""
    found = {loop: (float(age_s), limit_s) for loop, age_s, limit_s in connection.execute(text(NEWEST))}
    ages = [_age_of(loop, started_by, found.get(loop)) for loop, started_by in STARTED_BY.items()]
    return sorted(ages, key=lambda each: not each.is_stalled)


def _age_of(loop: str, started_by: str, newest: tuple[float, float] | None) -> LoopAge:
    if newest is None:
        return LoopAge(loop, started_by, None, None)
    age_s, limit_s = newest
    return LoopAge(loop, started_by, max(0.0, age_s), limit_s)


def judge(units: UnitOfWorkFactory) -> None:
    """Open an incident for each loop that stands still, and close the incident of each that advances again."""
    with units.read() as session:
        stalled = {each.loop for each in loop_ages(session.connection()) if each.is_stalled}
    known = {row.subject_id for row in units.ask(_OPEN, {"kind": KIND})}
    if stalled == known:
        return
    with units.begin(_PRINCIPAL, JUDGE) as unit:
        if unit.session.scalar(_TURN):
            _apply(unit)


def _apply(unit: UnitOfWork) -> None:
    ages = loop_ages(unit.session.connection())
    stalled = {each.loop: each for each in ages if each.is_stalled}
    known = {incident.subject_id: incident for incident in incidents.open_about(unit, KIND, STARTED_BY)}
    for loop, incident in known.items():
        if loop not in stalled:
            incidents.close_incident(unit, incident, reason="the loop advances again")
    for loop, age in stalled.items():
        if loop not in known:
            summary = (
                f"the loop {loop} of the control plane has not advanced for {age.age_s:.0f} s:"
                f" start `{age.started_by}` again"
            )
            incidents.open_incident(unit, KIND, "loop", loop, summary, {"age_s": age.age_s, "limit_s": age.limit_s})
