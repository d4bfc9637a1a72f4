"""A job in a file, as YAML or JSON: the fields of a submission, read and checked with the line of each fault."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import typer

from muster.cli.framework.document_files import MOST_FAULTS, decoded, place_words, require_json, unreadable
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.yaml_loading import UNREADABLE, Placed, placed_documents
from muster.cli.job.files.overrides import Setting, overridden, pointers_of, with_settings
from muster.cli.job.files.variables import Filling, GivenVariables
from muster.client.transport import Problem
from muster.domain.errors import ValidationFailedError
from muster.domain.job.submission import JobSubmission
from muster.domain.validation import validated

STDIN: Final = Path("-")
MOST_BYTES: Final = 8 << 20
"""Most bytes of a file; the API accepts less."""
_ADVICE: Final = "`muster job schema` has every field; JSON is YAML too."
_ANY_BUNDLE: Final = "0" * 64
_OF_HERE: Final = ("script", "working_dir", "python", "venv")
"""Paths of a program that may be relative to the file."""
_IN_BUNDLE: Final = frozenset({"script", "working_dir"})
"""Of these, the ones that are relative to the bundle of a job that has one, as the first word of ``argv``."""

_PROGRAM: Final = frozenset({"/program", "/program/script", "/program/argv"})


@dataclass(frozen=True)
class JobFile:
    """A job's document. ``name``: as errors name the file. ``lines``: the line of each field, by JSON pointer.

    ``typed``: pointers of the fields that options replaced, which have no line. ``folder``: where relative paths of the
    program start. ``relative``: its completed paths, by field, as the file has them.
    """

    name: str
    document: dict[str, Any]
    placed: Placed
    folder: Path
    relative: Mapping[str, str]
    typed: frozenset[str] = field(default_factory=frozenset)

    def script_here(self) -> str | None:
        """Return the script that the file names by a relative path, unless an option replaced it."""
        return None if self.typed & _PROGRAM else self.relative.get("script")

    def words_here(self) -> list[str]:
        """Return the words of the file's program of which a relative path in ``folder`` makes that the work folder.

        There are none in a container, with a bundle that is stored already, or if an option replaced the program.
        """
        program = self.document.get("program")
        if not isinstance(program, dict) or self.typed & _PROGRAM:
            return []
        if program.get("container") is not None or _has_bundle(program):
            return []
        environment = program.get("environment")
        lock = environment.get("lock") if isinstance(environment, dict) else None
        locks = [lock] if isinstance(lock, str) else []
        if (script := self.script_here()) is not None:
            return [script, *locks]
        argv = program.get("argv")
        return [*(word for word in argv if isinstance(word, str)), *locks] if isinstance(argv, list) else locks

    def with_options(self, options: Mapping[str, Any], settings: Sequence[Setting]) -> "JobFile":
        """Return the job with the fields that options and settings gave in place of the file's."""
        document = with_settings(overridden(self.document, options), settings)
        given = {*pointers_of(options), *(setting.pointer for setting in settings)}
        return replace(self, document=document, typed=self.typed | given)

    def require_submission(self) -> None:
        """Require that the document is a submission. Raises ``CommandError`` with every fault and its line."""
        try:
            validated(JobSubmission, self._with_bundle())
        except ValidationFailedError as refused:
            faults = [(fault.pointer, fault.detail) for fault in refused.faults]
            raise CommandError(self._words(faults, "is no job file"), _ADVICE, Exit.INVALID) from None

    def _with_bundle(self) -> dict[str, Any]:
        """Return the document with the bundle that its work folder will be, if its environment needs one."""
        program = self.document.get("program")
        if not isinstance(program, dict) or not program.get("environment") or _has_bundle(program):
            return self.document
        environment = program["environment"]
        if isinstance(environment, dict) and isinstance(environment.get("lock"), str):
            environment = {**environment, "lock": Path(environment["lock"]).name}  # its path is checked by the bundle
        return {**self.document, "program": {**program, "bundle": _ANY_BUNDLE, "environment": environment}}

    @contextmanager
    def naming_lines(self) -> Iterator[None]:
        """Name the line of each field that the server refuses in the block."""
        try:
            yield
        except Problem as problem:
            errors = [each for each in (problem.document or {}).get("errors", ()) if isinstance(each, dict)]
            faults = [(str(each.get("pointer", "")), str(each.get("detail", ""))) for each in errors]
            if problem.status != 422 or not faults:
                raise
            words = self._words(faults, "is refused by the control plane")
            raise CommandError(words, "Correct it, and submit it again.", Exit.INVALID) from problem

    def _words(self, faults: list[tuple[str, str]], what: str) -> str:
        shown = [f"  {self._where(pointer)}: {detail}" for pointer, detail in faults[:MOST_FAULTS]]
        more = [f"  and {len(faults) - MOST_FAULTS} more"] if len(faults) > MOST_FAULTS else []
        return "\n".join([f"{self.name} {what}:", *shown, *more])

    def _where(self, pointer: str) -> str:
        place = place_words(pointer, "the whole")
        if any(pointer == each or pointer.startswith(f"{each}/") for each in self.typed):
            return f"{place} (from an option)"
        return f"line {self.placed.line_of(pointer)}, {place}"


