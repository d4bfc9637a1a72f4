"""``muster health replay`` judges recorded reports and events again by the rules, and shows the results."""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from health.replay.replay import Replay
from health.replay.stream import Fleet, Moved, Opened, Output, Overridden, Passed, ReplayLine, RuleCordon, Scored, Unmet
from muster.cli.framework.durations import seconds_of
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import json_of, print_line
from muster.cli.framework.policy_files import policy_of_file
from muster.cli.gpu.health_records import RecordError, inputs_of
from muster.cli.gpu.odd_readings import OddReadings
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import Standing

MAX_LINE: Final = 16 << 20


def replay(
    file: Path, policy: Path | None, standing: Standing, until: str | None, fleet: int | None, *, as_json: bool
) -> int:
    """Replay the records of ``file``, as ``muster health replay`` explains its options. Return the exit code."""
    world = Replay((policy_of_file(policy) if policy is not None else DEFAULT_POLICY).health, standing=standing)
    extra_ms = int((seconds_of(until, "--until") or 0) * 1000)
    if fleet is not None:
        world.breaker.fleet = Fleet(0, fleet)
    odd = OddReadings()
    for line, record in _records(file):
        try:
            if odd.take_out_of(record, line):
                continue
            given = inputs_of(record, line)
        except RecordError as fault:
            raise CommandError(f"{file}, line {line}: {fault}", code=Exit.INVALID) from None
        for each in given:
            if fleet is None or not isinstance(each, Fleet):
                _print(world.take(each), as_json=as_json)
    if extra_ms:
        _print(world.take(Passed(world.now_ms + extra_ms)), as_json=as_json)
    odd.report(as_json=as_json)
    return Exit.OK


def _records(file: Path) -> Iterator[tuple[int, Any]]:
    """Yield each line's number and its object. Raises CommandError."""
    try:
        stream = sys.stdin.buffer if str(file) == "-" else file.open("rb")
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}", code=Exit.NOT_FOUND) from None
    with stream:
        number = 0
        while text := stream.readline(MAX_LINE):
            number += 1
            if not text.strip():
                continue
            try:
                yield number, json.loads(text)
            except (ValueError, RecursionError) as error:
                raise CommandError(f"{file}, line {number}: no JSON ({error})", code=Exit.INVALID) from None


def _print(found: Iterator[Output], *, as_json: bool) -> None:
    for each in found:
        document = document_of(each)
        print_line(json_of(document) if as_json else _line(document))


def document_of(output: Output) -> dict[str, Any]:
    """Return an output as a document. Its ``type`` is evidence, score, move, breaker, node_hold, unmet or override."""
    at = {"at_ms": output.at_ms, "at": _when(output.at_ms)}
    match output:
        case ReplayLine():
            evidence = output.evidence
            return {
                "type": "evidence",
                **at,
                "what": output.what,
                "id": evidence.id,
                "gpu_uuid": evidence.gpu_uuid,
                "node_id": evidence.node_id,
                "fault": evidence.fault_key,
                "detector": evidence.detector,
                "severity": evidence.severity.name,
                "sources": [source.value for source in evidence.sources],
                "onset_ms": evidence.onset_ms,
                "threatens_correctness": evidence.threatens_correctness,
                "summary": evidence.summary,
            }
        case Scored():
            score = output.score
            shares = [{"evidence": name, "points": points} for name, points in score.shares]
            band = {"score": score.value, "measured": score.measured_value, "band": score.band.value}
            return {"type": "score", **at, "gpu_uuid": output.gpu_uuid, **band, "shares": shares}
        case Moved():
            move = output.move
            return {
                "type": "move",
                **at,
                "gpu_uuid": move.gpu_uuid,
                "from": move.from_standing.value,
                "to": move.to_standing.value,
                "reason": move.reason.value,
                "evidence": list(move.evidence_ids),
                "is_held_back": output.is_proposed,
                "words": move.text,
            }
        case Opened():
            return {"type": "breaker", **at, "caps": dict(output.incident.caps)}
        case Unmet():
            return {"type": "unmet", **at, "gpu_uuid": output.gpu_uuid, "words": output.text}
        case Overridden():
            over = {"standing": output.standing.value, "until": _when(output.until_ms), "by": output.person}
            return {"type": "override", **at, "gpu_uuid": output.gpu_uuid, **over, "reason": output.reason}
        case RuleCordon():
            ids, words = [each.id for each in output.by], "; ".join(each.summary for each in output.by)
            is_held = bool(ids) and not output.is_proposed
            held = {"is_held": is_held, "is_held_back": output.is_proposed, "evidence": ids, "words": words}
            return {"type": "node_hold", **at, "node_id": output.node_id, **held}


def _line(document: dict[str, Any]) -> str:
    match document["type"]:
        case "evidence":
            about = document["gpu_uuid"] or document["node_id"]
            sources = ", ".join(document["sources"])
            words = f"{document['what']} {document['severity'].lower()}: {document['summary']} ({sources})"
        case "score":
            about, words = document["gpu_uuid"], f"score {document['score']:.1f} ({document['band']})"
        case "move":
            about, words = document["gpu_uuid"], f"{document['from']} → {document['to']}: {document['words']}"
            words += ", held back by the breaker" if document["is_held_back"] else ""
        case "unmet":
            about, words = document["gpu_uuid"], f"what a person did then does not go here: {document['words']}"
        case "override":
            about = document["gpu_uuid"]
            words = (
                f"{document['by']} set {document['standing']} over it until {document['until']}: {document['reason']}"
            )
        case "node_hold":
            about = document["node_id"]
            words = f"takes no new work: {document['words']}" if document["evidence"] else "takes new work again"
            words += ", held back by the breaker" if document["is_held_back"] else ""
        case _:
            about = "the circuit breaker"
            words = "opened: " + ", ".join(f"{scope} may lose {cap}" for scope, cap in document["caps"].items())
    return f"{document['at']}  {about}  {words}"


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
