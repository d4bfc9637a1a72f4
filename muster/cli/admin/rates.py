"""``muster rates``."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from muster.cli.admin.versions import VERSION_COLUMNS, VersionNumber
from muster.cli.framework.document_files import document_of, fault_lines, validated_or_faults
from muster.cli.framework.exits import Exit
from muster.cli.framework.field_help import field_help
from muster.cli.framework.list_options import WithinOptions
from muster.cli.framework.output import Done, DryRun, Listing, Page, Table, age, changes, reads, yaml_of
from muster.cli.framework.pending import once
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column
from muster.domain.rates import RateCards, rate_changes, setting_changes
from muster.domain.validation import validated

app = typer.Typer(help="Rate cards: what an hour of a GPU costs, by model and tier.", no_args_is_help=True)
HINT: Final = "See `muster rates show`, or the operator's page about money."
RatesFile = Annotated[
    Path, typer.Option("--file", "-f", exists=True, dir_okay=False, help="The rate cards as YAML or JSON, whole.")
]
RATE_CHANGES: Final = (
    Column("MODEL", lambda item: item["model"], is_text=True),
    Column("TIER", lambda item: item["tier"]),
    Column("BEGINS", lambda item: item["begins_at"]),
    Column("FROM", lambda item: item["from"] or "-"),
    Column("TO", lambda item: item["to"] or "ends"),
)


@reads(app, "list", example="muster rates list")
def list_versions(within: WithinOptions) -> Listing:
    """List every version of the rate cards, the newest first."""
    with open_client(as_operator=True) as client:
        found = list(client.rate_versions(**within.query()))
    return Listing(
        found, VERSION_COLUMNS, "No rate cards were set: nothing has a price. `muster rates set -f FILE` sets them."
    )


@reads(app, "show", example="muster rates show > rates.yaml")
def show(version: VersionNumber = None) -> Page:
    """Show the rate cards as YAML that `muster rates set` accepts."""
    with open_client() as client:
        found = client.rates() if version is None else client.rate_version(version)
    if found["document"] is None:
        return Page(found, ["# no rate cards are set: nothing has a price"], is_verbatim=True)
    state = "active" if found["is_active"] else "not active"
    by = f" by {found['created_by']}: {found['reason']}" if found["created_by"] else ""
    head = f"# version {found['version']}, {state}, set {age(found['created_at'])} ago{by}"
    return Page(found, [head, *yaml_of(found["document"]).splitlines()], is_verbatim=True)


@reads(app, "diff", example="muster rates diff -f rates.yaml")
def diff(file: RatesFile) -> Page:
    """Show which cards a file would change. Exit code 6: it is no rate cards. `muster rates set --dry-run` tries it."""
    wanted, faults = validated_or_faults(RateCards, document_of(file, HINT))
    if wanted is None:
        lines = [f"{file} is no rate cards:", *fault_lines(faults)]
        return Page({"is_valid": False, "errors": faults}, lines, Exit.INVALID)
    with open_client() as client:
        stored = client.rates()["document"]
    active = None if stored is None else validated(RateCards, stored)
    found = [
        {
            "model": each.model,
            "tier": each.tier,
            "begins_at": f"{each.begins_at:%Y-%m-%dT%H:%MZ}",
            "from": each.before,
            "to": each.after,
        }
        for each in rate_changes(active, wanted)
    ]
    settings = [] if active is None else setting_changes(active, wanted)
    lines = [f"{file} is rate cards in {wanted.currency}; {len(found)} cards differ from the active ones"]
    lines += [f"{each.name}: {_shown(each.before)} → {_shown(each.after)}" for each in settings]
    data = {"is_valid": True, "changes": found, "settings": [asdict(each) for each in settings]}
    return Page(data, [*lines, *([Table(RATE_CHANGES, found)] if found else [])])


def _shown(value: Any) -> str:
    return (", ".join(value) or "none") if isinstance(value, list) else str(value)


@changes(app, "set", example="muster rates set -f rates.yaml --reason 'prices of 2027'")
def set_rates(
    file: RatesFile,
    reason: Annotated[str, typer.Option(help=field_help("reason"))],
    *,
    correct_past: Annotated[bool, typer.Option("--correct-past", help=field_help("corrects_past"))] = False,
    dry_run: DryRun = False,
) -> Done:
    """Set the rate cards of a file, whole: a card that it leaves out ends."""
    document = document_of(file, HINT)
    body = {"document": document, "reason": reason, "corrects_past": correct_past}
    with open_client(as_operator=True) as client:

        def send(body: dict[str, Any], key: str | None) -> Any:
            wanted = body["document"], body["reason"]
            past = body["corrects_past"]
            return client.set_rates(*wanted, corrects_past=past, idempotency_key=key, dry_run=dry_run)

        made = send(body, None) if dry_run else once(["rates", body], body, send, what="the version")
    return Done(made, f"version {made['version']} of the rate cards is active")
