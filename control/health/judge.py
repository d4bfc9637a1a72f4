"""The judge: agents' signals become evidence, scores and moves. Any number may run; each takes its own signals.

A signal is marked as judged in the transaction of its effect, so it has effect once, whichever process dies at any
time. A batch that fails is tried item by item, and an item that fails alone is set aside:

    batch [s1 s2 s3]  --fails-->  rolled back
    s1 alone: ok      s2 alone: fails -> set aside, an incident is open      s3 alone: ok

The order is signals first, then due GPUs: evidence of this round is in the scores that the round computes.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog
from sqlalchemy import Select, or_, select

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.evidence.inbox import Reported, findings_of
from control.fleet.gpu_locks import lock_gpus
from control.health.burn_ins.orders import order_proofs, order_proposed
from control.health.programs import mark_programs
from control.health.record_evidence import record_evidence
from control.health.transitions import judge_gpus
from control.health.unprocessable import close_for, set_gpu_aside, set_signal_aside
from control.policy.policies import active_policy
from muster.db.models import Gpu, PolicyVersion, StoredSignal
from muster.domain.errors import UnavailableError
from muster.domain.evidence.findings import EventKind
from muster.domain.ids import GpuUuid
from muster.domain.principals import Permission, Principal

SIGNALS: Final = declare_action("judge.signals")
TIME: Final = declare_action("judge.time")
SET_ASIDE: Final = declare_action("judge.set_aside")
BATCH: Final = 200
_log = structlog.get_logger(__name__)


def judge_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Judge one round: the oldest unjudged signals, then the GPUs that are due. Return how many were judged."""
    round_ = _Round(units, principal)
    return round_.judge_signals() + round_.judge_due()


def judge_findings(unit: UnitOfWork, reported: Sequence[Reported], taken: Sequence[StoredSignal] = ()) -> int:
    """Turn findings into evidence and judge their GPUs. Return how many moved.

    ``taken``: the signals that reported the findings, which the caller holds.
    """
    unit.principal.require(Permission.SYSTEM_RUN)
    policy = active_policy(unit.session)
    gpus = record_evidence(unit, reported, policy.health, taken)
    num_moved = judge_gpus(unit, gpus, policy.health, policy_version(unit))
    order_proofs(unit, gpus, policy.health)
    order_proposed(unit, gpus, policy.health)
    return num_moved


def policy_version(unit: UnitOfWork) -> int | None:
    return unit.session.scalar(select(PolicyVersion.version).where(PolicyVersion.is_active))


