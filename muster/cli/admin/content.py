"""``muster content``."""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import Page, reads
from muster.settings import load_settings
from muster.sizes import size_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from control.content.check import Compared
    from control.core.unit_of_work import UnitOfWorkFactory
    from muster.store.objects import ObjectStore

app = typer.Typer(help="The content store: compare it with the database.", no_args_is_help=True)
_SHOWN: Final = 20
MarkMissing = Annotated[
    bool,
    typer.Option("--mark-missing", help="Make bundles incomplete that lack a chunk: the next submission uploads it."),
]
AdoptSurplus = Annotated[
    bool, typer.Option("--adopt-surplus", help="Let the keeper delete what no bundle needs, a day later.")
]


@app.callback()
def content() -> None:
    """Compare the content store with the database."""


@reads(app, "check", example="muster content check --mark-missing")
def check(
    tenant: Annotated[str | None, typer.Option(help="The id of one tenant. Default: all.")] = None,
    *,
    mark_missing: MarkMissing = False,
    adopt_surplus: AdoptSurplus = False,
) -> Page:
    """Name what the store lacks, and what it has without need: after a restore of store or database.

    It needs MUSTER_DATABASE_URL and the MUSTER_STORE settings. The exit code is 1 if anything is missing.
    """
    from control.content import check as checks
    from muster.domain.ids import TenantId
    from muster.domain.principals import Principal, Role

    by = Principal(name="operator:content", role=Role.OPERATOR)
    with _opened() as (units, store):
        found = checks.compare(units, store, None if tenant is None else TenantId(tenant))
        num_marked = checks.mark_missing(units, by, list(found.missing)) if mark_missing else None
        if adopt_surplus:
            checks.adopt(units, by, found.surplus)
    return _page(found, num_marked, is_adopted=adopt_surplus)


@contextmanager
def _opened() -> "Iterator[tuple[UnitOfWorkFactory, ObjectStore]]":
    from control.core.unit_of_work import UnitOfWorkFactory
    from muster.store.faults import NOT_CONFIGURED, StoreError
    from muster.store.objects import ObjectStore

    settings = load_settings().require("database_url")
    store = ObjectStore.from_settings(settings)
    if store is None:
        raise CommandError(NOT_CONFIGURED, "Set MUSTER_STORE_URL and what belongs to it.", Exit.USAGE)
    units = UnitOfWorkFactory.connected(
        str(settings.database_url), application_name="muster-content", pool_size=1, max_overflow=1
    )
    try:
        yield units, store
    except StoreError as fault:
        raise CommandError(fault.detail, fault.suggestion, Exit.UNREACHABLE) from fault
    finally:
        units.close()


def _page(found: "Compared", num_marked: int | None, *, is_adopted: bool) -> Page:
    document = {
        "num_objects": found.num_objects,
        "missing": [
            {"tenant_id": name.tenant_id, "kind": name.kind, "digest": name.digest, "bundles": list(bundles)}
            for name, bundles in found.missing.items()
        ],
        "surplus": [{"tenant_id": name.tenant_id, "kind": name.kind, "digest": name.digest} for name in found.surplus],
        "unknown": found.unknown,
    }
    is_whole = not found.missing or num_marked is not None
    lines = [*_missing_lines(found, num_marked), *_surplus_lines(found, is_adopted=is_adopted)]
    return Page(document, lines, code=Exit.OK if is_whole else Exit.FAILED)


def _missing_lines(found: "Compared", num_marked: int | None) -> "Iterator[str]":
    yield f"{found.num_objects:,} objects are in the database: {len(found.missing):,} of them are missing in the store"
    for name, bundles in list(found.missing.items())[:_SHOWN]:
        named = ", ".join(each[:12] for each in bundles[:3]) or "none"
        yield f"  {name.kind} {name.digest[:12]} of {name.tenant_id}; bundles that need it: {named}"
    if len(found.missing) > _SHOWN:
        yield f"  and {len(found.missing) - _SHOWN:,} more: --json lists all"
    if num_marked is not None:
        yield f"{num_marked:,} bundles are incomplete now: the next submission of each uploads what is missing"
    elif found.missing:
        yield "--mark-missing makes their bundles incomplete: the next submission of each uploads what is missing"


def _surplus_lines(found: "Compared", *, is_adopted: bool) -> "Iterator[str]":
    num_bytes = sum(name.num_bytes for name in found.surplus)
    yield f"{len(found.surplus):,} objects of {size_in_words(num_bytes)} are in the store alone"
    if found.surplus:
        yield "the keeper deletes them a day later" if is_adopted else "--adopt-surplus lets the keeper delete them"
    if found.unknown:
        shown = ", ".join(found.unknown[:3])
        yield f"{len(found.unknown):,} keys are of no tenant of this database, such as {shown}: delete them yourself"
