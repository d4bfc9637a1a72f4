"""``muster burnin``."""

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.framework.durations import seconds_of
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import field_help, parameter_help
from muster.cli.framework.list_options import Limit, WithinOptions
from muster.cli.framework.names import GpuName, GpuOption, NodeOption, gpu_named, node_named, shortened
from muster.cli.framework.output import Done, DryRun, Listing, Page, Table, age, changes, reads
from muster.cli.framework.pending import once
from muster.cli.framework.profile import open_client
from muster.cli.framework.progress import progress
from muster.cli.framework.tables import Column, Document

if TYPE_CHECKING:
    from muster.client.rest import RestClient

app = typer.Typer(help="Burn-ins: proofs that a GPU computes right.", no_args_is_help=True)
BURN_IN_POLL_S: Final = 0.5
_STEPS: Final = ("ORDERED", "RUNNING", "MEASURED", "JUDGED")
FIGURES: Final = (Column("FIGURE", lambda row: row["name"]), Column("VALUE", lambda row: row["value"], is_text=True))


@reads(app, "list", example="muster burnin list --node h100-1")
def list_burn_ins(
    within: WithinOptions,
    gpu: GpuOption = None,
    node: NodeOption = None,
    state: Annotated[
        list[str] | None, typer.Option(help=parameter_help("state", "ORDERED, RUNNING, MEASURED, JUDGED or ABANDONED."))
    ] = None,
    outcome: Annotated[list[str] | None, typer.Option(help=parameter_help("outcome", "passed or failed."))] = None,
    limit: Limit = 100,
) -> Listing:
    """List burn-ins, the newest order first."""
    with open_client(as_operator=True) as client:
        found = client.burn_ins(
            gpu=None if gpu is None else gpu_named(client, gpu),
            node=None if node is None else node_named(client, node),
            state=[each.upper() for each in state or []] or None,
            outcome=[each.lower() for each in outcome or []] or None,
            limit=min(limit, 200),
            **within.query(),
        )[:limit]
    short = shortened(sorted({item["gpu_uuid"] for item in found}), is_whole_fleet=False)
    columns = (
        Column("BURN-IN", lambda item: item["id"]),
        Column("GPU", lambda item: short[item["gpu_uuid"]], wide=lambda item: item["gpu_uuid"]),
        Column("VERDICT", verdict_words),
        Column("AGE", lambda item: age(item["ordered_at"])),
        Column("TRIES", lambda item: item["tries"], only_wide=True),
        Column("BY", lambda item: item["ordered_by"], only_wide=True),
        Column("WHY", lambda item: item["reason"], only_wide=True),
    )
    return Listing(found, columns, "There are no burn-ins.")


@reads(app, "show", example="muster burnin show bi_…")
def show(burn_in_id: Annotated[str, typer.Argument(metavar="BURN-IN", help=parameter_help("burn_in_id"))]) -> Page:
    """Show one burn-in with its figures."""
    with open_client(as_operator=True) as client:
        return _page(client.burn_in(burn_in_id))


@changes(app, "run", example="muster burnin run GPU-… --reason 'after the new fan' --wait")
def run(
    gpu: GpuName,
    reason: Annotated[str, typer.Option(help=field_help("reason"))],
    timeout: Annotated[str, typer.Option(help="With --wait: how long at most.")] = "1h",
    *,
    must_wait: Annotated[bool, typer.Option("--wait", help="Until its verdict; exit code 1 unless it passed.")] = False,
    dry_run: DryRun = False,
) -> Done | Page:
    """Order a burn-in; it runs as soon as no job or repair uses the GPU."""
    wait_s = seconds_of(timeout, "--timeout") or 0.0
    with open_client(as_operator=True) as client:
        uuid = gpu_named(client, gpu)
        if dry_run:
            return Done(client.order_burn_in(uuid, reason, dry_run=True), "")
        made = once(
            ["burnin", uuid, reason],
            {"reason": reason},
            lambda body, key: client.order_burn_in(uuid, body["reason"], idempotency_key=key),
            what="the burn-in",
        )
        if not must_wait:
            return Done(made, f"{made['id']} is ordered; see `muster burnin show {made['id']}`")
        found = _waited(client, made, wait_s)
    return _page(found, Exit.OK if found["outcome"] == "passed" else Exit.FAILED)


def _waited(client: "RestClient", item: Document, timeout_s: float) -> Document:
    deadline = time.monotonic() + timeout_s
    with progress(f"burn-in of {item['gpu_uuid']}") as bar:
        while item["state"] not in {"JUDGED", "ABANDONED"}:
            bar.report(item["state"], _STEPS.index(item["state"]), len(_STEPS) - 1)
            if time.monotonic() > deadline:
                advice = f"It continues; see `muster burnin show {item['id']}`."
                raise CommandError(f"{item['id']} is still {item['state']}", advice)
            time.sleep(BURN_IN_POLL_S)
            item = client.burn_in(item["id"])
        bar.report(verdict_words(item), len(_STEPS) - 1, len(_STEPS) - 1)
    return item


def _page(found: Document, code: int = Exit.OK) -> Page:
    kind = " (simulated)" if found["is_simulated"] else ""
    said: list[str | Table] = [
        f"{found['id']} of {found['gpu_uuid']}: {verdict_words(found)}, try {found['tries']}",
        f"ordered by {found['ordered_by']}: {found['reason']}",
    ]
    said += [f"  - {why}" for why in (*found["reasons"], *([found["last_fault"]] if found["last_fault"] else []))]
    if found["figures"] is not None:
        said.append(f"{found['model']}{kind}, driver {found['driver']}, {found['library']}")
        said.append(
            Table(FIGURES, [{"name": name, "value": value} for name, value in figure_rows(found["figures"])], "")
        )
        if found["open_bands"]:
            bands = f"no majority yet for {len(found['open_bands'])} bands"
            said.append(f"{bands}; {found['num_peers']} GPUs to compare with")
    return Page(found, said, code)


def verdict_words(item: Document) -> str:
    return str(item["outcome"] or item["state"]).upper()


def figure_rows(figures: Document) -> list[tuple[str, str]]:
    """Return a burn-in's figures for people: right sums, grown counters, rates."""
    sums = figures["partial_sums"]
    right = sum(1 for each in sums if each["golden"] == each["measured"])
    grown = {name: delta for name, delta in figures["counter_deltas"].items() if delta}
    rows = [
        ("exact sums right", f"{right} of {len(sums)}"),
        ("bands compared", str(len(figures["bands"]))),
        ("memory tested", f"{figures['memory_bytes'] / (1 << 30):.3g} GiB"),
        ("counters that changed", ", ".join(f"{name} {delta:+g}" for name, delta in grown.items()) or "none"),
        ("took", f"{figures['took_s']:.3g} s"),
    ]
    if figures.get("covers") is not None:
        rows.append(("covers faults of", ", ".join(figures["covers"]) or "nothing"))
    vendor = figures.get("vendor_tests")
    if vendor is not None:
        result = f"{vendor['num_passed']} passed, {len(vendor['failures'])} failed"
        rows.append((f"{vendor['tool']}, level {vendor['level']}", result))
    return rows + [(name, f"{rate:g}") for name, rate in sorted(figures["rates"].items())]
