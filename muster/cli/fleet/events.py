"""``muster event``."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import AsJson, AsYaml, Wide, json_of, moment_of, print_line, yaml_of
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Document, paragraphs

if TYPE_CHECKING:
    from muster.client.rest import RestClient

app = typer.Typer(help="Events: what happened, in order.", no_args_is_help=True)
EXAMPLE: Final = "Example: `muster event list --kind gpu. --last 20 --follow`"
_INDENT: Final = " " * 8


@app.command("list", epilog=EXAMPLE)
def list_events(
    after: Annotated[int, typer.Option(min=0, help="Begin behind this position.")] = 0,
    last: Annotated[int | None, typer.Option(min=1, help="Only so many, the newest.")] = None,
    kind: Annotated[str | None, typer.Option(help="What its kind begins with: job., gpu.moved.")] = None,
    about: Annotated[str | None, typer.Option(help="The id of a job, GPU, node, … in full.")] = None,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", "--watch", "-w", help="Continue with new events, until Ctrl-C.")
    ] = False,
    is_wide: Wide = False,
    as_json: AsJson = False,
    as_yaml: AsYaml = False,
) -> int:
    """List the events that this key sees, the oldest first; in a local stack also events of GPUs and hosts."""
    if as_json and as_yaml:
        raise CommandError("--json and --yaml cannot be used together", "Leave out one of them.", Exit.USAGE)

    if last is not None and after:
        raise CommandError("--after and --last cannot be used together", "Leave out one of them.", Exit.USAGE)

    def is_wanted(event: Document) -> bool:
        return str(event["kind"]).startswith(kind or "") and about in {None, event["subject_id"]}

    def show(event: Document) -> None:
        for line in _lines(event, is_wide=is_wide, as_json=as_json, as_yaml=as_yaml):
            print_line(line)

    try:
        with open_client(as_operator=True) as client:
            known = client.events(after=after) if last is None else _newest(client, last, kind, about)
            position = _show_all(known, after if last is None else None, is_wanted, show)
            if follow:
                _show_all(client.follow_events(after=position), position, is_wanted, show)
    except KeyboardInterrupt:
        if not follow:
            raise
    return Exit.OK


def _newest(client: "RestClient", last: int, kind: str | None, about: str | None) -> Iterable[Document]:
    newest = client.newest_events(kind=kind, subject_id=about, limit=min(last, 200))
    found: list[Document] = list(islice(newest, last))
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
