"""Output of commands. A command returns its result, and this module decides how it is shown.

``@reads`` gives a list or show its ``--json --yaml --wide --watch``; ``@changes`` gives a verb its ``--json --yaml``.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.option_groups import given_to, with_options
from muster.cli.framework.tables import Column, Document, paragraphs, printable, table_lines
from muster.documents.effect_lines import effect_parts
from muster.durable import write_durably

AsJson = Annotated[bool, typer.Option("--json", help="The API's objects as JSON, for programs.")]
AsYaml = Annotated[bool, typer.Option("--yaml", help="The same as YAML.")]
Wide = Annotated[bool, typer.Option("--wide", help="Every column, nothing shortened or folded.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again whenever something happens, until Ctrl-C.")]
Every = Annotated[str, typer.Option(help="With --watch: look at least this often.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help=parameter_help("dry_run"))]
Work = TypeVar("Work", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Format:
    as_json: bool = False
    as_yaml: bool = False
    is_wide: bool = False

    def __post_init__(self) -> None:
        if self.as_json and self.as_yaml:
            raise CommandError("--json and --yaml cannot be used together", "Leave out one of them.", Exit.USAGE)


class Answer(Protocol):
    """Result that a command returns."""

    @property
    def code(self) -> int: ...

    def documents(self) -> Sequence[object]:
        """Return the objects of the answer, which a watch compares one by one."""

    def lines(self, shape: Format) -> Iterator[str]: ...


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects of one kind. ``empty`` is shown if there is none, with what to do; ``notes`` follow the table.

    ``is_streamed``: as JSON one object a line, as tools of a host print that have no API.
    """

    found: Sequence[Any]
    columns: Sequence[Column]
    empty: str
    notes: Sequence[str] = ()
    code: int = Exit.OK
    is_streamed: bool = False

    def documents(self) -> Sequence[object]:
        return self.found

    def lines(self, shape: Format) -> Iterator[str]:
        if shape.as_json and self.is_streamed:
            yield from map(json_of, self.found)
        elif shape.as_json:
            yield from _json_array(self.found)
        elif shape.as_yaml:
            yield yaml_of(list(self.found))
        elif not self.found:
            yield from paragraphs([self.empty], is_wide=shape.is_wide)
        else:
            yield from table_lines(self.columns, self.found, is_wide=shape.is_wide)
            yield from paragraphs(self.notes, is_wide=shape.is_wide)


@dataclass(frozen=True, slots=True)
class Page:
    """One object as lines, some of which may be a table. ``is_verbatim``: no line is folded.

    ``is_one_line``: its JSON is one line, as for commands that need no server.
    """

    found: Any
    parts: Sequence["str | Table"]
    code: int = Exit.OK
    is_verbatim: bool = False
    is_one_line: bool = False

    def documents(self) -> Sequence[object]:
        return [self.found]

    def lines(self, shape: Format) -> Iterator[str]:
        if shape.as_json:
            yield json_of(self.found, indent=None if self.is_one_line else 2)
        elif shape.as_yaml:
            yield yaml_of(self.found)
        else:
            for part in self.parts:
                if isinstance(part, Table):
                    yield from part.lines(shape)
                else:
                    yield from paragraphs([part], is_wide=shape.is_wide or self.is_verbatim)


@dataclass(frozen=True, slots=True)
class Table:
    """Table inside a page."""

    columns: Sequence[Column]
    rows: Sequence[Document]
    indent: str = "  "
    has_header: bool = True

    def lines(self, shape: Format) -> Iterator[str]:
        for line in table_lines(
            self.columns, self.rows, is_wide=shape.is_wide, has_header=self.has_header, indent=len(self.indent)
        ):
            yield self.indent + line


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a change. ``note`` goes to the error stream: for people, separate from what a program reads.

    ``then``: a function to run after the output, such as following logs; its exit code is the command's.
    """

    found: Document
    words: str
    note: str = ""
    code: int = Exit.OK
    then: Callable[[], int] | None = None

    def documents(self) -> Sequence[object]:
        return [self.found]

    def lines(self, shape: Format) -> Iterator[str]:
        if shape.as_json:
            yield json_of(self.found, indent=2)
        elif shape.as_yaml:
            yield yaml_of(self.found)
        elif self.found.get("dry_run"):
            yield from paragraphs(list(effect_lines(self.found)), is_wide=shape.is_wide)
        else:
            yield from paragraphs([self.words], is_wide=False)


def reads(app: typer.Typer, name: str, *, example: str, **settings: Any) -> Callable[[Work], Work]:
    """Register a list or show. ``settings`` are Typer's own."""

    def registered(work: Work) -> Work:
        app.command(name, epilog=f"Example: `{example}`", **settings)(reading(work))
        return work

    return registered


