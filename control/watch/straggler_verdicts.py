"""Verdicts on the slow ranks of an attempt, brought up to date with the newest judgement of their windows.

    slow, no verdict   → verdict, event; the one that ended earlier stands again
    slow, a verdict    → the verdict grows to the newest step
    not slow any more  → the verdict ends once that has lasted twice as long as it did (``is_over``)

A rank or a network has one verdict a cause. A rank with more work than its peers gets a warning, and no verdict.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import select

from control.attempts.attempts import LoadedAttempt
from control.attempts.ranks import gpus_by_rank, ranks_per_host
from control.attempts.stragglers import end_verdict, open_verdicts
from control.core.unit_of_work import UnitOfWork
from control.policy.policies import active_policy
from control.watch.swaps import reaction_to
from control.watch.verdicts import record_verdict
from muster.db.models import Node, TrainingRank, VerdictRow
from muster.domain.ids import NodeId
from muster.domain.job.verdicts import VerdictKind, VerdictReaction, VerdictState
from muster.domain.policy.document import Policy
from watch.stragglers.causes import StragglerCause
from watch.stragglers.findings import Imbalance, Judgement, Straggler
from watch.stragglers.judge import is_over
from watch.stragglers.network import SlowNetwork
from watch.stragglers.sentences import RankName, network_verdict, verdict_of, words_of

_UNEVEN: Final = "imbalance"


def keep_verdicts(unit: UnitOfWork, loaded: LoadedAttempt, found: Judgement) -> None:
    """Bring the verdicts of a locked attempt up to date with its newest judgement."""
    policy = active_policy(unit.session)
    names = _Names(unit, loaded)
    standing = unit.session.scalars(open_verdicts(loaded.attempt.id).with_for_update()).all()
    for row in standing:
        if _is_quiet(row, found):
            _end_or_wait(unit, row, found)
    unit.session.flush()
    of_rank = {row.ranks[0]: row for row in standing if row.ended_at is None and len(row.ranks) == 1}
    for each in found.stragglers:
        _keep_straggler(unit, loaded, each, of_rank.get(each.rank), names, policy)
    if found.network is not None:
        _keep_network(unit, loaded, found.network, [row for row in standing if row.ended_at is None], names)
    for uneven in found.imbalances:
        _warn(unit, loaded, uneven)


def _keep_straggler(
    unit: UnitOfWork,
    loaded: LoadedAttempt,
    found: Straggler,
    row: VerdictRow | None,
    names: "_Names",
    policy: Policy,
) -> None:
    """Let the verdict on a slow rank grow, or record one; again where its cause is known at last."""
    if row is not None:
        is_explained = row.cause == StragglerCause.COMPUTE and found.cause is not StragglerCause.COMPUTE
        if not is_explained:
            _grow(row, found.last_step)
            return
        end_verdict(unit, row)
        unit.session.flush()
    ended = _ended_before(unit, loaded, found.cause, (found.rank,))
    if ended is not None:
        _reopen(ended, found.last_step)
        return
    name = names.of(found.rank)
    node_id = names.node_id(found.rank)
    reaction = reaction_to(unit, loaded, found, node_id, policy)
    recorded = record_verdict(unit, loaded, verdict_of(found, name), node_id, reaction)
    if recorded is not None:
        recorded.last_step = found.last_step


def _keep_network(
    unit: UnitOfWork, loaded: LoadedAttempt, slow: SlowNetwork, standing: Sequence[VerdictRow], names: "_Names"
) -> None:
    """Let the verdict on a slow network grow, or record one; again where probes name a slow link at last."""
    for row in standing:
        if row.cause == StragglerCause.NETWORK:
            if row.ranks or not slow.pair:
                _grow(row, slow.last_step)
                return
            end_verdict(unit, row)
            unit.session.flush()
    rank = slow.pair[0] if slow.pair else 0
    verdict = network_verdict(slow, names.of(rank))
    ended = _ended_before(unit, loaded, StragglerCause.NETWORK, verdict.ranks)
    if ended is not None:
        _reopen(ended, slow.last_step)
        return
    node_id = names.node_id(rank) if slow.host else None
    recorded = record_verdict(unit, loaded, verdict, node_id, VerdictReaction.NOTIFY)
    if recorded is not None:
        recorded.last_step = slow.last_step


def _ended_before(
    unit: UnitOfWork, loaded: LoadedAttempt, cause: StragglerCause, ranks: Sequence[int]
) -> VerdictRow | None:
    """Return the verdict of the same cause and ranks that ended earlier in the attempt."""
    query = select(VerdictRow).where(
        VerdictRow.attempt_id == loaded.attempt.id,
        VerdictRow.kind == VerdictKind.STRAGGLER,
        VerdictRow.cause == cause,
        VerdictRow.ranks == list(ranks),
        VerdictRow.state == VerdictState.STANDING,
        VerdictRow.ended_at.is_not(None),
    )
    return unit.session.scalar(query.order_by(VerdictRow.id.desc()).limit(1).with_for_update())


def _reopen(row: VerdictRow, last_step: int) -> None:
    """Let a verdict stand again that had ended: a rank that is slow now and then has one. No swap follows."""
    row.ended_at = None
    _grow(row, last_step)
    if row.reaction is VerdictReaction.SWAP:
        row.reaction = VerdictReaction.NOTIFY


def _grow(row: VerdictRow, last_step: int) -> None:
    row.last_step = max(row.last_step or 0, last_step)


def _end_or_wait(unit: UnitOfWork, row: VerdictRow, found: Judgement) -> None:
    """End a verdict that no newest window shows, or let it stand for longer: it may come and go. No swap follows."""
    if is_over(found, row.step, row.last_step or row.step):
        end_verdict(unit, row)
    elif row.reaction is VerdictReaction.SWAP:
        row.reaction = VerdictReaction.NOTIFY


def _is_quiet(row: VerdictRow, found: Judgement) -> bool:
    """Return whether no newest window shows it any more. Too few windows, as after a resume, show nothing."""
    if found.first_step is None:
        return False
    if row.cause == StragglerCause.NETWORK:
        return found.network is None
    return not any(rank in found.slow_in for rank in row.ranks)


def _warn(unit: UnitOfWork, loaded: LoadedAttempt, uneven: Imbalance) -> None:
    """Warn once of a rank with more work: no host is to blame, and its program can share the work out evenly."""
    row = unit.session.get(TrainingRank, (loaded.attempt.id, uneven.rank), with_for_update=True)
    if row is None or _UNEVEN in (row.warnings or {}):
        return
    words = words_of(uneven)
    row.warnings = {**(row.warnings or {}), _UNEVEN: words}
    payload = {"job_id": loaded.job.id, "rank": uneven.rank, "code": _UNEVEN, "reason": words}
    tenant_id = loaded.attempt.tenant_id
    unit.emit("attempt.warned", "attempt", loaded.attempt.id, tenant_id=tenant_id, payload=payload)


class _Names:
    """Hosts and GPUs of the ranks of a locked attempt. They are ours: no report can name another host."""

    def __init__(self, unit: UnitOfWork, loaded: LoadedAttempt) -> None:
        self._per_host = ranks_per_host(loaded)
        self._hosts: Mapping[int, NodeId] = {host.node_rank: host.node_id for host in loaded.hosts}
        query = select(Node.id, Node.name).where(Node.id.in_(self._hosts.values()))
        self._names = dict(unit.session.execute(query).all())
        self._gpus = gpus_by_rank(unit, loaded)

    def node_id(self, rank: int) -> NodeId | None:
        return self._hosts.get(rank // self._per_host)

    def of(self, rank: int) -> RankName:
        node_id = self.node_id(rank)
        return RankName("" if node_id is None else self._names.get(node_id, ""), self._gpus.get(rank, ""))
