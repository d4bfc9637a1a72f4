"""``muster bill``."""

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.names import TenantOption, tenant_named
from muster.cli.framework.output import Done, Listing, Page, Table, changes, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column
from muster.documents.bill_parquet import PACKAGE, can_write, parquet_of
from muster.documents.bill_tables import focus_csv, num_unpriced, plain_csv
from muster.domain.bill_checks import fault_of_bill
from muster.domain.signed_bills import FORMATS, ROUNDED_FORMAT, signed_bytes
from muster.durable import write_durably

app = typer.Typer(help="Bills: statements by month, exported, signed and verified.", no_args_is_help=True)
Month = Annotated[str, typer.Option(help=parameter_help("month"))]
LINES: Final = (
    Column("TENANT", lambda item: item["tenant_name"] or item["tenant_id"], is_text=True),
    Column("JOB", lambda item: item["job_name"] or item["job_id"], wide=lambda item: item["job_id"]),
    Column("MODEL", lambda item: item["model"], is_text=True),
    Column("TIER", lambda item: item["tier"]),
    Column("ACCOUNT", lambda item: item["account"]),
    Column("GPU HOURS", lambda item: f"{float(item['gpu_hours']):,.2f}"),
    Column("PRICE", lambda item: item["price_per_gpu_hour"] or "unpriced"),
    Column("AMOUNT", lambda item: item["amount"] or "unpriced"),
    Column("CREDIT", lambda item: item["credit"] or "-"),
)
BILL_KEYS: Final = (
    Column("KEY", lambda item: item["key_id"]),
    Column("PUBLIC KEY", lambda item: item["public_key"]),
    Column("STATE", lambda item: "SIGNS" if item["is_active"] else ""),
)


class Form(StrEnum):
    SIGNED = "signed"
    CSV = "csv"
    FOCUS = "focus"
    PARQUET = "parquet"


@reads(app, "show", example="muster bill show --month 2026-11")
def show(month: Month, tenant: TenantOption = None) -> Page:
    """Show what was used in a month, and what is due."""
    with open_client() as client:
        found = client.statement(month, tenant_id=None if tenant is None else tenant_named(client, tenant))
    sums, money = found["sums"], found["currency"] or "(no rate cards are set)"
    lines = [f"{month}: {sums['due']} {money} are due; {sums['charged']} charged, {sums['credits']} given back"]
    if float(sums["unpriced_gpu_hours"]):
        lines.append(f"  unpriced: {float(sums['unpriced_gpu_hours']):,.2f} GPU-hours, for which no rate card held")
    if not found["is_final"]:
        lines.append(f"  not final: {found['open_hours']} hours of the month are not closed")
    return Page(found, [*lines, *([Table(LINES, found["lines"])] if found["lines"] else [])])


@reads(app, "keys", example="muster bill keys")
def keys() -> Listing:
    """List the public keys of bills. Keep them: a bundle is verified by them without this control plane."""
    with open_client() as client:
        return Listing(list(client.bill_keys()), BILL_KEYS, "There is none.")


@changes(app, "export", example="muster bill export --month 2026-11 --form focus --out november.csv")
def export(
    month: Month,
    out: Annotated[Path, typer.Option(dir_okay=False, help="The file to write.")],
    form: Annotated[
        Form, typer.Option(help="A signed bundle, CSV of our own columns or of FOCUS, or Parquet.")
    ] = Form.SIGNED,
    provider: Annotated[str, typer.Option(help="With focus: the name of the provider.")] = "Muster",
    tenant: TenantOption = None,
) -> Done:
    """Write the statement of a month into a file: as a signed bundle, CSV, CSV by FinOps FOCUS 1.0, or Parquet."""
    if form is Form.PARQUET and not can_write():
        raise CommandError(
            f"Parquet is written by {PACKAGE}, which is not installed here",
            f"Install it (`pip install {PACKAGE}`), or use --form csv.",
        )
    note = ""
    with open_client() as client:
        tenant_id = None if tenant is None else tenant_named(client, tenant)
        found: Mapping[str, Any]
        if form is Form.SIGNED:
            found = client.signed_statement(month, tenant_id=tenant_id)
            content, statement = f"{json.dumps(found, indent=1)}\n".encode(), found["statement"]
        else:
            found = statement = client.statement(month, tenant_id=tenant_id)
            content = _content(form, statement, provider)
    if form is Form.FOCUS and num_unpriced(statement):
        note = f"{num_unpriced(statement)} unpriced lines are left out: FOCUS has no row without a cost"
    write_durably(out.resolve(), content, mode=0o644)
    state = "" if statement["is_final"] else f", not final: {statement['open_hours']} hours are open"
    return Done(found, f"{out}: {month}, {len(statement['lines'])} lines{state}", note)


