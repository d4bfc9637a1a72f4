"""Verdicts of burn-ins: figures against the figures of equal GPUs. The GPU moves in the same transaction (I11).

The first GPU of its kind has no peers. Its open bands are judged again whenever there are more peers, until a majority
decides. A GPU that passed with wrong bits is found then.
"""

from typing import Any, Final

import structlog
from sqlalchemy import func, select, text
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, aliased

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.fleet.gpu_locks import lock_gpus
from control.health.burn_ins.abandoned import close_abandoned
from control.health.judge import judge_findings, policy_version
from control.health.transitions import judge_gpus
from control.policy.policies import active_policy
from health.burn_in import BurnInFigures, ComparisonKey, PartialSum, Verdict, finding_of, verdict_of
from muster.db.models import BurnIn, Gpu
from muster.domain.errors import MusterError
from muster.domain.policy.document import Policy
from muster.domain.principals import Permission, Principal
from muster.domain.states import BURN_IN_EDGES, BurnInOutcome, BurnInState, require_edge
from muster.domain.times import to_ms

JUDGE: Final = declare_action("burn_in.judge")
BATCH: Final = 50
PEERS_MAX: Final = 200
"""Number of the newest peers that are compared: a majority among them counts as one among all."""
_log = structlog.get_logger(__name__)


def judge_burn_ins_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Judge the measured burn-ins, then again the undecided ones that have more peers now. Return how many."""
    with units.read() as session:
        due = [*_unjudged(session), *_to_be_judged_again(session)]
    for burn_in_id in due:
        try:
            retrying(lambda burn_in_id=burn_in_id: _judge(units, principal, burn_in_id))  # type: ignore[misc]  # bound at once
        except MusterError:
            raise
        except Exception:  # noqa: BLE001  # a failure of one must not stop the others
            _log.exception("burn_in_not_judged", burn_in_id=burn_in_id)
    return len(due)


def figures_of(row: BurnIn) -> BurnInFigures:
    """Return what the pure verdict reads of a measured burn-in."""
    said: dict[str, Any] = row.figures or {}
    return BurnInFigures(
        gpu_uuid=row.gpu_uuid,
        key=ComparisonKey(said["model"], said["driver"], said["library"]),
        partial_sums=tuple(PartialSum(each["name"], each["golden"], each["measured"]) for each in said["partial_sums"]),
        bands=said["bands"],
        counter_deltas=said["counter_deltas"],
        rates=said["rates"],
        vendor_failures=tuple(said.get("vendor_tests", {}).get("failures", ())),
    )


def _judge(units: UnitOfWorkFactory, principal: Principal, burn_in_id: str) -> None:
    # Quiet: a second judgement with the same verdict changes only the number of peers. Every other change has its
    # event.
    with units.begin(principal, JUDGE, quiet=True) as unit:
        unit.principal.require(Permission.SYSTEM_RUN)
        gpu_uuid = unit.session.scalars(select(BurnIn.gpu_uuid).where(BurnIn.id == burn_in_id)).one()
        gpu = lock_gpus(unit, [gpu_uuid])[0]
        row = unit.session.get_one(BurnIn, burn_in_id, with_for_update=True, populate_existing=True)
        is_first = row.state is BurnInState.MEASURED
        if not is_first and not row.open_bands:
            return
        policy = active_policy(unit.session)
        peers = _peers(unit.session, row)
        verdict = verdict_of(figures_of(row), [figures_of(peer) for peer in peers], policy.health.burn_in)
        is_news = is_first or verdict.outcome is not row.outcome
        _store(unit, row, verdict, len(peers))
        if is_first:
            close_abandoned(unit, row)
        if is_news:
            _act(unit, gpu, row, verdict, policy)


def _store(unit: UnitOfWork, row: BurnIn, verdict: Verdict, num_peers: int) -> None:
    if row.state is BurnInState.MEASURED:
        require_edge(BURN_IN_EDGES, row.state, BurnInState.JUDGED)
    row.state, row.outcome = BurnInState.JUDGED, verdict.outcome
    row.reasons, row.open_bands = list(verdict.reasons), list(verdict.undecided)
    row.num_peers, row.judged_at, row.policy_version = num_peers, unit.now, policy_version(unit)
    unit.session.flush()


def _act(unit: UnitOfWork, gpu: Gpu, row: BurnIn, verdict: Verdict, policy: Policy) -> None:
    payload = {
        "burn_in_id": row.id,
        "outcome": verdict.outcome,
        "reasons": list(verdict.reasons),
        "num_peers": row.num_peers,
        "open_bands": list(verdict.undecided),
        "rates": dict(verdict.fingerprint),
    }
    unit.emit(f"gpu.burn_in_{verdict.outcome}", "gpu", row.gpu_uuid, payload=payload)
    finding = finding_of(verdict, row.node_id, _ended_ms(row), policy.health)
    if finding is not None:
        judge_findings(unit, [finding])
    elif verdict.outcome is BurnInOutcome.PASSED:
        judge_gpus(unit, [gpu], policy.health, policy_version(unit))


def _ended_ms(row: BurnIn) -> int:
    if row.ended_at is None:
        message = f"{row.id} has figures and never ended"
        raise AssertionError(message)
    return to_ms(row.ended_at)


def _peers(session: Session, row: BurnIn) -> list[BurnIn]:
    """Return the newest figures of each other GPU of its kind."""
    newest = (
        select(BurnIn.id, BurnIn.ended_at)
        .where(BurnIn.comparison_key == row.comparison_key, BurnIn.gpu_uuid != row.gpu_uuid)
        .ext(distinct_on(BurnIn.gpu_uuid))
        .order_by(BurnIn.gpu_uuid, BurnIn.ended_at.desc())
        .subquery()
    )
    query = select(BurnIn).join(newest, newest.c.id == BurnIn.id).order_by(BurnIn.ended_at.desc(), BurnIn.id)
    return list(session.scalars(query.limit(PEERS_MAX)).all())


def _unjudged(session: Session) -> list[str]:
    query = select(BurnIn.id).where(BurnIn.state == BurnInState.MEASURED).order_by(BurnIn.ended_at).limit(BATCH)
    return list(session.scalars(query).all())


def _to_be_judged_again(session: Session) -> list[str]:
    """Return each GPU's newest burn-in that is to be judged again: an older one says less than a newer measurement."""
    peer, later = aliased(BurnIn), aliased(BurnIn)
    num_peers = (
        select(func.count(func.distinct(peer.gpu_uuid)))
        .where(peer.comparison_key == BurnIn.comparison_key, peer.gpu_uuid != BurnIn.gpu_uuid)
        .scalar_subquery()
    )
    has_later = select(later.id).where(later.gpu_uuid == BurnIn.gpu_uuid, later.ended_at > BurnIn.ended_at).exists()
    query = (
        select(BurnIn.id)
        .where(
            BurnIn.state == BurnInState.JUDGED,
            text("burn_ins.open_bands <> '[]'"),
            ~has_later,
            func.least(num_peers, PEERS_MAX) != BurnIn.num_peers,
        )
        .order_by(BurnIn.ended_at)
        .limit(BATCH)
    )
    return list(session.scalars(query).all())
