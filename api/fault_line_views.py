"""Lines about faults as the JSON that callers see."""

from control.watch.lines import FaultLines
from muster import documents
from watch.lines.timeline import Part


def fault_lines_view(found: FaultLines | None) -> documents.FaultLines:
    """Return the timeline; all empty for a job without an attempt."""
    timeline = None if found is None else found.timeline
    return {
        "attempt_id": None if found is None else found.attempt_id,
        "attempt": None if found is None else found.number,
        "sentence": None if timeline is None else timeline.sentence,
        "parts": [] if timeline is None else [_part(each) for each in timeline.parts],
        "transports": []
        if found is None
        else [{"node": each.node, "transport": each.transport, "cards": list(each.cards)} for each in found.transports],
        "warning": None if found is None else found.warning,
        "ports": []
        if found is None
        else [
            {
                "node": each.node,
                "port": each.port,
                "counter": each.counter,
                "rise": each.rise,
                "num_users": each.num_users,
            }
            for each in found.ports
        ],
    }


def _part(part: Part) -> documents.TimelinePart:
    return {
        "role": part.role,
        "is_root": part.is_root,
        "node": part.node,
        "rank": part.rank,
        "pattern": part.pattern,
        "text": part.text,
        "count": part.count,
        "peer": part.peer,
        "port": part.port,
        "gpu": part.gpu or None,
    }
