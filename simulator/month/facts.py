"""What the control plane's tables would say of a month at a time: facts of the ledger for one window."""

from collections.abc import Iterable
from typing import Final

from ledger.facts import Attempt, EarlierAttempt, Facts, Gpu, Node, Period, StandingMove, Steps, Use, Wait
from ledger.periods import joined
from muster.domain.states import Cause, Standing
from simulator.month import history as played
from simulator.month.history import GPUS_A_NODE, HOUR_MS, NODES_A_RACK, Outage, by_job
from simulator.month.reports import Reports, Step
from simulator.month.truth import BURN_IN, REPAIR_AFTER

MODEL: Final = "NVIDIA H100"
COHORT: Final = "h100"
WAITS_FOR: Final = "capacity"


def gpu_uuid(gpu: int) -> str:
    return f"GPU-{gpu // GPUS_A_NODE:05}-{gpu % GPUS_A_NODE}-0000-4000-8000-000000000000"


def number_of(uuid: str) -> int:
    """Return the number of the GPU with this UUID."""
    _, node, slot, *_ = uuid.split("-")
    return int(node) * GPUS_A_NODE + int(slot)


def node_id(node: int) -> str:
    return f"node_{node:05}"


def job_id(job: int) -> str:
    return f"job_{job:05}"


def evidence_of(one: played.Attempt) -> tuple[str, ...]:
    """Return what proves why the attempt ended: a reclaim, or a finding on a GPU."""
    if one.cause is Cause.RECLAIMED:
        return (f"rcl_{one.job:05}_{one.number:03}",)
    return (f"ev_{one.job:05}_{one.number:03}",) if one.cause is Cause.GPU_FAULT else ()


class Rows:
    """The tables at any time, for any window. Times are the history's, from ``start_ms`` 0 on."""

    def __init__(self, reports: Reports) -> None:
        self._reports, self._history = reports, reports.history
        self._of_job = by_job(self._history.attempts)
        self._outages: dict[int, list[Outage]] = {}
        for outage in self._history.outages:
            self._outages.setdefault(outage.node, []).append(outage)
        self._silences: dict[int, list[Period]] = {}
        for one in reports.silences:
            self._silences.setdefault(one.node, []).append(Period(one.start_ms, one.end_ms, "silent"))
        self._waits = joined((start_ms, end_ms) for _, start_ms, end_ms in waits_of(self._history))

    def facts(self, start_ms: int, end_ms: int, known_ms: int) -> Facts:
        """Return the facts of a window as they are known at a time after it."""
        alive = [
            one
            for one in self._history.attempts
            if one.start_ms < end_ms and (one.end_ms is None or one.end_ms > start_ms)
        ]
        uses: dict[int, list[Use]] = {}
        for one in alive:
            over_ms = None if one.end_ms is None or one.end_ms > known_ms else one.end_ms
            use = Use(one.attempt_id, one.start_ms, over_ms, over_ms)
            for gpu in one.gpus:
                uses.setdefault(gpu, []).append(use)
        return Facts(
            start_ms,
            end_ms,
            tuple(self._gpu(gpu, uses.get(gpu, ())) for gpu in range(self._history.shape.num_gpus)),
            {node_id(node): self._node(node) for node in range(self._history.shape.num_nodes)},
            {one.attempt_id: self._attempt(one, start_ms, end_ms, known_ms) for one in alive},
            tuple(
                Wait(from_ms, until_ms, WAITS_FOR)
                for from_ms, until_ms in self._waits
                if from_ms < end_ms and until_ms > start_ms
            ),
        )

    def _gpu(self, gpu: int, uses: Iterable[Use]) -> Gpu:
        outages = self._outages.get(gpu // GPUS_A_NODE, ())
        return Gpu(
            gpu_uuid(gpu),
            node_id(gpu // GPUS_A_NODE),
            MODEL,
            COHORT,
            0,
            moves=(StandingMove(0, Standing.HEALTHY), *(move for one in outages for move in moves_of(one))),
            burn_ins=tuple(Period(one.end_ms - BURN_IN, one.end_ms, "after_repair") for one in outages),
            uses=tuple(uses),
        )

    def _node(self, node: int) -> Node:
        rack = f"rack-{node // NODES_A_RACK}"
        return Node(node_id(node), rack, None, silences=tuple(self._silences.get(node, ())))

    def _attempt(self, one: played.Attempt, start_ms: int, end_ms: int, known_ms: int) -> Attempt:
        job = self._history.jobs[one.job]
        told = self._reports.known(one.attempt_id, known_ms)
        is_over = one.end_ms is not None and one.end_ms <= known_ms
        return Attempt(
            one.attempt_id,
            one.start_ms,
            job_id=job_id(one.job),
            tenant_id=job.tenant,
            tier=job.tier,
            claimed_ms=one.start_ms,
            running_ms=one.start_ms,
            first_step_ms=told[0].start_ms if told else None,
            ended_ms=one.end_ms if is_over else None,
            known_until_ms=known_ms,
            end_cause=one.cause if is_over else None,
            steps=tuple(_runs(step for step in told if step.end_ms > start_ms and step.start_ms < end_ms + HOUR_MS)),
            earlier=tuple(self._earlier(one, known_ms)),
        )

    def _earlier(self, one: played.Attempt, known_ms: int) -> Iterable[EarlierAttempt]:
        for before in self._of_job[one.job][: one.number - 1]:
            told = self._reports.known(before.attempt_id, known_ms)
            if told and before.cause is not None and before.end_ms is not None:
                had_ms = before.end_ms - before.start_ms
                yield EarlierAttempt(before.number, told[-1].number, before.cause, evidence_of(before), had_ms)


def moves_of(outage: Outage) -> tuple[StandingMove, ...]:
    """Return how the standing of a failed node's GPUs changes. The burn-in is a period of its own."""
    burn_in_ms = outage.end_ms - BURN_IN
    return (
        StandingMove(outage.start_ms, Standing.QUARANTINED, "finding", (f"ev_{outage.node}_{outage.start_ms}",), 1),
        StandingMove(outage.start_ms + REPAIR_AFTER, Standing.REPAIR, "repair", (), 2),
        StandingMove(burn_in_ms, Standing.UNPROVEN, "repaired", (), 3),
        StandingMove(outage.end_ms, Standing.HEALTHY, "burn_in_passed", (), 4),
    )


def waits_of(history: played.History) -> list[tuple[int, int, int]]:
    """Return each job with when it waited: since its submission, and after each attempt that did not finish it."""
    found: list[tuple[int, int, int]] = []
    attempts = by_job(history.attempts)
    for number, job in enumerate(history.jobs):
        since_ms: int | None = round(job.submit_s * 1000)
        for one in attempts.get(number, ()):
            if since_ms is not None and since_ms < one.start_ms:
                found.append((number, since_ms, one.start_ms))
            since_ms = one.end_ms if one.cause in {Cause.GPU_FAULT, Cause.RECLAIMED} else None
        if since_ms is not None and since_ms < history.until_ms:
            found.append((number, since_ms, history.until_ms))
    return found


def _runs(steps: Iterable[Step]) -> Iterable[Steps]:
    """Yield steps in a row without a save as one run, as the loader does."""
    run: list[Step] = []
    for step in steps:
        if run and (step.save_ms or run[-1].save_ms or step.number != run[-1].number + 1):
            yield _run(run)
            run = []
        run.append(step)
    if run:
        yield _run(run)


def _run(run: list[Step]) -> Steps:
    first, last = run[0], run[-1]
    return Steps(first.number, last.number, last.end_ms, last.end_ms - first.start_ms, last.save_ms)
