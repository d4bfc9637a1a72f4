"""``muster content``."""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.admin.content_lines import named, object_lines
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.options import unfit
from muster.cli.framework.output import Page, reads
from muster.settings import load_settings
from muster.sizes import size_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from control.content.check import Compared
    from control.core.unit_of_work import UnitOfWorkFactory
    from muster.cli.admin.content_bytes import Reading
    from muster.store.objects import ObjectStore

app = typer.Typer(help="The content store: compare it with the database.", no_args_is_help=True)
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


_WHOLE: Final = 100.0
_RATE: Final = 50.0
Bytes = Annotated[
    bool, typer.Option("--bytes", help="Read every object too, and name those with other bytes than their digest says.")
]
Sample = Annotated[float, typer.Option(min=0.0, max=100.0, help="With --bytes: read so many per cent, by chance.")]
Rate = Annotated[float, typer.Option(min=0.1, help="With --bytes: MB a second at most.")]
After = Annotated[
    int, typer.Option(min=0, help="With --bytes: continue after this object, which a check that was ended named.")
]


@reads(app, "check", example="muster content check --bytes --sample 5")
def check(
    tenant: Annotated[str | None, typer.Option(help="The id of one tenant. Default: all.")] = None,
    *,
    mark_missing: MarkMissing = False,
    adopt_surplus: AdoptSurplus = False,
    has_bytes: Bytes = False,
    sample: Sample = _WHOLE,
    rate: Rate = _RATE,
    after: After = 0,
) -> Page:
    """Name what the store lacks, and what it has without need: after a restore of store or database.

    It needs MUSTER_DATABASE_URL and the MUSTER_STORE settings. The exit code is 1 if anything is missing or corrupt.
    With --bytes, Ctrl-C ends the reading and says where to continue.
    """
    from control.content import check as checks
    from control.content.reading import Pace
    from muster.cli.admin.content_bytes import Reading, read_bytes
    from muster.domain.ids import TenantId
    from muster.domain.principals import Principal, Role

    if not has_bytes:
        _refuse(sample=sample != _WHOLE, rate=rate != _RATE, after=after != 0)
    by = Principal(name="operator:content", role=Role.OPERATOR)
    of = None if tenant is None else TenantId(tenant)
    with _opened() as (units, store):
        found = checks.compare(units, store, of)
        read = Reading()
        if has_bytes:
            read = read_bytes(units, store, Pace(rate * 1e6), tenant_id=of, after=after, share=sample / 100)
        wrong = [*found.missing, *(name for name in read.corrupt if name not in found.missing)]
        num_marked = checks.mark_missing(units, by, wrong) if mark_missing else None
        if adopt_surplus:
            checks.adopt(units, by, found.surplus)
    return _page(found, read, num_marked, is_adopted=adopt_surplus)


def _refuse(**given: bool) -> None:
    for name, is_given in given.items():
        if is_given:
            raise unfit(f"--{name}", "it is an option of reading: give --bytes too")


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


def _page(found: "Compared", read: "Reading", num_marked: int | None, *, is_adopted: bool) -> Page:
    document = {
        "num_objects": found.num_objects,
        "missing": [named(name, bundles) for name, bundles in found.missing.items()],
        "surplus": [{"tenant_id": name.tenant_id, "kind": name.kind, "digest": name.digest} for name in found.surplus],
        "unknown": found.unknown,
        **read.document(),
    }
    is_whole = not found.missing and not read.corrupt
    lines = [
        *_missing_lines(found),
        *read.lines(),
        *_marked_lines(num_marked, is_whole=is_whole),
        *_surplus_lines(found, is_adopted=is_adopted),
    ]
    is_done = read.ended is None and (is_whole or num_marked is not None)
    return Page(document, lines, code=Exit.OK if is_done else Exit.FAILED)


def _missing_lines(found: "Compared") -> "Iterator[str]":
    yield f"{found.num_objects:,} objects are in the database: {len(found.missing):,} of them are missing in the store"
    yield from object_lines(found.missing)


def _marked_lines(num_marked: int | None, *, is_whole: bool) -> "Iterator[str]":
    if num_marked is not None:
        yield f"{num_marked:,} bundles are incomplete now: the next submission of each uploads what is missing"
    elif not is_whole:
        yield "--mark-missing makes their bundles incomplete: the next submission of each uploads what is missing"


def _surplus_lines(found: "Compared", *, is_adopted: bool) -> "Iterator[str]":
    num_bytes = sum(name.num_bytes for name in found.surplus)
    yield f"{len(found.surplus):,} objects of {size_in_words(num_bytes)} are in the store alone"
    if found.surplus:
        yield "the keeper deletes them a day later" if is_adopted else "--adopt-surplus lets the keeper delete them"
    if found.unknown:
        shown = ", ".join(found.unknown[:3])
        yield f"{len(found.unknown):,} keys are of no tenant of this database, such as {shown}: delete them yourself"
