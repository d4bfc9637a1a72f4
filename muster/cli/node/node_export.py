"""``muster node export`` writes a node's history as records, for ``muster health replay``."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, TextIO

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.moments import MOMENT, moment_in
from muster.cli.framework.names import NodeName
from muster.cli.framework.output import json_of
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Document

WEEK: Final = "7d"


def export(
    node: NodeName,
    since: Annotated[str, typer.Option(help=parameter_help("export_node.from", MOMENT))] = WEEK,
    until: Annotated[str | None, typer.Option(help=parameter_help("export_node.until", MOMENT))] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write, instead of stdout. It must not exist.")] = None,
) -> int:
    """Write a node's reports and the actions on it, one JSON object a line, for `muster health replay`.

    Samples as they are stored, events, burn-ins, dismissals, repairs, overrides, maintenance; first the fleet's size
    and the standings of the node's GPUs. The first line states what the records do not hold.
    """
    now = datetime.now(UTC)
    begin = moment_in(since, "--since", now)
    end = None if until is None else moment_in(until, "--until", now)
    with open_client(as_operator=True) as client:
        records = client.node_export(node, from_=begin, until=end)
        with _written_to(out) as stream:
            num_records = _write(records, stream)
    if out is not None:
        sys.stdout.write(f"{out}: {num_records} records; `muster health replay {out}` plays them\n")
    return Exit.OK


def _write(records: Iterable[Document], stream: TextIO) -> int:
    number = 0
    for record in records:
        stream.write(json_of(record) + "\n")
        number += 1
    return number


@contextmanager
def _written_to(out: Path | None) -> Iterator[TextIO]:
    """Yield the output. The file gets its name after it is whole: half a history would replay as another one."""
    if out is None:
        yield sys.stdout
        return
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    if out.exists():
        raise CommandError(f"{out} exists", "Give --out another name, or move it away.", Exit.CONFLICT)
    try:
        with part.open("w", encoding="utf-8") as stream:
            yield stream
        part.rename(out)
    except OSError as error:
        raise CommandError(f"{out} cannot be written: {error.strerror}", code=Exit.INVALID) from None
    finally:
        part.unlink(missing_ok=True)
