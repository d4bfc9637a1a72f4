"""``muster burnin``."""

from typing import Annotated, Any

import typer

from muster.cli.gpus import named, shortened
from muster.cli.output import AsJson, age, print_json, print_table
from muster.cli.profile import open_client

app = typer.Typer(help="Burn-ins: proofs that a GPU computes right.", no_args_is_help=True)


@app.command("list")
def list_burn_ins(
    gpu: Annotated[str | None, typer.Option(help="GPU-…, or its end.")] = None,
    node: Annotated[str | None, typer.Option(help="node_…")] = None,
    state: Annotated[str | None, typer.Option(help="ORDERED, RUNNING, MEASURED, JUDGED or ABANDONED.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """The newest order first."""
    with open_client(as_operator=True) as client:
        filters = {"gpu": None if gpu is None else named(client, gpu), "node": node, "state": state}
        found = client.burn_ins(**{name: value for name, value in filters.items() if value is not None})
    if as_json:
        print_json(found)
        return
    short = shortened(sorted({item["gpu_uuid"] for item in found}), is_whole_fleet=False)
    rows = [(item["id"], short[item["gpu_uuid"]], verdict_words(item), age(item["ordered_at"])) for item in found]
    print_table(("BURN-IN", "GPU", "VERDICT", "AGE"), rows, empty="There are no burn-ins.")


@app.command("show")
def show(burn_in_id: Annotated[str, typer.Argument(help="bi_…")], *, as_json: AsJson = False) -> None:
    """One with its figures."""
    with open_client(as_operator=True) as client:
        found = client.burn_in(burn_in_id)
    if as_json:
        print_json(found)
        return
    kind = " (simulated)" if found["is_simulated"] else ""
    typer.echo(f"{found['id']} of {found['gpu_uuid']}: {verdict_words(found)}, try {found['tries']}")
    typer.echo(f"ordered by {found['ordered_by']}: {found['reason']}")
    for why in (*found["reasons"], *([found["last_fault"]] if found["last_fault"] else [])):
        typer.echo(f"  - {why}")
    if found["figures"] is not None:
        typer.echo(f"{found['model']}{kind}, driver {found['driver']}, {found['library']}")
        print_table(("FIGURE", "VALUE"), figure_rows(found["figures"]), empty="")
        if found["open_bands"]:
            typer.echo(
                f"no majority yet for {len(found['open_bands'])} bands; {found['num_peers']} GPUs to compare with"
            )


@app.command("run")
def run(
    gpu: Annotated[str, typer.Argument(help="GPU-…, or its end.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept in the audit log.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Order one; it runs as soon as nothing holds the GPU."""
    with open_client(as_operator=True) as client:
        made = client.order_burn_in(named(client, gpu), reason)
    if as_json:
        print_json(made)
    else:
        typer.echo(f"{made['id']} is ordered; see `muster burnin show {made['id']}`")


def verdict_words(item: dict[str, Any]) -> str:
    return str(item["outcome"] or item["state"]).upper()


def figure_rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """What a person reads of them: right sums, grown counters, rates."""
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
    return rows + [(name, f"{rate:g}") for name, rate in sorted(figures["rates"].items())]
