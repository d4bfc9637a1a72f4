"""The report of a scenario's decision: a plan that is only asked for, its reasons, and the end of planned work."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from muster.domain.ids import AttemptId
from muster.domain.job.plan_texts import Tense
from muster.domain.job.wait_reasons import WaitReason
from scheduler.explain.advice import answer
from scheduler.explain.clauses import moment
from scheduler.fleet.topology import FleetState
from scheduler.model import Question, RunnerUp, StartRange, Swap, Verdict, WaitingJob
from scheduler.planner import plan_on
from simulator.scenarios.shown import Window, seconds_of

_IS_SEEN_TO: Final = frozenset({WaitReason.RECLAIM_NOTIFIED, WaitReason.HOLD})


def planned(
    question: Question,
    one: WaitingJob,
    levels: Sequence[str],
    names: Mapping[AttemptId, str],
    windows: Sequence[Window],
) -> dict[str, Any]:
    """Return what would become of ``one``, which is in the queue of ``question``; nothing of the plan is kept."""
    state = FleetState(question.gpus, question.policy, levels)
    decided = plan_on(state, question.queue, question.policy, question.workload)
    placed = [item.parts for item in decided.placements if item.job_id == one.job_id]
    if placed:
        return {"nodes": [node for node, _ in placed[0]]}
    found = answer(state, question, decided, one, 0.0)
    node_of = {view.uuid: view.node_id for view in question.gpus}
    own = [reclaim for reclaim in decided.reclaims if reclaim.beneficiary == one.job_id]
    return {
        "nodes": list(dict.fromkeys(node_of[uuid] for reclaim in own for uuid in reclaim.hold)),
        "victims": sorted(names[reclaim.victim] for reclaim in own),
        "cost_gpu_s": round(sum(reclaim.cost_gpu_s for reclaim in own), 1) if own else None,
        "starts": _range_of(found.starts),
        "changes": [{change.field: change.value} for change in found.changes],
        "why": why_of(found.verdict.in_tense(Tense.CONDITIONAL), found.verdict, windows, question.workload.now_ms),
        **reasons_of(found.verdict),
    }


def _range_of(starts: StartRange | None) -> dict[str, float | None] | None:
    if starts is None:
        return None
    latest_s = None if starts.latest_ms is None else seconds_of(starts.latest_ms)
    return {"earliest_s": seconds_of(starts.earliest_ms), "latest_s": latest_s}


def why_of(why: str, verdict: Verdict, windows: Sequence[Window], now_ms: int) -> str:
    """Return the reason with the end of planned work that keeps a job pending: the planner gives only its start."""
    tokens = {reason.token for reason in verdict.reasons}
    if tokens & _IS_SEEN_TO:
        return why
    ahead = [
        window
        for window in windows
        if now_ms < window.until_ms
        and (WaitReason.CORDON if window.starts_ms <= now_ms else WaitReason.MAINTENANCE) in tokens
    ]
    if not ahead:
        return why
    told = [f"on {_hosts(window)} at {moment(window.until_ms)}" for window in sorted(ahead, key=_until_ms)]
    return f"{why}; the planned work is over {', '.join(told)}"


def _until_ms(window: Window) -> int:
    return window.until_ms


def _hosts(window: Window) -> str:
    return "1 host" if len(window.nodes) == 1 else f"{len(window.nodes)} hosts"


def runner_up_of(best: RunnerUp, names: Mapping[AttemptId, str]) -> dict[str, Any]:
    return {"victims": sorted(names[victim] for victim in best.victims), "cost_gpu_s": round(best.cost_gpu_s, 1)}


def recovery_of(swap: Swap) -> dict[str, Any]:
    """Return how a job continues after a fault."""
    if swap.resized is not None:
        resized = swap.resized
        hosts = {"left": list(resized.left), "joined": list(resized.joined)}
        return {"kept_nodes": swap.kept_nodes, "from_nodes": resized.from_nodes, **hosts}
    return {"kept_nodes": swap.kept_nodes, "replaced": dict(swap.replaced) if swap.kept_nodes else None}


def reasons_of(verdict: Verdict) -> dict[str, Any]:
    """Return the reasons in their order, with what each excludes; and the one that binds."""
    counted = [
        {"token": str(one.token), "num_gpus": one.num_gpus, "num_hosts": one.num_hosts} for one in verdict.reasons
    ]
    return {"binding": str(verdict.binding), "reasons": counted}