def reading(work: Callable[..., Answer]) -> Callable[..., int]:
    """Return the command of a list or show, which returns its answer and changes nothing: a watch may repeat it."""

    def command(**given: Any) -> int:
        shape = Format(given.pop("as_json"), given.pop("as_yaml"), given.pop("is_wide"))
        every, is_watched = given.pop("every"), given.pop("is_watched")
        if is_watched:
            from muster.cli.framework.watch import watch

            return watch(lambda: work(**given_to(work, given)), shape, every=every)
        return show(work(**given_to(work, given)), shape)

    added = {
        "as_json": (AsJson, False),
        "as_yaml": (AsYaml, False),
        "is_wide": (Wide, False),
        "is_watched": (Watch, False),
        "every": (Every, "2s"),
    }
    return with_options(command, work, added)


def changes(app: typer.Typer, name: str, *, example: str, **settings: Any) -> Callable[[Work], Work]:
    """Register a verb. ``settings`` are Typer's own."""

    def registered(work: Work) -> Work:
        def command(**given: Any) -> int:
            shape = Format(given.pop("as_json"), given.pop("as_yaml"))
            return show(_answer_of(work(**given_to(work, given))), shape)

        added = {"as_json": (AsJson, False), "as_yaml": (AsYaml, False)}
        app.command(name, epilog=f"Example: `{example}`", **settings)(with_options(command, work, added))
        return work

    return registered


def _answer_of(found: Answer) -> Answer:
    return found


def show(answer: Answer, shape: Format) -> int:
    """Print an answer and return its exit code."""
    for line in answer.lines(shape):
        print_line(line)
    if not isinstance(answer, Done):
        return answer.code
    if answer.note and not shape.as_json and not shape.as_yaml:
        typer.echo("\n".join(map(printable, answer.note.splitlines())), err=True)
    return answer.code if answer.then is None else answer.then()


def print_line(line: str) -> None:
    """Print a line to stdout at once; a character that its encoding cannot hold is replaced."""
    if _is_utf8():
        sys.stdout.write(line + "\n")
    else:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(line.encode(encoding, "replace").decode(encoding) + "\n")
    sys.stdout.flush()


def json_of(document: object, *, indent: int | None = None) -> str:
    return json.dumps(document, indent=indent, ensure_ascii=not _is_utf8())


def wrote_json(document: object, path: Path | None) -> bool:
    """Write ``--json OUT`` to a file, or with ``-`` to stdout, and return whether that is the whole output.

    Raises:
        CommandError: the file cannot be written.
    """
    if path is None:
        return False
    if str(path) == "-":
        print_line(json_of(document, indent=2))
        return True
    try:
        _write_whole(path, json_of(document, indent=2) + "\n")
    except OSError as fault:
        raise CommandError(f"{path} cannot be written: {fault.strerror}", code=Exit.FAILED) from None
    return False


def require_place(path: Path | None, *inputs: Path | None) -> None:
    """Require before the work that ``--json OUT`` can be written: its folder exists, and it is none of the ``inputs``.

    Raises:
        CommandError: it cannot be written, or an input would be overwritten.
    """
    if path is None or str(path) == "-":
        return
    if any(one is not None and one.exists() and path.exists() and one.samefile(path) for one in inputs):
        raise CommandError(f"--json {path} would overwrite what is read", "Name another file.", Exit.USAGE)
    if path.is_dir() or not path.absolute().parent.is_dir():
        words = "it is a folder" if path.is_dir() else "its folder does not exist"
        raise CommandError(f"--json {path} cannot be written: {words}", code=Exit.FAILED)


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that the old content stays until all is written; a device or a pipe is written directly."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
    else:
        write_durably(path.resolve(), text.encode(), mode=0o644)


def yaml_of(document: object) -> str:
    import yaml

    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=_is_utf8(), width=120)).rstrip("\n")


def _json_array(documents: Iterable[object]) -> Iterator[str]:
    """Yield one array for a parser, with one object a line for ``grep``."""
    lines = [json_of(document) for document in documents]
    yield "[" + (",\n ".join(lines)) + "]"


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def moment_of(moment: str) -> str:
    """Return a time in UTC to the second; the API's times have microseconds."""
    return datetime.fromisoformat(moment).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(moment: str | None) -> str:
    """Return how long ago a time was, in one unit."""
    if moment is None:
        return "never"
    return age_of((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())


def age_of(passed_s: float) -> str:
    seconds = max(0, int(passed_s))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def until(moment: str) -> str:
    """Return how far ahead a time is, in one unit."""
    seconds = (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()
    if seconds <= 0:
        return "now"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"in {seconds / size:.0f} {unit}"
    return f"in {seconds:.0f} s"


def effect_lines(document: Document) -> Iterator[str]:
    """Yield the effect of a dry run as its server states it."""
    yield "dry run: nothing was changed."
    if "effect" not in document:
        yield "This server is of an earlier release: it does not say what the change would do."
        return
    for part in effect_parts(document["effect"]):
        yield part.title
        yield from (f"  {line}" for line in part.lines)
