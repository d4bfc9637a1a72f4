"""Whether a job's GPUs may have worked while its ranks showed nothing but processor time, by their agents' samples."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select

from control.attempts.attempts import LoadedAttempt
from control.core.unit_of_work import UnitOfWork
from control.policy.policies import active_policy
from control.telemetry.history import samples_of_all
from control.watch.host_evidence import RECENT, gpus_of
from muster.db.models import StallReport
from muster.domain.gpu.metrics import INDEX
from muster.domain.ids import NodeId
from muster.domain.times import to_ms
from watch.progress.gpu_work import was_idle

_UTILISATION: Final = INDEX["utilisation_percent"]


def gpus_may_have_worked(unit: UnitOfWork, loaded: LoadedAttempt) -> bool:
    """Return whether any GPU may have worked of a host whose ranks are overdue although they use the processor.

    A host does not read GPUs itself. Where samples are missing, its GPUs may have worked. False without such a host.
    """
    is_busy = StallReport.report["is_busy"].as_boolean()
    query = select(StallReport.node_id).where(StallReport.attempt_id == loaded.attempt.id, is_busy)
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
    return all(was_idle(samples, *span_s) for samples in _utilisation(unit, loaded, node_id, since))


def _utilisation(
    unit: UnitOfWork, loaded: LoadedAttempt, node_id: NodeId, since: datetime
) -> Iterator[list[tuple[float, float]]]:
    """Yield for each GPU the moments in seconds, and its utilisation in percent."""
    own = gpus_of(unit, loaded).get(node_id, [])
    for moments, rows in samples_of_all(unit, own, {node_id}, since, unit.now).values():
        yield list(zip((moments / 1000).tolist(), rows[:, _UTILISATION].tolist(), strict=True))
