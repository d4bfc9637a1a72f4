"""What a job's GPUs did while its ranks showed nothing but processor time, by their agents' samples.

A host does not read GPUs itself. Two questions are asked about ranks without a sensor::

    after busy_quiet_s   may their GPUs have worked?           any utilisation, and any gap, is work
    after quiet_s        did their GPUs wait in a collective?  only if samples of the whole time show it
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select

from control.attempts.attempts import LoadedAttempt
from control.attempts.ranks import gpus_by_rank
from control.core.unit_of_work import UnitOfWork
from control.policy.policies import active_policy
from control.telemetry.history import Samples, samples_of_all
from control.watch.host_evidence import RECENT, gpus_of
from control.watch.stall_reports import IS_EARLY
from muster.db.models import StallReport
from muster.domain.gpu.metrics import INDEX
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.times import to_ms
from watch.forensics.documents import from_document
from watch.forensics.from_ranks import is_loop
from watch.progress.gpu_work import GpuUse, was_idle, was_waiting

PAST: Final = timedelta(hours=6)
"""The part of an attempt before a wait that its GPUs are compared with."""
_SAMPLED: Final = [INDEX[name] for name in ("utilisation_percent", "power_w", "tensor_active_percent")]


def gpus_may_have_worked(unit: UnitOfWork, loaded: LoadedAttempt) -> bool:
    """Return whether any GPU may have worked of a host whose ranks are overdue although they use the processor.

    Where samples are missing, its GPUs may have worked. False without such a host.
    """
    is_busy = StallReport.report["is_busy"].as_boolean()
    query = select(StallReport.node_id).where(StallReport.attempt_id == loaded.attempt.id, is_busy, ~IS_EARLY)
    nodes = unit.session.scalars(query).all()
    if not nodes:
        return False
    whole = timedelta(seconds=active_policy(unit.session).watch.busy_quiet_s)
    begins = (unit.now - min(whole, RECENT), unit.now - whole)  # the last minutes suffice for most GPUs that work
    return any(
        not _were_idle(unit, loaded, node, max(since, loaded.attempt.placed_at)) for since in begins for node in nodes
    )


def _were_idle(unit: UnitOfWork, loaded: LoadedAttempt, node_id: NodeId, since: datetime) -> bool:
    span_s = to_ms(since) / 1000, to_ms(unit.now) / 1000
    own = gpus_of(unit, loaded.attempt.id).get(node_id, [])
    found = samples_of_all(unit, own, {node_id}, since, unit.now)
    return all(was_idle(uses_in(samples), *span_s) for samples in found.values())


def have_gpus_waited(unit: UnitOfWork, loaded: LoadedAttempt, rows: Sequence[StallReport]) -> bool:
    """Return whether the GPUs of all ranks that use the processor are known to have waited for all of ``quiet_s``.

    The other GPUs of these hosts did the same, or nothing at all.
    """
    if not rows:
        return True
    by_node, by_rank = gpus_of(unit, loaded.attempt.id), gpus_by_rank(unit, loaded)
    return all(_have_waited(unit, loaded, row, by_node.get(row.node_id, []), by_rank) for row in rows)


def _have_waited(
    unit: UnitOfWork,
    loaded: LoadedAttempt,
    row: StallReport,
    own: Sequence[GpuUuid],
    by_rank: Mapping[int, GpuUuid],
) -> bool:
    policy = active_policy(unit.session).watch
    begin = loaded.attempt.running_at or loaded.attempt.placed_at
    since = unit.now - timedelta(seconds=policy.quiet_s)
    loops = {rank.rank for rank in from_document(row.report).ranks if is_loop(rank)}
    waiting = {by_rank[rank] for rank in loops} if loops <= by_rank.keys() else set(own)
    if since <= begin or not waiting:
        return False
    span_s = to_ms(since) / 1000, to_ms(unit.now) / 1000
    newest = _samples(unit, row.node_id, own, max(begin, unit.now - RECENT))
    rules = policy.gpu_wait
    if any(each.utilisation < rules.utilisation_percent for gpu in waiting for each in newest[gpu]):
        return False  # most GPUs that work are idle now and then: the last minutes suffice
    whole = _samples(unit, row.node_id, own, max(begin, since - PAST))
    return all(
        was_waiting(whole[gpu], *span_s, rules) or (gpu not in waiting and was_idle(whole[gpu], *span_s)) for gpu in own
    )


def _samples(
    unit: UnitOfWork, node_id: NodeId, gpus: Sequence[GpuUuid], since: datetime
) -> dict[GpuUuid, list[GpuUse]]:
    found = samples_of_all(unit, gpus, {node_id}, since, unit.now)
    return {gpu: uses_in(samples) for gpu, samples in found.items()}


def uses_in(samples: Samples) -> list[GpuUse]:
    """Return a GPU's samples as the judgement of its use reads them."""
    moments, values = samples
    return [
        GpuUse(at_s, *row)
        for at_s, row in zip((moments / 1000).tolist(), values[:, _SAMPLED].astype(float).tolist(), strict=True)
    ]
