"""Lines about faults of a running job, as ``muster job explain`` shows them: the root first, then what followed."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from muster.client.rest import RestClient
from muster.client.transport import Problem

PARTS_SHOWN: Final = 8
_LONGEST: Final = 200
_UNSHOWN: Final = frozenset({403, 404})
"""The caller may not read output, or the server is of the release before."""


def fault_lines(client: RestClient, job_id: str) -> "Mapping[str, Any] | None":
    """Return the lines of the job's newest attempt; None if there is nothing to show."""
    try:
        found = client.fault_lines(job_id)
    except Problem as problem:
        if problem.status in _UNSHOWN:
            return None
        raise
    return found if found["parts"] or found["transports"] or found["ports"] else None


def texts_of(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the timeline as lines of text."""
    if found["sentence"] is not None:
        yield f"lines about faults in attempt {found['attempt']}: {found['sentence']}"
    for part in found["parts"][:PARTS_SHOWN]:
        yield f"  {_role(part):<9}{_origin(part)}: {part['text'][:_LONGEST]}{_times(part)}"
    if len(found["parts"]) > PARTS_SHOWN:
        yield f"  and {len(found['parts']) - PARTS_SHOWN} more"
    yield from _transports(found["transports"])
    if found["warning"] is not None:
        yield f"warning: {found['warning']}"
    for each in found["ports"]:
        users = "" if each["num_users"] == 1 else f"; {each['num_users']} attempts used it"
        yield f"port {each['port']} of {each['node']}: {each['counter']} grew by {each['rise']:g} meanwhile{users}"


def _role(part: Mapping[str, Any]) -> str:
    return "root" if part["is_root"] else str(part["role"] if part["role"] != "root" else "also")


def _origin(part: Mapping[str, Any]) -> str:
    if part["role"] == "measured":
        return f"{part['node']} {part['gpu']}" if part["gpu"] else str(part["node"])
    return f"rank {part['rank']} on {part['node']}" if part["rank"] is not None else f"a rank on {part['node']}"


def _times(part: Mapping[str, Any]) -> str:
    return f" ({part['count']} times)" if part["count"] > 1 else ""


def _transports(found: "list[Mapping[str, Any]]") -> Iterator[str]:
    hosts: dict[str, list[str]] = defaultdict(list)
    for each in found:
        cards = f" ({', '.join(each['cards'])})" if each["cards"] else ""
        hosts[f"{each['transport']}{cards}"].append(each["node"])
    for words, nodes in sorted(hosts.items()):
        others = f" and {len(nodes) - 3} others" if len(nodes) > 3 else ""
        yield f"NCCL uses {words} between hosts, on {', '.join(nodes[:3])}{others}"
