"""The keeper of stragglers: it judges running attempts by the windows of their ranks.

    windows of ranks ── judge ── verdicts that begin, grow and end (``control.watch.straggler_verdicts``)

A turn reads attempts one after another by id until its time is over, and judges those with a new window. An attempt
without a slow rank is only read, and readings of GPUs are read only where a rank may be slow. What it has judged a
process keeps in memory: after a restart each attempt is judged again, which changes nothing.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.attempts.attempts import lock_attempt
from control.attempts.stragglers import FEW_RANKS, end_verdicts, open_verdicts
from control.core.unit_of_work import UnitOfWorkFactory, declare_action, retrying
from control.policy.policies import active_policy
from control.watch.links import links_of
from control.watch.straggler_readings import readings_of
from control.watch.straggler_verdicts import keep_verdicts
from control.watch.swaps import swap_once
from muster.db.models import Attempt, TrainingRank, VerdictRow
from muster.domain.errors import MusterError
from muster.domain.ids import AttemptId
from muster.domain.job.verdicts import VerdictKind, VerdictState
from muster.domain.policy.node_detectors import PairProbePolicy
from muster.domain.policy.stragglers import StragglerPolicy
from muster.domain.principals import Permission, Principal
from muster.domain.states import AttemptState
from watch.stragglers.causes import StragglerCause
from watch.stragglers.findings import Judgement
from watch.stragglers.judge import judge
from watch.stragglers.network import Link
from watch.stragglers.windows import RankWindows

JUDGE: Final = declare_action("straggler.judge")
TURN_S: Final = 4.0
"""A turn begins no further part of the round after so long."""
MOST_UNCLEAR: Final = 10
"""After more judgements in a row without enough windows, verdicts end: nothing shows that a rank is still slow."""
MOST_RANKS: Final = 4_096
"""Ranks of one attempt that are judged: the first ones."""
_BATCH: Final = 200
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Judged:
    """An attempt that this process has judged. ``windows_at``: its newest window then.

    ``num_unclear``: in so many of its newest judgements too few windows were known.
    """

    at: datetime
    windows_at: datetime
    num_unclear: int


@dataclass(frozen=True, slots=True)
class _Known:
    """What an attempt is judged by, other than readings. ``named``: ranks with a verdict that has not ended.

    ``links``: probes between its hosts, read only where all ranks wait longer.
    """

    ranks: Sequence[RankWindows]
    usual_s: Mapping[int, float]
    named: Collection[int]
    limits: PairProbePolicy
    links: Sequence[Link] = ()

    def judge(self, rules: StragglerPolicy, readings: Mapping[int, Mapping[str, float]] | None = None) -> Judgement:
        ranks = [replace(each, readings=readings.get(each.rank, {})) for each in self.ranks] if readings else self.ranks
        found = judge(ranks, rules, usual_s=self.usual_s, named=self.named)
        return found.with_links(self.links, self.limits)


class StragglerRounds:
    """Memory of one process over its turns: which windows it has judged, and where its round is."""

    def __init__(
        self, units: UnitOfWorkFactory, principal: Principal, *, read_clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._units = units
        self._principal = principal
        self._read_clock = read_clock
        self._judged: dict[AttemptId, _Judged] = {}
        self._round: set[AttemptId] = set()
        self._after = ""

    def once(self) -> int:
        """Judge attempts with new windows up to the end of the round or of the turn. Return how many were judged.

        Raises:
            MusterError: an attempt could not be judged. The others were, and the next turn tries it again.
        """
        with self._units.read() as session:
            rules = active_policy(session).watch.stragglers
        if not rules.is_on:
            return self._end_all()
        until = self._read_clock() + TURN_S
        faults: list[MusterError] = []
        num_judged = 0
        while True:
            with self._units.read() as session:
                due = self._next(session, rules)
            for attempt_id, windows_at in due:
                num_judged += self._try(attempt_id, windows_at, rules, faults)
            if not self._after or self._read_clock() >= until:
                break
        swap_once(self._units, self._principal)
        if faults:
            raise faults[0]
        return num_judged

    def _next(self, session: Session, rules: StragglerPolicy) -> Sequence[tuple[AttemptId, datetime]]:
        """Return which of the next running attempts have a new window. After the last, begin again.

        The ranks of a wide job end their windows one after another, so it is judged once in the time of a window.
        """
        query = select(Attempt.id).where(Attempt.state == AttemptState.RUNNING, Attempt.id > self._after)
        found = session.scalars(query.order_by(Attempt.id).limit(_BATCH)).all()
        self._round.update(found)
        self._after = found[-1] if len(found) == _BATCH else ""
        if not self._after:  # attempts that ended meanwhile are forgotten
            self._judged = {each: judged for each, judged in self._judged.items() if each in self._round}
            self._round.clear()
        recent = self._units.clock() - timedelta(seconds=rules.window_s)
        rested = [each for each in found if each not in self._judged or self._judged[each].at <= recent]
        newest = select(TrainingRank.attempt_id, func.max(TrainingRank.windows_at)).group_by(TrainingRank.attempt_id)
        of_each = newest.where(TrainingRank.attempt_id.in_(rested), TrainingRank.windows_at.is_not(None))
        return [
            (each, at)
            for each, at in session.execute(of_each.order_by(TrainingRank.attempt_id))
            if at is not None and (each not in self._judged or self._judged[each].windows_at != at)
        ]

    def _try(
        self, attempt_id: AttemptId, windows_at: datetime, rules: StragglerPolicy, faults: list[MusterError]
    ) -> bool:
        """Judge an attempt, and note its windows as judged unless the database refused."""
        before = self._judged.get(attempt_id)
        num_unclear = 0 if before is None else before.num_unclear
        try:
            num_unclear = retrying(lambda: self._judge(attempt_id, rules, num_unclear))
        except MusterError as fault:
            faults.append(fault)
            return False
        except Exception:  # noqa: BLE001  # whatever a program reported, the others are judged
            _log.exception("stragglers_not_judged", attempt_id=attempt_id)
        self._judged[attempt_id] = _Judged(self._units.clock(), windows_at, num_unclear)
        return True

    def _judge(self, attempt_id: AttemptId, rules: StragglerPolicy, num_unclear: int) -> int:
        """Judge an attempt. Return in how many of its newest judgements too few windows were known."""
        with self._units.read() as session:
            ranks = windows_of(session, attempt_id)
            usual_s = usual_of_earlier(session, attempt_id, len(ranks))
            stands = session.scalars(open_verdicts(attempt_id)).all()
            named = {rank for row in stands for rank in row.ranks if row.cause != StragglerCause.NETWORK}
            known = _Known(ranks, usual_s, named, active_policy(session).health.detectors.pair_probe)
            found = known.judge(rules)
            if found.network or found.long_waits:
                known = replace(known, links=links_of(session, attempt_id, self._units.clock()))
                found = found.with_links(known.links, known.limits)
        num_unclear = num_unclear + 1 if found.first_step is None else 0
        has_slow = bool(found.stragglers or found.imbalances)
        if not (has_slow or found.low_power or found.network or stands):
            return num_unclear
        with self._units.begin(self._principal, JUDGE, quiet=True) as unit:  # a verdict that grows leaves no trace
            unit.principal.require(Permission.SYSTEM_RUN)
            loaded = lock_attempt(unit, attempt_id)
            if loaded.attempt.state is not AttemptState.RUNNING:
                return num_unclear
            if num_unclear > MOST_UNCLEAR:
                end_verdicts(unit, attempt_id)
                return num_unclear
            readings = readings_of(unit, loaded) if has_slow or found.low_power else {}
            keep_verdicts(unit, loaded, known.judge(rules, readings) if readings else found)
        return num_unclear

    def _end_all(self) -> int:
        """End the verdicts of a policy by which nothing is judged any more. Return 0: no attempt was judged."""
        self._judged.clear()
        with self._units.read() as session:
            is_open = (VerdictRow.kind == VerdictKind.STRAGGLER, VerdictRow.ended_at.is_(None))
            query = select(VerdictRow.attempt_id).where(*is_open, VerdictRow.state == VerdictState.STANDING)
            attempt_ids = session.scalars(query.distinct().limit(_BATCH)).all()
        for attempt_id in attempt_ids:
            retrying(lambda attempt_id=attempt_id: self._end(attempt_id))  # type: ignore[misc]  # called at once
        return 0

    def _end(self, attempt_id: AttemptId) -> None:
        with self._units.begin(self._principal, JUDGE, quiet=True) as unit:
            unit.principal.require(Permission.SYSTEM_RUN)
            lock_attempt(unit, attempt_id)
            end_verdicts(unit, attempt_id)


def windows_of(session: Session, attempt_id: AttemptId) -> Sequence[RankWindows]:
    """Return the stored windows of an attempt's ranks."""
    query = select(TrainingRank.rank, TrainingRank.windows)
    query = query.where(TrainingRank.attempt_id == attempt_id, TrainingRank.windows.is_not(None))
    rows = session.execute(query.order_by(TrainingRank.rank).limit(MOST_RANKS))
    return [RankWindows.of_document(rank, windows) for rank, windows in rows]


def usual_of_earlier(session: Session, attempt_id: AttemptId, num_ranks: int) -> dict[int, float]:
    """Return the usual own compute of each rank in the job's attempt before, for a job of one rank or two.

    Such a rank has no peers, or one: a host that is slow from the start shows against the host before.
    """
    if num_ranks > FEW_RANKS:
        return {}
    own = select(Attempt.job_id, Attempt.number).where(Attempt.id == attempt_id).subquery()
    before = (
        select(Attempt.id)
        .where(Attempt.job_id == own.c.job_id, Attempt.number < own.c.number)
        .order_by(Attempt.number.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = select(TrainingRank.rank, TrainingRank.windows)
    query = query.where(TrainingRank.attempt_id == before, TrainingRank.windows.is_not(None))
    earlier = [RankWindows.of_document(rank, windows) for rank, windows in session.execute(query.limit(FEW_RANKS))]
    return {each.rank: each.usual_own_s for each in earlier if each.usual_own_s is not None}
