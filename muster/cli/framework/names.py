"""Names that a person types for an object, and their completion in a shell.

An object has its id; a node or tenant has its name, and a GPU a part of its UUID.
"""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.job_names import all_resolved, resolved

if TYPE_CHECKING:
    from muster.client.rest import RestClient

LEFT_OUT: Final = ".."
COMPLETED: Final = 50
_UUID_PART: Final = re.compile(r"[!-~]{1,128}")


def _completing(find: "Callable[[RestClient], Iterable[tuple[str, str]]]") -> Callable[[str], list[tuple[str, str]]]:
    """Complete words by queries to the control plane; a query that fails completes nothing."""

    def complete(incomplete: str) -> list[tuple[str, str]]:
        from muster.cli.framework.profile import open_client

        try:
            with open_client(as_operator=True) as client:
                return [(name, words) for name, words in find(client) if name.startswith(incomplete)]
        except Exception:  # noqa: BLE001  # a shell waits for words, and has no place for a fault
            return []

    return complete


def _jobs(client: "RestClient") -> Iterable[tuple[str, str]]:
    from itertools import islice

    return [(job["id"], f"{job['name']} {job['state']}") for job in islice(client.jobs(limit=COMPLETED), COMPLETED)]


def _gpus(client: "RestClient") -> Iterable[tuple[str, str]]:
    return [(gpu["uuid"], f"{gpu['model']} {gpu['standing']}") for gpu in client.gpus()]


def _nodes(client: "RestClient") -> Iterable[tuple[str, str]]:
    return [(node["name"], f"{node['id']} {node['contact']}") for node in client.nodes()]


def _tenants(client: "RestClient") -> Iterable[tuple[str, str]]:
    return [(tenant["name"], tenant["id"]) for tenant in client.tenants()]


def _persons(client: "RestClient") -> Iterable[tuple[str, str]]:
    return [(each["name"], f"{each['id']} {each['role']}") for each in client.persons() if not each["disabled_at"]]


def _cordons(client: "RestClient") -> Iterable[tuple[str, str]]:
    return [(each["id"], each["reason"]) for each in client.cordons()]


def _keys(client: "RestClient") -> Iterable[tuple[str, str]]:
    keys = client.keys()
    return [(key["id"], f"{key['name']} {key['role']} {key['prefix']}") for key in keys if not key["revoked_at"]]


def _incidents(client: "RestClient") -> Iterable[tuple[str, str]]:
    from itertools import islice

    return [(each["id"], each["kind"]) for each in islice(client.incidents(state="open"), COMPLETED)]


def _verdicts(client: "RestClient") -> Iterable[tuple[str, str]]:
    from itertools import islice

    return [(each["id"], each["kind"]) for each in islice(client.verdicts(state="standing"), COMPLETED)]


def _reclaims(client: "RestClient") -> Iterable[tuple[str, str]]:
    from itertools import islice

    return [(each["id"], each["state"]) for each in islice(client.reclaims(limit=COMPLETED), COMPLETED)]


