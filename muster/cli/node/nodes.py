"""``muster node``."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster.cli.framework.bulk import Expect, NodeSelection, change_all, require_one
from muster.cli.framework.durations import seconds_of
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import field_help, parameter_help
from muster.cli.framework.list_options import HolderOptions, PlaceOptions
from muster.cli.framework.names import MaybeNode, NodeName
from muster.cli.framework.options import DespiteBudget, unfit
from muster.cli.framework.output import Done, DryRun, Listing, Page, Table, age, changes, reads, until
from muster.cli.framework.pending import once
from muster.cli.framework.profile import open_client
from muster.cli.framework.progress import progress
from muster.cli.framework.tables import Column, Document
from muster.cli.gpu.gpu_texts import needs_lines, standing_words
from muster.cli.node.node_export import export
from muster.sizes import rate_in_words

if TYPE_CHECKING:
    from muster.client.fleet import NodeConditions
    from muster.client.rest import RestClient

app = typer.Typer(help="Nodes: the GPU hosts.", no_args_is_help=True)
NODE_POLL_S: Final = 0.5


def standings_words(counted: Document) -> str:
    """Return the counts by effective standing, with the cordoned GPUs after them.

    A server of the release before sends the GPUs' own standings alone.
    """
    counts, num_cordoned = counted.get("effective_standings", counted["standings"]), counted.get("num_cordoned_gpus")
    words = ", ".join(f"{count} {standing}" for standing, count in counts.items())
    return f"{words}; {num_cordoned} cordoned" if num_cordoned else words


COLUMNS: Final = (
    Column("NODE", lambda item: item["name"]),
    Column("CONTACT", lambda item: item["contact"]),
    Column("SEEN", lambda item: age(item["last_heartbeat_at"])),
    Column("ASSIGNED", lambda item: f"{item['num_assigned_gpus']} of {item['num_gpus']}"),
    Column("CORDONS", lambda item: item["num_cordons"] or ""),
    Column("GPUS", standings_words, is_text=True),
    Column("ID", lambda item: item["id"], only_wide=True),
    Column("KIND", lambda item: "simulated" if item["is_simulated"] else "real", only_wide=True),
    Column("RACK", lambda item: item["rack"], only_wide=True),
    Column("ADDRESS", lambda item: item["address"], only_wide=True),
    Column("BOOT", lambda item: item["boot_id"], only_wide=True),
)
NODE_GPU_COLUMNS: Final = (
    Column("GPU", lambda item: item["uuid"]),
    Column("SLOT", lambda item: item["slot_index"]),
    Column("STANDING", standing_words),
    Column("SCORE", lambda item: "" if item["score"] is None else f"{item['score']:.0f}"),
    Column("MODEL", lambda item: item["model"], only_wide=True),
)
PORT_COLUMNS: Final = (
    Column("PORT", lambda item: item["name"]),
    Column("SENT", lambda item: rate_in_words(item["sent_bytes_per_s"])),
    Column("RECEIVED", lambda item: rate_in_words(item["received_bytes_per_s"])),
    Column("LINK", lambda item: "" if item["link_gbps"] is None else f"{item['link_gbps']:g} Gb/s"),
    Column("SATURATION", lambda item: "" if item["saturation"] is None else f"{item['saturation']:.0%}"),
)
RACK_PAIRS: Final = (
    Column("RACK", lambda item: item["rack"] or "not known"),
    Column("OTHER", lambda item: item["other_rack"] or "not known"),
    Column("PAIRS", lambda item: item["num_pairs"]),
    Column("SENT", lambda item: item["num_sent"]),
    Column("LOST", lambda item: f"{item['lost_share']:.2%}"),
    Column("P50", lambda item: _microseconds(item["round_trip_p50_us"])),
    Column("P99", lambda item: _microseconds(item["round_trip_p99_us"])),
    Column("WORST", lambda item: f"{item['worst_node']} to {item['worst_peer']}", is_text=True),
)


@reads(app, "rack-pairs", example="muster node rack-pairs --hours 6")
def list_rack_pairs(
    hours: Annotated[int, typer.Option(min=1, max=24, help=parameter_help("hours"))] = 1,
    limit: Annotated[int, typer.Option(min=1, max=1000, help=parameter_help("list_rack_pairs.limit"))] = 200,
) -> Listing:
    """List latency and loss by pair of racks, as reported by hosts that probe each other; the greatest loss first."""
    with open_client(as_operator=True) as client:
        found = client.rack_pairs(hours=hours, limit=limit)
    return Listing(found, RACK_PAIRS, "No host reported another. Set `pair_probe_port` in the hosts' settings.")


def _microseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} µs" if value < 1000 else f"{value / 1000:.1f} ms"


@reads(app, "list", example="muster node list --contact silent --contact lost --watch")
def list_nodes(
    where: PlaceOptions,
    holder: HolderOptions,
    contact: Annotated[
        list[str] | None, typer.Option(help=parameter_help("contact", "LIVE, SILENT or LOST; may be repeated."))
    ] = None,
    name: Annotated[str | None, typer.Option(help=parameter_help("list_nodes.name"))] = None,
    order: Annotated[str | None, typer.Option(help=parameter_help("list_nodes.order"))] = None,
    *,
    is_cordoned: Annotated[
        bool | None, typer.Option("--cordoned/--not-cordoned", help=parameter_help("list_nodes.cordoned"))
    ] = None,
) -> Listing:
    """List hosts with their contact, by name; --order rack or silent gives another order."""
    contacts = [each.upper() for each in contact or []] or None
    with open_client(as_operator=True) as client:
        conditions: NodeConditions = {
            "contact": contacts,
            "name": name,
            "rack": where.rack,
            "label": where.label,
            "cordoned": is_cordoned,
            **holder.query(client),
        }
        found = client.nodes(order=order, **conditions)
    is_whole_fleet = all(value is None for value in conditions.values())
    enrol = "No hosts are enrolled. `muster join-token create` lets one enrol."
    return Listing(found, COLUMNS, enrol if is_whole_fleet else "No node is like that.")


@reads(app, "show", example="muster node show h100-1")
def show(node: NodeName) -> Page:
    """Show one node: place, contact, agent, GPUs, cordons, and the jobs that have GPUs there."""
    with open_client(as_operator=True) as client:
        found = client.node(node)
    return Page(found, list(_parts(found)))


app.command("export", epilog="Example: `muster node export h100-1 --since 7d --out h100-1.jsonl`")(export)


@changes(app, "maintenance", example="muster node maintenance h100-1 --reason 'new optics' --in 2h --for 90m")
def maintenance(
    node: NodeName,
    reason: Annotated[str, typer.Option(help=field_help("NewMaintenance.reason"))],
    for_: Annotated[str, typer.Option("--for", help=field_help("NewMaintenance.until"))],
    in_: Annotated[str | None, typer.Option("--in", help=field_help("NewMaintenance.starts_at"))] = None,
    lead: Annotated[str | None, typer.Option("--evacuate", help=field_help("NewMaintenance.evacuate_lead_s"))] = None,
    despite_budget: DespiteBudget = None,
    *,
    dry_run: DryRun = False,
) -> Done:
    """Plan maintenance: no new job is placed there for that time, and findings about the node and its GPUs have no
    weight.

    With --evacuate no job runs there at its start: jobs that would not end before are placed elsewhere, and running
    jobs get a stop request. Without it, running jobs continue.
    """
    wait_s, last_s = seconds_of(in_, "--in") or 0.0, seconds_of(for_, "--for") or 0.0
    begins = datetime.now(UTC) + timedelta(seconds=wait_s)
    body: dict[str, Any] = {"reason": reason, "until": (begins + timedelta(seconds=last_s)).isoformat()}
    if in_ is not None:
        body["starts_at"] = begins.isoformat()
    if lead is not None:
        body["evacuate_lead_s"] = seconds_of(lead, "--evacuate")
    if despite_budget is not None:
        body["despite_budget"] = despite_budget
    with open_client(as_operator=True) as client:
        name, asked = str(client.node(node)["id"]), ["maintenance", node, reason, in_, for_, lead, despite_budget]

        def send(body: dict[str, Any], key: str | None) -> Any:
            return client.maintain_node(name, idempotency_key=key, dry_run=dry_run, **body)

        cordon = send(body, None) if dry_run else once(asked, body, send, what="the maintenance window")
    told = "" if lead is None else f", and jobs there are stopped {lead} before"
    words = f"{cordon['id']} applies {'' if in_ is None else 'from ' + until(cordon['starts_at']) + ' '}"
    return Done(cordon, f"{words}on {node}{told}; `muster cordon release` ends it")


@changes(app, "cordon", example="muster node cordon --rack r12 --reason 'new switch' --dry-run")
def cordon(
    which: NodeSelection,
    reason: Annotated[str, typer.Option(help=field_help("NewCordon.reason"))],
    for_: Annotated[
        str | None, typer.Option("--for", help=field_help("until", "Such as 4h; else until it is released."))
    ] = None,
    expect: Expect = None,
    *,
    dry_run: DryRun = False,
) -> Page:
    """Keep all selected nodes out of new placements; running jobs stay. `muster cordon create` is for one node or GPU.

    Type it with --dry-run first: it shows which nodes are meant, and how many.
    """
    with open_client(as_operator=True) as client:
        return change_all(
            client,
            client.cordon_nodes,
            which,
            reason=reason,
            expect=expect,
            dry_run=dry_run,
            done="cordoned",
            until=_end_after(for_),
        )


@changes(app, "uncordon", example="muster node uncordon --rack r12 --reason 'the switch is new' --dry-run")
def uncordon(
    which: NodeSelection,
    reason: Annotated[str, typer.Option(help=field_help("reason"))],
    expect: Expect = None,
    *,
    dry_run: DryRun = False,
) -> Page:
    """End all cordons that persons set on the selected nodes, also by a drain; cordons of rules and windows stand.

    Type it with --dry-run first: it shows which nodes are meant, and how many.
    """
    with open_client(as_operator=True) as client:
        return change_all(
            client,
            client.uncordon_nodes,
            which,
            reason=reason,
            expect=expect,
            dry_run=dry_run,
            done="released",
        )


def _end_after(for_: str | None) -> str | None:
    seconds = seconds_of(for_, "--for")
    return None if seconds is None else (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


@changes(app, "drain", example="muster node drain h100-1 --reason 'a new fan' --deadline 10m --wait")
def drain(
    which: NodeSelection,
    reason: Annotated[str, typer.Option(help=field_help("NewDrain.reason"))],
    node: MaybeNode = None,
    deadline: Annotated[str | None, typer.Option(help=field_help("NewDrain.deadline_s"))] = None,
    for_: Annotated[str | None, typer.Option("--for", help=field_help("NewDrain.until"))] = None,
    despite_budget: DespiteBudget = None,
    timeout: Annotated[str, typer.Option(help="With --wait: how long at most.")] = "1d",
    expect: Expect = None,
    *,
    must_wait: Annotated[bool, typer.Option("--wait", help="Until no job has a GPU there; of one node.")] = False,
    dry_run: DryRun = False,
) -> Done | Page:
    """Drain a node: no new job is placed there, and running jobs are asked to leave. Releasing its cordon ends it.

    Without NODE, options such as --rack select nodes: type it with --dry-run first, which shows them and their number.
    """
    require_one(node, which, "NODE")
    wait_s, deadline_s = seconds_of(timeout, "--timeout") or 0.0, seconds_of(deadline, "--deadline")
    until = _end_after(for_)
    with open_client(as_operator=True) as client:
        if node is None:
            if must_wait:
                raise unfit("--wait", "it is of one node; `muster node list --rack` shows how many GPUs are in use")
            return change_all(
                client,
                client.drain_nodes,
                which,
                reason=reason,
                expect=expect,
                dry_run=dry_run,
                done="drained",
                until=until,
                deadline_s=deadline_s,
                **({} if despite_budget is None else {"despite_budget": despite_budget}),
            )
        name, asked = str(client.node(node)["id"]), ["drain", node, reason, deadline, for_, despite_budget]

        def send(body: dict[str, Any], key: str | None) -> Any:
            return client.drain_node(name, idempotency_key=key, dry_run=dry_run, **body)

        body = {"reason": reason, "until": until, "deadline_s": deadline_s, "despite_budget": despite_budget}
        found = send(body, None) if dry_run else once(asked, body, send, what="the drain")
        if must_wait and not dry_run:
            found = _drained(client, found, wait_s)
    return Done(found, "" if dry_run else _drain_words(found))


@changes(app, "label", example="muster node label h100-1 site=ams generation=new --remove old --reason 'moved'")
def label(
    node: NodeName,
    labels: Annotated[
        list[str] | None, typer.Argument(help=field_help("LabelChange.labels", "NAME=VALUE each."))
    ] = None,
    remove: Annotated[list[str] | None, typer.Option(help=field_help("LabelChange.remove", "May be repeated."))] = None,
    reason: Annotated[str, typer.Option(help=field_help("reason"))] = "",
    *,
    dry_run: DryRun = False,
) -> Done:
    """Set and remove labels, by which jobs choose hosts, and which name its site or block. Running jobs continue."""
    pairs = [each.partition("=") for each in labels or []]
    unread = next(("".join(pair) for pair in pairs if not all(pair)), None)
    if unread is not None:
        raise unfit("LABELS", f"{unread!r} is not NAME=VALUE, such as site=ams")
    if not (pairs or remove):
        raise unfit("LABELS", "name at least one NAME=VALUE to set, or --remove NAME")
    if not reason:
        raise unfit("--reason", "say why; it is recorded in the audit")
    body: Any = {"labels": {name: value for name, _, value in pairs}, "remove": remove or [], "reason": reason}
    with open_client(as_operator=True) as client:
        if dry_run:
            return Done(client.label_node(node, body, dry_run=True), "")
        asked = ["label", node, labels, remove, reason]
        found = once(
            asked, body, lambda body, key: client.label_node(node, body, idempotency_key=key), what="the labels"
        )
    return Done(found, f"{found['name']}: {_labels(found) or 'no labels'}")


def _labels(node: Document) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(node["labels"].items()))


def _drained(client: "RestClient", node: Document, timeout_s: float) -> Document:
    """Wait for the drain. Raises ``CommandError`` after ``timeout_s``, or if its cordon was released meanwhile."""
    deadline = time.monotonic() + timeout_s
    most = len(node["jobs"])
    with progress(f"drain of {node['name']}") as bar:
        while node["drain"] is not None and not node["drain"]["is_done"]:
            left = len(node["drain"]["jobs_left"])
            most = max(most, left)
            bar.report(f"{left} jobs are still there", most - left, most)
            if time.monotonic() > deadline:
                raise CommandError(f"{left} jobs are still on {node['name']}", "It continues; see `muster node show`.")
            time.sleep(NODE_POLL_S)
            node = client.node(node["id"])
    if node["drain"] is None:
        raise CommandError(f"{node['name']} is no longer drained", "Its cordon was released.", Exit.CONFLICT)
    return node


def _drain_words(node: Document) -> str:
    drain = node["drain"]
    if drain is None:
        return f"{node['name']} is not drained"
    left = len(drain["jobs_left"])
    state = "is drained" if drain["is_done"] else f"is being drained, {left} jobs are still there"
    return f"{node['name']} {state}; `muster cordon release {drain['cordon_id']}` ends it"


def _parts(node: Document) -> Iterator[str | Table]:
    kind = "simulated" if node["is_simulated"] else "real"
    yield f"{node['name']}  {node['contact']}"
    yield f"  {node['id']}, {node['num_gpus']} {kind} GPUs, driver {', '.join(node['driver_versions']) or 'unknown'}"
    yield f"  at {node['address']}, in {' > '.join(each['name'] for each in node['path']) or 'no known place'}"
    if node["labels"]:
        yield f"  labels {_labels(node)}"
    if node.get("rdma_ports"):
        yield f"  enrolled with RDMA ports {', '.join(node['rdma_ports'])}"
    yield f"  heard {_ago(node['last_heartbeat_at'])}, enrolled {_ago(node['enrolled_at'])}"
    agent = node["agent"]
    if agent is None:
        yield "  its agent has not reported yet"
    else:
        waiting = f", {agent['spool_reports']} reports wait in its spool" if agent["spool_reports"] else ""
        yield f"  agent {agent['version'] or 'of an unknown version'}, reported {_ago(agent['received_at'])}{waiting}"
    if node["drain"] is not None:
        yield f"  {_drain_words(node)}: {node['drain']['reason']}"
    needs = list(needs_lines(node))
    if needs:
        yield "needs attention:"
        yield from (f"  {line}" for line in needs)
    yield from _hardware(node)
    for each in node.get("failing_saves", ()):
        where = "shared storage" if each["is_shared"] else "its own disk"
        times = f"{each['num_failures']} times, {each['job_id']}"
        yield f"  cannot save to {each['place']} ({where}): {each['kind']}, {times}"
    if node["cordons"]:
        yield "cordons:"
        yield from (f"  {each['id']} by {each['owner']}: {each['reason']}" for each in node["cordons"])
    if node["jobs"]:
        yield "jobs:"
        yield from (line for job in node["jobs"] for line in _job(job))


def _hardware(node: Document) -> Iterator[str | Table]:
    """Yield the GPUs and the network ports. A server of an earlier release sends no ports."""
    if node["gpus"]:
        yield "gpus:"
        yield Table(NODE_GPU_COLUMNS, node["gpus"])
    if node.get("network_ports"):
        yield "network:"
        yield Table(PORT_COLUMNS, node["network_ports"])


def _job(job: Document) -> Iterator[str]:
    yield f"  {job['job_id']} ({job['job_name']}, {job['tier']}): {len(job['gpus'])} GPUs, {job['attempt_state']}"
    if job["stop_reason"] is not None:
        yield f"    asked to stop: {job['stop_reason']}, at the latest {until(job['stop_deadline_at'])}"


def _ago(moment: str | None) -> str:
    return "never" if moment is None else f"{age(moment)} ago"
