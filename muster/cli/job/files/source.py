"""Options that say where a job's fields come from: a file with variables, and single fields by ``--set``.

Options replace fields of the file, and ``--set`` replaces either.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.job.environments import environment_of
from muster.cli.job.program_options import ProgramOptions, program_of

if TYPE_CHECKING:
    from muster.cli.job.files.job_file import JobFile
    from muster.cli.job.files.overrides import Setting
    from muster.cli.job.work_folder import WorkFolder

File = Annotated[
    Path | None,
    typer.Option("--file", "-f", help="A job file in YAML or JSON, or - for stdin; options replace its fields."),
]
Variables = Annotated[
    list[str] | None,
    typer.Option("--var", help="NAME=VALUE of a variable in the file; NAME alone: the environment's. May be repeated."),
]
VariableFiles = Annotated[
    list[Path] | None, typer.Option("--vars", help="A file of NAME: VALUE, in YAML or JSON; may be repeated.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="FIELD=VALUE of any field, in YAML, such as labels.team=vision; may be repeated."),
]


@dataclass(frozen=True)
class SettingOptions:
    """Fields of a job by their names in the API."""

    settings: Settings = None

    def chosen(self) -> "list[Setting]":
        """Return the settings. Raises Typer's error about the option."""
        if not self.settings:
            return []
        from muster.cli.job.files.overrides import settings_of

        return settings_of(self.settings)

    def applied(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return the specification with the settings."""
        chosen = self.chosen()
        if not chosen:
            return dict(spec)
        from muster.cli.job.files.overrides import with_settings

        return with_settings(spec, chosen)


@dataclass(frozen=True)
class SourceOptions(SettingOptions):
    """The file of a job, and what goes into it."""

    file: File = None
    variables: Variables = None
    variable_files: VariableFiles = None

    def require_one(self, words: Sequence[str]) -> None:
        """Require a program or a file. Raises ``CommandError``."""
        if self.file is None and not words:
            advice = "Such as `muster job submit -- train.py`, or `muster job submit -f job.yaml`."
            raise CommandError("neither a program nor a job file is given", advice, Exit.USAGE)
        if self.file is None and (self.variables or self.variable_files):
            raise CommandError("a variable belongs to a job file", "Give --file too.", Exit.USAGE)

    def read(self) -> "JobFile":
        """Return the file's job. Raises ``CommandError``."""
        from muster.cli.job.files.job_file import read_job_file
        from muster.cli.job.files.variables import given_variables

        given = given_variables(self.variables or [], self.variable_files or [])
        return read_job_file(self.file or Path("-"), given)


def program_given(options: ProgramOptions, words: Sequence[str], *, is_contained: bool) -> dict[str, Any]:
    """Return the fields of a program that options give, for a job that has a program.

    ``is_contained``: in a container, whose paths are not completed here.
    """
    if options.command and not words:
        raise CommandError("--command has no words to run", "Give them after --.", Exit.USAGE)
    around = environment_of(options.venv, options.image, options.engine, options.mounts, options.user)
    if "container" in around:
        around["container"] = {name: value for name, value in around["container"].items() if value}
    elif is_contained and options.venv is None:
        around["container"] = {}
    git = options.git_fields()
    around |= git
    if given := options.environment_given(is_here=not git):
        around["environment"] = given
    made = program_of(
        list(words) or ["-"], options.env or [], options.python, options.workdir, around, is_command=options.command
    )
    if not words:
        made = {name: value for name, value in made.items() if name not in {"launcher", "script", "args", "argv"}}
    if options.workdir is None:
        del made["working_dir"]
    return {name: value for name, value in made.items() if value is not None and (name != "env" or value)}


def program_again(
    options: ProgramOptions, words: Sequence[str], document: Mapping[str, Any]
) -> "tuple[dict[str, Any], WorkFolder | None]":
    """Return the fields of a program that options give in place of a document's, and the work folder they choose.

    Words in a work folder of here replace the document's bundle. Other relative words are paths in that bundle.

    Raises:
        CommandError: without its bundle the document's program would name paths that are nowhere.
    """
    is_in_image = is_contained(document)
    program = document.get("program")
    has_bundle = isinstance(program, Mapping) and (program.get("bundle") or program.get("git")) is not None
    folder = options.folder(list(words), is_contained=is_in_image, has_bundle=has_bundle)
    typed = program_given(options, words, is_contained=is_in_image)
    if folder is None and options.lock is not None:
        typed["environment"]["lock"] = os.path.normpath(options.lock)
    if words and folder is not None:
        if "script" in typed:
            typed["script"] = str(Path.cwd() / typed["script"])
        return ({**typed, "bundle": None, "git": None} if has_bundle else typed), folder
    if isinstance(program, Mapping) and has_bundle and options.no_bundle:
        _require_paths_of_hosts(program, typed)
        return {**typed, "bundle": None, "git": None}, folder
    if options.git is not None:
        return ({**typed, "bundle": None} if has_bundle else typed), folder
    if has_bundle and "script" in typed and not words[0].startswith("/"):
        typed["script"] = os.path.normpath(words[0])
    return typed, folder


def _require_paths_of_hosts(program: Mapping[str, Any], typed: Mapping[str, Any]) -> None:
    """Require that a program that loses its bundle has no path in it. Raises ``CommandError``."""
    from muster.cli.job.files.overrides import overridden
    from muster.domain.job.bundle_spec import is_in_bundle

    left = overridden(program, typed, "/program")
    argv = left.get("argv") or [""]
    is_path = "argv" not in typed and is_in_bundle(argv[0])
    paths = {"script": left.get("script"), "command": argv[0] if is_path else None}
    for what, path in {**paths, "working directory": left.get("working_dir")}.items():
        if path is not None and not str(path).startswith("/"):
            advice = "Name the hosts' program after --, and its folder by --workdir, or leave --no-bundle out."
            raise CommandError(f"the {what} {path} is a path in the job's bundle", advice, Exit.USAGE)


def fields_given(**fields: Any) -> dict[str, Any]:
    """Return the fields that options gave: neither None nor an empty mapping or list."""
    return {name: value for name, value in fields.items() if value is not None and value not in ({}, [])}


def is_contained(document: Mapping[str, Any]) -> bool:
    """Return whether the job's program runs in a container."""
    program = document.get("program")
    return isinstance(program, Mapping) and program.get("container") is not None
