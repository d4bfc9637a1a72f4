"""What the control plane emits in a month: events from which a recount counts by a path of its own."""

from collections.abc import Iterator, Mapping
from typing import Any

from ledger.recount import Enrolled, Event
from simulator.month.facts import gpu_uuid, job_id, moves_of, node_id
from simulator.month.history import GPUS_A_NODE, Attempt, History, Outage
from simulator.month.reports import Silence
from simulator.month.truth import BURN_IN

_Dated = tuple[int, str, str, Mapping[str, Any]]


def inventory_of(history: History) -> list[Enrolled]:
    return [Enrolled(gpu_uuid(gpu), node_id(gpu // GPUS_A_NODE), 0) for gpu in range(history.shape.num_gpus)]


def events_of(history: History, silences: tuple[Silence, ...]) -> list[Event]:
    """Return all events in order of time; at one moment an end comes before a start."""
    dated = [*_enrolments(history)]
    for one in history.attempts:
        dated += _of_attempt(one)
    for outage in history.outages:
        dated += _of_outage(outage)
    for silence in silences:
        dated.append((silence.start_ms, "node.silent", node_id(silence.node), {}))
        dated.append((silence.end_ms, "node.live", node_id(silence.node), {}))
    dated.sort(key=lambda one: (one[0], one[1] == "attempt.placed"))
    return [Event(f"event_{number}", kind, at_ms, subject, payload) for number, (at_ms, kind, subject, payload) in
            enumerate(dated)]  # fmt: skip


def _enrolments(history: History) -> Iterator[_Dated]:
    for node in range(history.shape.num_nodes):
        yield 0, "node.enrolled", node_id(node), {}
        yield 0, "node.live", node_id(node), {}
    for gpu in range(history.shape.num_gpus):
        yield 0, "gpu.healthy", gpu_uuid(gpu), {"cause": "burn_in_passed"}


def _of_attempt(one: Attempt) -> Iterator[_Dated]:
    nodes: dict[str, list[str]] = {}
    for gpu in one.gpus:
        nodes.setdefault(node_id(gpu // GPUS_A_NODE), []).append(gpu_uuid(gpu))
    yield one.start_ms, "attempt.placed", one.attempt_id, {"job_id": job_id(one.job), "nodes": nodes}
    if one.end_ms is not None and one.cause is not None:
        for node in nodes:
            yield one.end_ms, "attempt.host_exited", one.attempt_id, {"node_id": node}
            yield one.end_ms, "attempt.host_clean", one.attempt_id, {"node_id": node}
        yield one.end_ms, "attempt.ended", one.attempt_id, {"cause": one.cause.value}


def _of_outage(outage: Outage) -> Iterator[_Dated]:
    for gpu in range(outage.node * GPUS_A_NODE, (outage.node + 1) * GPUS_A_NODE):
        uuid = gpu_uuid(gpu)
        for move in moves_of(outage):
            payload = {"cause": move.cause, "evidence_ids": list(move.evidence)}
            yield move.at_ms, f"gpu.{move.standing.value.lower()}", uuid, payload
        yield outage.end_ms - BURN_IN, "gpu.burn_in_began", uuid, {"burn_in_id": f"bi_{uuid}_{outage.start_ms}"}
        yield outage.end_ms, "gpu.burn_in_measured", uuid, {"burn_in_id": f"bi_{uuid}_{outage.start_ms}"}
