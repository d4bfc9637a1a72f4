"""``muster event``."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.list_options import bounds
from muster.cli.framework.moments import MOMENT
from muster.cli.framework.names import TenantOption, tenant_named
from muster.cli.framework.output import AsJson, AsYaml, Wide, json_of, moment_of, print_line, yaml_of
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Document, paragraphs

if TYPE_CHECKING:
    from muster.client.calls import Within
    from muster.client.rest import RestClient

app = typer.Typer(help="Events: what happened, in order.", no_args_is_help=True)
EXAMPLE: Final = "Example: `muster event list --kind gpu. --last 20 --follow`"
_INDENT: Final = " " * 8


@app.command("list", epilog=EXAMPLE)
def list_events(
    after: Annotated[int, typer.Option(min=0, help=parameter_help("after"))] = 0,
    last: Annotated[int | None, typer.Option(min=1, help=parameter_help("limit", "The newest."))] = None,
    kind: Annotated[str | None, typer.Option(help=parameter_help("newest_events.kind"))] = None,
    about: Annotated[str | None, typer.Option(help=parameter_help("subject_id"))] = None,
    tenant: TenantOption = None,
    since: Annotated[str | None, typer.Option(help=parameter_help("since", MOMENT))] = None,
    until: Annotated[str | None, typer.Option(help=parameter_help("until", MOMENT))] = None,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", "--watch", "-w", help="Continue with new events, until Ctrl-C.")
    ] = False,
    is_wide: Wide = False,
    as_json: AsJson = False,
    as_yaml: AsYaml = False,
) -> int:
    """List the events that this key sees, the oldest first; in a local stack also events of GPUs and hosts."""
    _require_possible(
        ("--json", "--yaml", as_json and as_yaml),
        ("--after", "--last", after and last is not None),
        ("--after", "--since or --until", after and (since or until)),
        ("--follow", "--until", follow and until),
    )
    within = bounds(since, until)

    def show(event: Document) -> None:
        for line in _lines(event, is_wide=is_wide, as_json=as_json, as_yaml=as_yaml):
            print_line(line)

    try:
        with open_client(as_operator=True) as client:
            where = _Conditions(kind, about, None if tenant is None else tenant_named(client, tenant))
            is_from_position = last is None and not within
            known = client.events(after=after) if is_from_position else where.stretch(client, last, within)
            position = _show_all(known, after if is_from_position else None, where.has, show)
            if follow:
                _show_all(client.follow_events(after=position), position, where.has, show)
    except KeyboardInterrupt:
        if not follow:
            raise
    return Exit.OK


def _require_possible(*pairs: tuple[str, str, object]) -> None:
    for option, other, are_both in pairs:
        if are_both:
            raise CommandError(f"{option} and {other} cannot be used together", "Leave out one of them.", Exit.USAGE)


@dataclass(frozen=True)
class _Conditions:
    kind: str | None
    about: str | None
    tenant_id: str | None

    def has(self, event: Document) -> bool:
        is_of_kind = str(event["kind"]).startswith(self.kind or "")
        return (
            is_of_kind
            and self.about in {None, event["subject_id"]}
            and (self.tenant_id is None or self.tenant_id == event["tenant_id"])
        )

    def stretch(self, client: "RestClient", last: int | None, within: "Within") -> Iterable[Document]:
        """Return the events of a stretch of time, or the ``last`` of them, the oldest first."""
        asked: Within = {**within} if last is not None else {**within, "order": "oldest"}
        events = client.newest_events(
            kind=self.kind, subject_id=self.about, tenant_id=self.tenant_id, limit=min(last or 200, 200), **asked
        )
        if last is None:
            return events
        found: list[Document] = list(islice(events, last))
        return reversed(found)


def _show_all(
    events: Iterable[Document],
    position: int | None,
    is_wanted: Callable[[Document], bool],
    show: Callable[[Document], None],
) -> int | None:
    """Show events and return the position to continue from: the last event's, or ``position``; None: only
    new events.
    """
    for event in events:
        position = event["position"]
        if is_wanted(event):
            show(event)
    return position


def _lines(event: Document, *, is_wide: bool, as_json: bool, as_yaml: bool) -> Iterator[str]:
    """Yield an event as one JSON object, as a YAML document, or as text: position, time, kind and subject."""
    if as_json:
        yield json_of(event)
        return
    if as_yaml:
        yield f"---\n{yaml_of(event)}"
        return
    why = event["payload"].get("reason") or event["payload"].get("cause") or ""
    head = f"{event['position']:>6}  {event['at'][11:19]}  {event['kind']}  {event['subject_id']}"
    if is_wide:
        at = moment_of(event["at"])
        yield f"{event['position']:>6}  {at}  {event['kind']:<24} {event['subject_id']}  {why}".rstrip()
        return
    yield from paragraphs([head, *([_INDENT + str(why)] if why else [])], is_wide=False)