_ONE_JOB: Final = parameter_help("job_id")
JobId = Annotated[
    str, typer.Argument(metavar="JOB", help=_ONE_JOB, callback=resolved, autocompletion=_completing(_jobs))
]
JobIds = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB…", help=parameter_help("job"), callback=all_resolved, autocompletion=_completing(_jobs)
    ),
]
MaybeJob = Annotated[
    str | None, typer.Argument(metavar="JOB", help=_ONE_JOB, callback=resolved, autocompletion=_completing(_jobs))
]
GpuName = Annotated[str, typer.Argument(metavar="GPU", help=parameter_help("uuid"), autocompletion=_completing(_gpus))]
NodeName = Annotated[
    str, typer.Argument(metavar="NODE", help=parameter_help("node_id"), autocompletion=_completing(_nodes))
]
MaybeNode = Annotated[
    str | None, typer.Argument(metavar="NODE", help=parameter_help("node_id"), autocompletion=_completing(_nodes))
]
TenantName = Annotated[
    str, typer.Argument(metavar="TENANT", help=parameter_help("tenant_id"), autocompletion=_completing(_tenants))
]
PersonName = Annotated[
    str, typer.Argument(metavar="PERSON", help=parameter_help("person_id"), autocompletion=_completing(_persons))
]
CordonId = Annotated[
    str, typer.Argument(metavar="CORDON", help=parameter_help("cordon_id"), autocompletion=_completing(_cordons))
]
KeyId = Annotated[str, typer.Argument(metavar="KEY", help=parameter_help("key_id"), autocompletion=_completing(_keys))]
VerdictId = Annotated[
    str, typer.Argument(metavar="VERDICT", help=parameter_help("verdict_id"), autocompletion=_completing(_verdicts))
]
IncidentId = Annotated[
    str, typer.Argument(metavar="INCIDENT", help=parameter_help("incident_id"), autocompletion=_completing(_incidents))
]
ReclaimId = Annotated[
    str, typer.Argument(metavar="RECLAIM", help=parameter_help("reclaim_id"), autocompletion=_completing(_reclaims))
]
NodeOption = Annotated[str | None, typer.Option(help=parameter_help("node"), autocompletion=_completing(_nodes))]
GpuOption = Annotated[str | None, typer.Option(help=parameter_help("uuid"), autocompletion=_completing(_gpus))]
TenantOption = Annotated[
    str | None, typer.Option(help=parameter_help("tenant_id"), autocompletion=_completing(_tenants))
]
JobOption = Annotated[str | None, typer.Option(help=_ONE_JOB, callback=resolved, autocompletion=_completing(_jobs))]


def node_named(client: "RestClient", text: str) -> str:
    """Return the id of the node of that id or name. Raises ``Problem`` if there is none."""
    return text if text.startswith("node_") else str(client.node(text)["id"])


def tenant_named(client: "RestClient", text: str) -> str:
    """Return the id of the tenant of that id or name. Raises ``CommandError``."""
    if text.startswith("ten_"):
        return text
    return _named("tenant", text, [(str(each["id"]), str(each["name"])) for each in client.tenants()])


def person_named(client: "RestClient", text: str) -> str:
    """Return the id of the person of that id or name. Raises ``CommandError``."""
    if text.startswith("prs_"):
        return text
    return _named("person", text, [(str(each["id"]), str(each["name"])) for each in client.persons()])


def _named(noun: str, text: str, known: list[tuple[str, str]]) -> str:
    found = [each_id for each_id, name in known if text in {each_id, name}]
    if len(found) == 1:
        return found[0]
    if found:
        raise CommandError(f"{len(found)} {noun}s are named {text}", f"Such as {found[0]}: use its id.", Exit.USAGE)
    raise CommandError(f"there is no {noun} {text!r}", f"`muster {noun} list` names them.", Exit.NOT_FOUND)


def gpu_named(client: "RestClient", text: str) -> str:
    """Return the UUID that ``text`` begins, ends or shortens, if it is one GPU's alone. Raises ``CommandError``."""
    uuids = [str(gpu["uuid"]) for gpu in client.gpus(uuid=text)] if _UUID_PART.fullmatch(text) else []
    if text in uuids:
        return text
    head, is_short, tail = text.partition(LEFT_OUT)
    found = [
        uuid
        for uuid in uuids
        if text and ((uuid.startswith(head) and uuid.endswith(tail)) or (not is_short and uuid.endswith(text)))
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise CommandError(f"there is no GPU {text!r}", "`muster gpu list` shows them.", Exit.NOT_FOUND)
    raise CommandError(f"{text!r} could be {len(found)} GPUs", f"Such as {found[0]} or {found[1]}.", Exit.USAGE)


def shortened(uuids: list[str], *, is_whole_fleet: bool = True) -> dict[str, str]:
    """Return UUID → its beginning, or its beginning and end, if all differ in it; else the whole.

    If they are not the whole fleet, more digits stay, to distinguish them from other GPUs too.
    """
    lengths = ((12, 0), (12, 4), (17, 4), (17, 8))
    for head, tail in lengths if is_whole_fleet else lengths[2:]:
        short = {uuid: _shortened(uuid, head, tail) for uuid in uuids}
        if len(set(short.values())) == len(short):
            return short
    return {uuid: uuid for uuid in uuids}


def _shortened(uuid: str, head: int, tail: int) -> str:
    if len(uuid) <= head + len(LEFT_OUT) + tail:
        return uuid
    return uuid[:head] + (f"{LEFT_OUT}{uuid[-tail:]}" if tail else "")
