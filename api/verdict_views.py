"""Verdicts as the JSON that callers see."""

from api.views import time_of
from control.watch.learning import RuleCounts
from control.watch.types import VerdictRecord
from muster import documents


def verdict_view(row: VerdictRecord) -> documents.Verdict:
    """Return the verdict. A rank without a known GPU has none."""
    frame = row.frame
    return {
        "id": row.id,
        "job_id": row.job_id,
        "attempt_id": row.attempt_id,
        "tenant_id": row.tenant_id,
        "kind": row.kind,
        "cause": row.cause,
        "ranks": list(row.ranks),
        "node_id": row.node_id,
        "gpu": row.gpu or None,
        "phase": row.phase,
        "step": row.step,
        "operation": row.operation,
        "frame": None
        if frame is None
        else {"function": frame["function"], "file": frame["file"], "line": frame["line"]},
        "evidence": list(row.evidence),
        "sentence": row.sentence,
        "reaction": row.reaction,
        "state": row.state,
        "created_at": time_of(row.created_at),
        "dismissed_at": time_of(row.dismissed_at),
        "dismissed_by": row.dismissed_by,
        "dismiss_reason": row.dismiss_reason,
        "last_step": row.last_step,
        "ended_at": time_of(row.ended_at),
        "burn_in_id": row.burn_in_id,
        "burn_in_note": row.burn_in_note,
    }


def rules_view(found: RuleCounts) -> documents.VerdictRules:
    return {
        "since": time_of(found.since),
        "counts": [
            {
                "kind": each.kind,
                "cause": each.cause,
                "rule": each.rule,
                "num_verdicts": each.num_verdicts,
                "num_dismissed": each.num_dismissed,
            }
            for each in found.counts
        ],
        "learnt": [
            {
                "job_id": each.job_id,
                "kind": each.kind,
                "cause": each.cause,
                "rule": each.rule,
                "num_dismissed": each.num_dismissed,
                "proposal": each.proposal,
            }
            for each in found.learnt
        ],
    }