class _Round:
    def __init__(self, units: UnitOfWorkFactory, principal: Principal) -> None:
        self._units = units
        self._principal = principal

    def judge_signals(self) -> int:
        def batch() -> int:
            with self._begin(SIGNALS) as unit:
                rows = unit.session.scalars(_oldest_waiting(unit).with_for_update(skip_locked=True)).all()
                if rows:
                    judge_findings(unit, _findings_of(unit, rows), rows)
                    _mark(unit, rows)
                return len(rows)

        def waiting() -> list[tuple[str, str]]:
            with self._begin(SIGNALS) as unit:
                return [(row.node_id, row.signal_id) for row in unit.session.scalars(_oldest_waiting(unit))]

        return self._in_batch(batch, waiting, self._judge_signal, self._set_signal_aside)

    def judge_due(self) -> int:
        """Judge the GPUs on which time alone has an effect: decay, dwell, the end of a probation."""

        def batch() -> int:
            with self._begin(TIME) as unit:
                return _judge_gpus(unit, _due_gpus(unit))

        def waiting() -> list[GpuUuid]:
            with self._begin(TIME) as unit:
                return _due_gpus(unit)

        return self._in_batch(batch, waiting, self._judge_gpu, self._set_gpu_aside)

    def _begin(self, action: str) -> UnitOfWork:
        return self._units.begin(self._principal, action, quiet=True)

    def _in_batch(
        self,
        batch: Callable[[], int],
        waiting: Callable[[], Sequence[Any]],
        alone: Callable[[Any], None],
        set_aside: Callable[[Any, Exception], None],
    ) -> int:
        """Judge all at once. Where that fails, judge each alone, so that one faulty item stops no other."""
        try:
            return retrying(batch)
        except UnavailableError:
            raise
        except Exception:  # noqa: BLE001  # whatever it is, it must not stop the judge
            _log.exception("judge_batch_failed")
        keys = waiting()
        for key in keys:
            try:
                retrying(lambda key=key: alone(key))  # type: ignore[misc]  # bound at once
            except UnavailableError:
                raise
            except Exception as error:  # noqa: BLE001  # its own fault, whatever it is
                _log.exception("judge_sets_aside", subject=key)
                retrying(lambda key=key, error=error: set_aside(key, error))  # type: ignore[misc]  # bound at once
        return len(keys)

    def _judge_signal(self, key: tuple[str, str]) -> None:
        """Store the evidence of one signal.

        Its GPUs become due: a failure in judging one is the GPU's, not the signal's.
        """
        with self._begin(SIGNALS) as unit:
            row = _locked_signal(unit, key)
            if row is not None:
                for gpu in record_evidence(unit, _findings_of(unit, [row]), active_policy(unit.session).health, [row]):
                    gpu.judge_at = unit.now
                _mark(unit, [row])

    def _set_signal_aside(self, key: tuple[str, str], error: Exception) -> None:
        with self._begin(SET_ASIDE) as unit:
            row = _locked_signal(unit, key)
            if row is not None:
                set_signal_aside(unit, row, error)

    def _judge_gpu(self, uuid: GpuUuid) -> None:
        with self._begin(TIME) as unit:
            _judge_gpus(unit, [uuid])

    def _set_gpu_aside(self, uuid: GpuUuid, error: Exception) -> None:
        with self._begin(SET_ASIDE) as unit:
            for gpu in lock_gpus(unit, [uuid]):
                set_gpu_aside(unit, gpu, error)


def _oldest_waiting(unit: UnitOfWork) -> Select[StoredSignal]:
    is_due = or_(StoredSignal.judge_after.is_(None), StoredSignal.judge_after <= unit.now)
    return (
        select(StoredSignal)
        .where(StoredSignal.judged_at.is_(None), is_due)
        .order_by(StoredSignal.received_at, StoredSignal.node_id, StoredSignal.signal_id)
        .limit(BATCH)
    )


def _locked_signal(unit: UnitOfWork, key: tuple[str, str]) -> StoredSignal | None:
    """Return the signal, locked. None: another judge has it, or judged it."""
    query = select(StoredSignal).where(
        StoredSignal.node_id == key[0], StoredSignal.signal_id == key[1], StoredSignal.judged_at.is_(None)
    )
    return unit.session.scalar(query.with_for_update(skip_locked=True))


def _findings_of(unit: UnitOfWork, rows: Sequence[StoredSignal]) -> list[Reported]:
    mark_programs(unit, rows)
    return findings_of(rows, active_policy(unit.session).health)


def _mark(unit: UnitOfWork, rows: Sequence[StoredSignal]) -> None:
    close_for(unit, rows, ())
    for row in rows:
        row.judged_at, row.judge_after, row.judge_fault = unit.now, None, None
        if row.kind == EventKind.COUNTER_RESET and row.gpu_uuid is not None:  # no finding: only history
            detail = {"counters": row.text, "at": row.at.isoformat(), **row.values}
            unit.emit("gpu.counters_reset", "gpu", row.gpu_uuid, payload=detail)


def _due_gpus(unit: UnitOfWork) -> list[GpuUuid]:
    query = select(Gpu.uuid).where(Gpu.judge_at <= unit.now).order_by(Gpu.judge_at).limit(BATCH)
    return list(unit.session.scalars(query))


def _judge_gpus(unit: UnitOfWork, uuids: Sequence[GpuUuid]) -> int:
    if not uuids:
        return 0
    gpus = lock_gpus(unit, uuids)
    policy = active_policy(unit.session).health
    judge_gpus(unit, gpus, policy, policy_version(unit))
    order_proofs(unit, gpus, policy)
    order_proposed(unit, gpus, policy)
    close_for(unit, (), [gpu.uuid for gpu in gpus])
    return len(gpus)