def read_job_file(path: Path, given: GivenVariables) -> JobFile:
    """Return the job of a file, or with ``-`` of stdin, with its variables filled in.

    Raises:
        CommandError: it cannot be read, is no mapping, or has variables without a value.
    """
    name, text = ("stdin", _of_stdin()) if path == STDIN else (str(path), _of_file(path))
    try:
        found = list(placed_documents(text, Filling(name, given)))
    except UNREADABLE as error:
        raise unreadable(name, error, _ADVICE) from error
    if len(found) != 1 or not isinstance(found[0].value, dict):
        words = f"holds {len(found)} documents, where one job is expected" if len(found) > 1 else "holds no mapping"
        raise CommandError(f"{name}: {words}", _ADVICE, Exit.INVALID)
    placed = found[0]
    require_json(name, placed.value, _ADVICE)
    document = json.loads(json.dumps(placed.value))
    document.pop("$schema", None)
    folder = Path.cwd() if path == STDIN else Path(os.path.normpath(path.absolute().parent))
    return JobFile(name, document, placed, folder, _complete_paths(document, folder))


def _of_stdin() -> str:
    if sys.stdin.isatty():
        typer.echo("reading a job from the terminal; end it with Ctrl-D", err=True)
    return _bounded("stdin", sys.stdin.buffer.read(MOST_BYTES + 1))


def _of_file(path: Path) -> str:
    if str(path).startswith("-"):
        words = f"-f names a job file, and {path} is none"
        raise CommandError(words, "To follow its logs write --follow.", Exit.USAGE)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{path}: cannot be read ({error.strerror})", "Name a job file, or -.", Exit.USAGE) from None
    if path.suffix in {".py", ".sh"}:
        words = f"{path} is a program, and -f names a job file"
        raise CommandError(words, f"`muster job submit --follow -- {path}` submits and follows it.", Exit.USAGE)
    return _bounded(str(path), content)


def _bounded(name: str, content: bytes) -> str:
    if len(content) > MOST_BYTES:
        raise CommandError(f"{name}: has more than {MOST_BYTES >> 20} MiB", "It is no job file.", Exit.INVALID)
    return decoded(name, content)


def _has_bundle(program: Mapping[str, Any]) -> bool:
    """Return whether the program's paths are in a bundle, by digest or of a commit."""
    return program.get("bundle") is not None or program.get("git") is not None


def _complete_paths(document: dict[str, Any], folder: Path) -> dict[str, str]:
    """Complete relative paths of the program by the file's folder, and return them as they were.

    A container's paths are the image's, and with a bundle script and working directory are the bundle's.
    """
    program = document.get("program")
    completed: dict[str, str] = {}
    if not isinstance(program, dict) or program.get("container") is not None:
        return completed
    has_bundle = _has_bundle(program)
    for name in _OF_HERE:
        if has_bundle and name in _IN_BUNDLE:
            continue
        path = program.get(name)
        if not isinstance(path, str) or not path or path.startswith("/"):
            continue
        whole = os.path.normpath(folder / path)
        program[name], completed[name] = whole, path
        if not Path(whole).exists():
            words = f"warning: program.{name} {path} does not exist here; the hosts will search for {whole}"
            typer.echo(words, err=True)
    return completed
