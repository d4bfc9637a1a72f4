"""Verdicts on steps that ran again: their place, and what is known of them later.

Reports of ``muster.train`` (``reruns``) and declared exit codes (``rerun_codes``) bring about the same verdicts. A
later report decides one: its place and sentence are written again, with the event, the reported evidence and the
burn-in of the GPU that it names.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from control.attempts.attempts import LoadedAttempt
from control.attempts.ranks import gpus_by_rank, host_of_rank
from control.core.unit_of_work import UnitOfWork
from control.watch.blame import blame
from control.watch.verdicts import bounded
from muster.db.models import Node, VerdictRow
from muster.domain.ids import NodeId
from muster.domain.job.verdicts import VerdictKind
from watch.phases import Phase
from watch.reruns.judge import RerunCause, RerunOutcome
from watch.verdicts import Verdict

_BLAMES_GPUS: Final = frozenset({RerunCause.TRANSIENT, RerunCause.PERSISTENT})


def verdict_on(
    unit: UnitOfWork,
    loaded: LoadedAttempt,
    kind: VerdictKind,
    outcome: RerunOutcome,
    *,
    step: int,
    operation: str,
    what: str,
    evidence: Iterable[str],
) -> Verdict:
    """Return the verdict with host and GPU of its rank. ``what``: what the sentence states of the place."""
    ranks = outcome.ranks
    node_id = only_host(loaded, ranks)
    node = "" if node_id is None else unit.session.get_one(Node, node_id).name
    gpu = gpus_by_rank(unit, loaded).get(ranks[0], "") if len(ranks) == 1 else ""
    place = f"Rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}" if ranks else "No rank is named"
    place += (f" on {node}" if node else "") + (f" ({gpu})" if gpu else "")
    return Verdict(
        kind=kind,
        cause=str(outcome.cause),
        ranks=ranks,
        node=node,
        gpu=gpu,
        phase=Phase.STEP,
        step=step,
        operation=operation,
        frame=None,
        evidence=tuple(dict.fromkeys(each for each in evidence if each)),
        sentence=f"{place}: {what}",
    )


def only_host(loaded: LoadedAttempt, ranks: Sequence[int]) -> NodeId | None:
    """Return the host of the rank. Of several ranks one has spread its fault to the others, so none is named."""
    host = host_of_rank(loaded, ranks[0]) if len(ranks) == 1 else None
    return None if host is None else host.node_id


def rewrite(unit: UnitOfWork, loaded: LoadedAttempt, row: VerdictRow, found: Verdict) -> None:
    """Write what is known by now to a standing verdict on a locked attempt, and let it blame the place it names."""
    row.cause, row.ranks, row.gpu = found.cause, list(found.ranks), found.gpu
    row.node_id = only_host(loaded, found.ranks)
    row.sentence, row.evidence = bounded(found)
    unit.emit(
        "attempt.rerun",
        "attempt",
        row.attempt_id,
        tenant_id=row.tenant_id,
        payload={
            "job_id": row.job_id,
            "verdict_id": row.id,
            "kind": row.kind,
            "cause": row.cause,
            "ranks": row.ranks,
            "node_id": row.node_id,
            "step": row.step,
            "reason": row.sentence,
        },
    )
    unit.session.flush()
    blame(unit, loaded, row)
    propose_burn_in(unit, row)


def propose_burn_in(unit: UnitOfWork, row: VerdictRow) -> None:
    """Let the burn-in of the GPU be decided on, if the verdict blames one and has none yet."""
    is_faulty = row.cause in _BLAMES_GPUS and row.gpu
    row.burn_in_next_at = unit.now if is_faulty and row.burn_in_id is None else None
