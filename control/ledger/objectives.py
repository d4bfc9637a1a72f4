"""The keeper of error budgets: it counts events, moves the state of each objective, and opens and closes its incident.

All of one pass is one unit of work, under one lock for all control workers. A pass ends at the end of five minutes, and
the next one continues there: ``ledger.objectives`` finds each change of state at its own moment, however late the pass.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, func, select, text

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.incidents import incidents
from control.ledger.objective_counts import BUCKET, RECOUNT, Counted, count
from control.policy.policies import active_policy
from ledger.objectives import (
    Counts,
    History,
    Move,
    Pair,
    Tally,
    budget_of,
    burn_rate,
    burning_after,
    moves_of,
    pairs_of,
    state_changes,
    state_of,
)
from muster.db.models import Incident, ObjectiveCount, ObjectiveState
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.policy.objectives import BUCKET_S, Objective, ObjectivePolicy
from muster.domain.principals import system_principal
from muster.domain.times import to_ms, to_time

KEEP: Final = declare_action("objectives.keep")
KIND: Final = IncidentKind.OBJECTIVE_BURNING
SETTLED: Final = timedelta(seconds=20)
"""Events are in their order so long after they happened."""
FIRST: Final = timedelta(days=1)
"""A new objective counts events from so long before on."""
KEPT: Final = timedelta(days=35)
_PRINCIPAL: Final = system_principal("objectives")
_TURN: Final = text("SELECT pg_try_advisory_xact_lock(hashtext('muster objectives'))")
_STANDS: Final = "SELECT objective, basis, counted_until FROM objective_states"


def keep_objectives_once(units: UnitOfWorkFactory) -> int:
    """Bring all objectives of the policy to the end of the last five minutes. Return how many were behind."""
    until = _last_end(units.clock())
    with units.read() as session:
        policy = active_policy(session).objectives
    known = {row.objective: row for row in units.ask(_STANDS, {})}
    behind = [
        name
        for name, objective in policy.targets.items()
        if name not in known or known[name].basis != basis_of(objective) or known[name].counted_until < until
    ]
    if not behind and known.keys() <= policy.targets.keys():
        return 0
    with units.begin(_PRINCIPAL, KEEP, quiet=True) as unit:  # most passes count, and change no state
        if unit.session.scalar(_TURN):
            _keep(unit, active_policy(unit.session).objectives, until)
    return len(behind)


def basis_of(objective: Objective) -> str:
    """Return which events are counted: where it changes, what was counted before is of something else."""
    return f"{objective.job_class} {objective.indicator} {objective.within_s or ''}".strip()


def _last_end(now: datetime) -> datetime:
    settled_s = (now - SETTLED).timestamp()
    return to_time(int(settled_s // BUCKET_S * BUCKET_S) * 1000)


def _keep(unit: UnitOfWork, policy: ObjectivePolicy, until: datetime) -> None:
    states = {row.objective: row for row in unit.session.scalars(select(ObjectiveState).with_for_update())}
    for name, row in list(states.items()):
        objective = policy.targets.get(name)
        if objective is None or row.basis != basis_of(objective):
            _forget(unit, states.pop(name))
    wanted = [_counted(name, each, states.get(name), until) for name, each in policy.targets.items()]
    count(unit.session, wanted, until, policy)
    unit.session.execute(delete(ObjectiveCount).where(ObjectiveCount.ends_at < until - KEPT))
    turn = _Pass(unit, policy, until)
    for name, objective in policy.targets.items():
        turn.move(states.get(name) or _new(name, objective, until), objective, is_first=name not in states)


def _forget(unit: UnitOfWork, row: ObjectiveState) -> None:
    for incident in incidents.open_about(unit, KIND, [row.objective]):
        incidents.close_incident(unit, incident, reason="the policy no longer has this objective")
    unit.session.execute(delete(ObjectiveCount).where(ObjectiveCount.objective == row.objective))
    unit.session.delete(row)
    unit.session.flush()


def _counted(name: str, objective: Objective, row: ObjectiveState | None, until: datetime) -> Counted:
    since = until - FIRST if row is None else max(row.counted_until - RECOUNT, row.counted_from)
    if objective.indicator == "step_latency":  # only the newest steps are read, so what is counted stays
        since = until - BUCKET if row is None else min(row.counted_until, until)
    return Counted(name, objective.job_class, objective.indicator, objective.within_s, since)


def _new(name: str, objective: Objective, until: datetime) -> ObjectiveState:
    begin = until - (BUCKET if objective.indicator == "step_latency" else FIRST)
    return ObjectiveState(
        objective=name,
        job_class=objective.job_class,
        indicator=objective.indicator,
        basis=basis_of(objective),
        target=objective.target,
        window_days=objective.window_days,
        counted_from=begin,
        counted_until=begin,
        state="ok",
        state_since=begin,
        burning={},
        rates={},
        num_good=0,
        num_bad=0,
        left_fraction=1.0,
        is_spent=False,
    )


class _Pass:
    """One pass up to ``until``, with what all objectives need of it."""

    def __init__(self, unit: UnitOfWork, policy: ObjectivePolicy, until: datetime) -> None:
        self._unit = unit
        self._policy = policy
        self._until = until
        self._pairs = pairs_of(policy.burn_rates)
        self._longest = timedelta(milliseconds=max(pair.long_ms for pair in self._pairs))
        self._incidents = {each.subject_id: each for each in incidents.open_about(unit, KIND, policy.targets)}
        self._sums: dict[str, Counts] = {}
        for days in {objective.window_days for objective in policy.targets.values()}:
            self._sums |= self._sums_of(days)

    def _sums_of(self, days: int) -> dict[str, Counts]:
        """Return the events of so many days, of the objectives whose budgets count over them."""
        names = [name for name, objective in self._policy.targets.items() if objective.window_days == days]
        query = (
            select(ObjectiveCount.objective, func.sum(ObjectiveCount.num_good), func.sum(ObjectiveCount.num_bad))
            .where(ObjectiveCount.objective.in_(names), ObjectiveCount.ends_at > self._until - timedelta(days=days))
            .group_by(ObjectiveCount.objective)
        )
        return {name: Counts(int(good), int(bad)) for name, good, bad in self._unit.session.execute(query)}

    def move(self, row: ObjectiveState, objective: Objective, *, is_first: bool) -> None:
        """Bring one objective to ``until``: rates, budget, state with its events, and its incident.

        ``is_first``: what was before is history, of which only the present state matters.
        """
        if is_first:
            self._unit.session.add(row)
        history = self._history(row.objective, row.counted_until - self._longest)
        until_ms = to_ms(self._until)
        before = {name: at for name, at in row.burning.items() if name in self._policy.burn_rates}
        moves = moves_of(
            history,
            self._pairs,
            objective.target,
            since_ms=to_ms(row.counted_until),
            until_ms=until_ms,
            burning=before,
            min_bad=self._policy.min_bad_events,
        )
        after = burning_after(before, moves)
        row.burning = {name: _since(name, before, moves) for name in sorted(after)}
        row.rates = {pair.name: _rates(history, pair, until_ms, objective.target) for pair in self._pairs}
        row.target, row.window_days, row.counted_until = objective.target, objective.window_days, self._until
        _report_budget(self._unit, row, self._sums.get(row.objective, Counts()))
        changes = state_changes(before, moves, self._pairs)
        if not changes:  # another policy may give a pair another severity, or have fewer of them
            changes = [(until_ms, state_of(after, self._pairs))]
        for at_ms, state in changes[-1:] if is_first else changes:
            _change(self._unit, row, to_time(at_ms), state)
        _keep_incident(self._unit, row, self._incidents.get(row.objective))

    def _history(self, name: str, since: datetime) -> History:
        query = select(ObjectiveCount.ends_at, ObjectiveCount.num_good, ObjectiveCount.num_bad)
        rows = self._unit.session.execute(query.where(ObjectiveCount.objective == name, ObjectiveCount.ends_at > since))
        return History(Tally(to_ms(ends_at), good, bad) for ends_at, good, bad in rows)


def _rates(history: History, pair: Pair, until_ms: int, target: float) -> list[float]:
    """Return the rates of the long and the short window."""
    return [burn_rate(history.within(until_ms, length), target) for length in (pair.long_ms, pair.short_ms)]


def _since(name: str, before: Mapping[str, Any], moves: Sequence[Move]) -> str:
    begins = [move.at_ms for move in moves if move.pair == name and move.begins]
    return to_time(begins[-1]).isoformat() if begins else str(before[name])


def _report_budget(unit: UnitOfWork, row: ObjectiveState, sums: Counts) -> None:
    budget = budget_of(sums, row.target)
    row.num_good, row.num_bad, row.left_fraction = sums.good, sums.bad, budget.left_fraction
    if budget.is_spent != row.is_spent:
        row.is_spent = budget.is_spent
        kind = "objective.budget_spent" if row.is_spent else "objective.budget_recovered"
        unit.emit(kind, "objective", row.objective, payload={**_facts(row), "left_fraction": row.left_fraction})


def _change(unit: UnitOfWork, row: ObjectiveState, at: datetime, state: str) -> None:
    if state == row.state:
        return
    payload = {**_facts(row), "from": row.state, "to": state, "at": at.isoformat(), "burning": row.burning}
    row.state, row.state_since = state, at
    unit.emit("objective.state_changed", "objective", row.objective, payload=payload)


def _facts(row: ObjectiveState) -> dict[str, Any]:
    return {"job_class": row.job_class, "indicator": row.indicator, "target": row.target}


def _keep_incident(unit: UnitOfWork, row: ObjectiveState, incident: Incident | None) -> None:
    """Keep one incident open about an objective while its budget burns."""
    if row.state == "ok":
        if incident is not None:
            reason = f"the short window is below the rate since {row.state_since.isoformat()}"
            incidents.close_incident(unit, incident, reason=reason)
        return
    fastest = max(short for _, short in row.rates.values())
    summary = (
        f"{row.state}: the error budget of {row.objective} (class {row.job_class}) burns at {fastest:.3g} × its rate;"
        f" {max(row.left_fraction, 0):.0%} of {row.window_days} days are left"
    )
    payload = {**_facts(row), "severity": row.state, "burning": row.burning, "left_fraction": row.left_fraction}
    if incident is None:
        incidents.open_incident(unit, KIND, "objective", row.objective, summary, payload)
    elif incident.payload.get("severity") != row.state:
        incidents.extend_incident(unit, incident, summary, payload)
