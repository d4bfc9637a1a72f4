"""Changes of all objects that options select: tried with --dry-run first, then made with the number that it shows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from muster.cli.framework.exits import CommandError, Exit, exit_of
from muster.cli.framework.field_help import field_help, parameter_help
from muster.cli.framework.list_options import LabelOption, RackOption, bounds
from muster.cli.framework.moments import MOMENT
from muster.cli.framework.names import TenantOption, node_named, tenant_named
from muster.cli.framework.options import unfit
from muster.cli.framework.output import Page, Table, effect_lines
from muster.cli.framework.tables import Column, Document

if TYPE_CHECKING:
    from muster.client.rest import RestClient
    from muster.documents import BulkAnswer


class Send(Protocol):
    """Sends the body of a change of many."""

    def __call__(self, wanted: Any, /, *, dry_run: bool) -> "BulkAnswer": ...


Expect = Annotated[int | None, typer.Option(min=0, help=field_help("BulkChange.expected"))]
ITEMS: Final = (
    Column("NAME", lambda item: item["name"]),
    Column("ID", lambda item: item["id"]),
    Column("OUTCOME", lambda item: item["outcome"]),
    Column("WHY", lambda item: item["why"], is_text=True),
)


@dataclass(frozen=True)
class NodeSelection:
    """Which nodes: all conditions hold."""

    contact: Annotated[
        list[str] | None, typer.Option(help=parameter_help("contact", "LIVE, SILENT or LOST; may be repeated."))
    ] = None
    name: Annotated[str | None, typer.Option(help=parameter_help("list_nodes.name"))] = None
    rack: RackOption = None
    label: LabelOption = None
    tenant: Annotated[str | None, typer.Option(help=parameter_help("list_nodes.tenant_id"))] = None
    tier: Annotated[str | None, typer.Option(help=parameter_help("list_nodes.tier"))] = None

    @property
    def is_given(self) -> bool:
        return any((self.contact, self.name, self.rack, self.label, self.tenant, self.tier))

    def selector(self, client: "RestClient") -> dict[str, Any]:
        """Return the conditions that were given."""
        return _given(
            contact=[each.upper() for each in self.contact or []],
            name=self.name,
            rack=self.rack,
            label=self.label,
            tenant_id=None if self.tenant is None else tenant_named(client, self.tenant),
            tier=self.tier,
        )


@dataclass(frozen=True)
class JobSelection:
    """Which jobs: all conditions hold."""

    state: Annotated[list[str] | None, typer.Option(help=parameter_help("state", "QUEUED, ACTIVE, …."))] = None
    name: Annotated[str | None, typer.Option(help=parameter_help("list_jobs.name"))] = None
    tenant: TenantOption = None
    tier: Annotated[str | None, typer.Option(help=parameter_help("list_jobs.tier"))] = None
    job_class: Annotated[str | None, typer.Option(help=parameter_help("list_jobs.job_class"))] = None
    label: LabelOption = None
    node: Annotated[str | None, typer.Option(help=parameter_help("list_jobs.node"))] = None
    rack: Annotated[str | None, typer.Option(help=parameter_help("list_jobs.rack"))] = None
    since: Annotated[str | None, typer.Option(help=parameter_help("list_jobs.since", MOMENT))] = None
    until: Annotated[str | None, typer.Option(help=parameter_help("list_jobs.until", MOMENT))] = None

    @property
    def is_given(self) -> bool:
        words = (self.state, self.name, self.tenant, self.tier, self.job_class, self.label, self.node, self.rack)
        return any((*words, self.since, self.until))

    def selector(self, client: "RestClient") -> dict[str, Any]:
        """Return the conditions that were given. Raises ``typer.BadParameter``: a text is no time."""
        within = bounds(self.since, self.until)
        return _given(
            state=[each.upper() for each in self.state or []],
            name=self.name,
            tenant_id=None if self.tenant is None else tenant_named(client, self.tenant),
            tier=self.tier,
            job_class=self.job_class,
            label=self.label,
            node=None if self.node is None else node_named(client, self.node),
            rack=self.rack,
            since=within.get("since"),
            until=within.get("until"),
        )


def require_one(named: str | None, selection: NodeSelection | JobSelection, argument: str) -> None:
    """Raise ``typer.BadParameter`` unless either one object or a selection is given."""
    if (named is not None) == selection.is_given:
        words = "name either one, or which by options such as --rack; --dry-run shows which these are"
        raise unfit(argument, words)


def change_all(
    client: "RestClient",
    send: Send,
    which: NodeSelection | JobSelection,
    *,
    reason: str | None,
    expect: int | None,
    dry_run: bool,
    done: str,
    **more: Any,
) -> Page:
    """Change all that ``which`` selects, request by request.

    ``done``: what they are then, such as ``cordoned``. ``more``: further members of the body.

    Raises ``typer.BadParameter``: no reason, or no number.
    """
    if not reason:
        raise unfit("--reason", "say why; it is recorded with each of them")
    if expect is None and not dry_run:
        raise unfit("--expect", "type it with --dry-run first, then with --expect and the number that it shows")
    body = {"selector": which.selector(client), "reason": reason, **more}
    if dry_run:
        found = send(body, dry_run=True)
        return Page(found, list(_tried(found, done)))
    answers: list[Document] = []
    try:
        answers.extend(_answers(send, {**body, "expected": expect}))
    except Exception as fault:
        if not answers:
            raise
        code, words, _ = exit_of(fault)
        changed = _joined(answers)["num_changed"]
        raise CommandError(f"{changed} are {done}; then: {words}", "See the rest with --dry-run.", code) from fault
    whole = _joined(answers)
    return Page(whole, list(_made(whole, done)), Exit.CONFLICT if whole["num_refused"] else Exit.OK)


def _answers(send: Send, body: dict[str, Any]) -> Iterator[Document]:
    """Yield the answers to as many requests as it takes."""
    after: dict[str, Any] = {"after": None}
    while True:
        answer = send({**body, **after}, dry_run=False)
        yield answer
        if answer["next_after"] is None:
            return
        after = {"after": answer["next_after"], "expected": answer["num_left"]}


def _given(**conditions: Any) -> dict[str, Any]:
    return {name: value for name, value in conditions.items() if value}


def _joined(answers: list[Document]) -> Document:
    whole = {**answers[0], "items": [item for each in answers for item in each["items"]]}
    for name in ("num_changed", "num_refused"):
        whole[name] = sum(each[name] for each in answers)
    return {**whole, "num_left": 0, "next_after": None}


def _tried(found: Document, done: str) -> Iterator[str | Table]:
    yield f"{found['num_matched']} match and are to be {done}; {found['num_unchanged']} more match and need no change."
    if found["items"]:
        yield Table(ITEMS, found["items"])
    if found["num_left"]:
        yield f"{found['num_left']} more are not shown, nor in the effect."
    yield from effect_lines(found)
    yield f"Type it with --expect {found['num_matched']} in place of --dry-run to do it."


def _made(found: Document, done: str) -> Iterator[str | Table]:
    yield f"{found['num_changed']} are {done}, {found['num_refused']} are refused and stay as they are."
    refused = [item for item in found["items"] if item["outcome"] == "refused"]
    if refused:
        yield Table(ITEMS, refused)