def _content(form: Form, statement: Mapping[str, Any], provider: str) -> bytes:
    if form is Form.PARQUET:
        return parquet_of(statement)
    return (plain_csv(statement) if form is Form.CSV else focus_csv(statement, provider)).encode()


@changes(app, "verify", example="muster bill verify november.json --key 3f…")
def verify(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A signed bundle.")],
    key: Annotated[
        str | None, typer.Option(help="The public key that must have signed it: `muster bill keys`.")
    ] = None,
) -> Page:
    """Verify a signed bundle without a server: its signature, each amount and each total.

    Exit code 6: it was changed, another key signed it, or it does not add up.
    """
    found = _bundle_of(file)
    fault = _fault_of(found, key)
    if fault:
        raise CommandError(f"{file}: {fault}", "Get the bundle again from the operator.", Exit.INVALID)
    statement, has_milliseconds = found["statement"], found["format"] != ROUNDED_FORMAT
    if has_milliseconds and (fault := fault_of_bill(statement)):
        words = f"{file} is as it was signed by the key {found['key_id']}, and does not add up: {fault}"
        raise CommandError(words, "Show this to the operator, who signed it.", Exit.INVALID)
    due = f"{statement['month']}: {statement['sums']['due']} {statement['currency']} are due"
    lines = [f"{file} is as it was signed by the key {found['key_id']}; {due}"]
    if has_milliseconds:
        lines.append(f"  each amount of its {len(statement['lines'])} lines and each total was computed again")
    else:
        lines.append(f"  its sums were not computed again: {ROUNDED_FORMAT} has rounded hours")
    if key is None:
        lines.append(f"  whose key that is, is not proved: compare {found['public_key']} with `muster bill keys`")
    verified = {"key_id": found["key_id"], "is_key_known": key is not None, "is_recomputed": has_milliseconds}
    return Page({"is_valid": True, **verified}, lines)


def _bundle_of(file: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CommandError(f"{file}: cannot be read as JSON ({error})", code=Exit.INVALID) from error
    names = {"format", "statement", "key_id", "public_key", "signature"}
    if not isinstance(found, dict) or not names <= found.keys() or found["format"] not in FORMATS:
        words = f"{file}: is no signed bill of a format that this release knows: {', '.join(FORMATS)}"
        raise CommandError(words, "A newer release may know it: `muster --version`.", Exit.INVALID)
    if not _is_statement(found["statement"]):
        raise CommandError(f"{file}: the statement in it is none", code=Exit.INVALID)
    return found


def _is_statement(found: Any) -> bool:
    """Return whether it has what is shown of it: anyone can sign anything with a key of their own."""
    is_complete = isinstance(found, dict) and {"month", "currency", "sums"} <= found.keys()
    return is_complete and isinstance(found["sums"], dict) and "due" in found["sums"]


def _fault_of(found: Mapping[str, Any], key: str | None) -> str:
    """Return why the bundle is not verified; empty: it is."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if key is not None and key.lower() != str(found["public_key"]).lower():
        return "another key signed it than the one given"
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(found["public_key"]))
        public.verify(
            bytes.fromhex(found["signature"]), signed_bytes(found["key_id"], found["statement"], found["format"])
        )
    except InvalidSignature:
        return "it was changed after it was signed"
    except (TypeError, ValueError) as error:
        return f"its key or signature cannot be read ({error})"
    return ""
