"""Options of a job's program: how it is started, in which environment, and its work folder."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster.cli.framework.field_help import field_help
from muster.cli.framework.options import unfit
from muster.cli.job.environments import Engine, Image, Mounts, User, Venv, environment_of
from muster.cli.job.git_options import GitOptions
from muster.cli.job.job_options import Env, Python, Workdir
from muster.cli.job.lock_options import LockOptions
from muster.cli.job.work_folder import BundleFolder, NoBundle, WorkFolder, chosen_folder

if TYPE_CHECKING:
    from muster.cli.job.files.job_file import JobFile

_PROGRAM_LESS: Final = frozenset({"bundle", "no_bundle", "lock", "extras", "groups", "from_host", "allow_source"})
"""Options about a work folder and its lock file, which can be planned before there is a program."""
_OPTION_NAMES: Final = {"mounts": "mount"}
"""Options whose names are not their field's."""


@dataclass(frozen=True)
class ProgramOptions(LockOptions, GitOptions):
    """How a job's program is started. ``command``: as it is, without torchrun."""

    env: Env = None
    python: Python = None
    venv: Venv = None
    image: Image = None
    engine: Engine = None
    mounts: Mounts = None
    user: User = None
    workdir: Workdir = None
    command: Annotated[bool, typer.Option("--command", help=field_help("launcher"))] = False
    bundle: BundleFolder = None
    no_bundle: NoBundle = False

    def require_program_less(self) -> None:
        """Raise Typer's error about the first option that says how a program is started: none is given."""
        for field in fields(self):
            if field.name not in _PROGRAM_LESS and getattr(self, field.name) != field.default:
                option = _OPTION_NAMES.get(field.name, field.name).replace("_", "-")
                raise unfit(f"--{option}", "it is of a program: give that too, such as `-- train.py` at the end")

    def folder(self, words: list[str], *, is_contained: bool = False, has_bundle: bool = False) -> WorkFolder | None:
        """Return the work folder that the job has; None: its program is on the hosts, or in a bundle that it has."""
        if self.git is not None:
            if self.bundle is not None:
                raise unfit("--git", "the files come from a repository or from a folder: leave --bundle out")
            return None
        return chosen_folder(
            self.bundle,
            no_bundle=self.no_bundle,
            words=[*(words if self.command else words[:1]), *([] if self.lock is None else [str(self.lock)])],
            is_contained=is_contained or self.image is not None,
            script=None if self.command or has_bundle else next(iter(words), None),
        )

    def folder_of_file(self, file: "JobFile") -> WorkFolder | None:
        """Return the work folder of a job whose program a file names."""
        return chosen_folder(
            self.bundle,
            no_bundle=self.no_bundle,
            words=file.words_here(),
            is_contained=False,
            start=file.folder,
            script=file.script_here(),
        )

    def fields(self, words: list[str]) -> dict[str, Any]:
        """Return the program's fields. Warn of paths that do not exist here."""
        around = environment_of(self.venv, self.image, self.engine, self.mounts, self.user)
        around |= self.environment_fields(around, self.python, is_here=self.git is None)
        git = self.git_fields()
        if git:
            return program_of(
                words, self.env or [], self.python, self.workdir, {**around, **git}, is_command=self.command
            )
        # Without --no-bundle a script that does not exist here is refused.
        script = Path(words[0]) if self.no_bundle and not self.command else None
        _warn_of_missing(around, script, self.workdir, self.python, self.venv)
        return program_of(words, self.env or [], self.python, self.workdir, around, is_command=self.command)


def _warn_of_missing(
    around: Mapping[str, Any], script: Path | None, workdir: Path | None, python: Path | None, venv: Path | None
) -> None:
    """Warn of each relative path that does not exist here: it was completed here, and is probably a typing error.

    An absolute path may exist on the hosts alone, and a container's paths are in its image.
    """
    if "container" in around:
        return
    named = {"script": script, "--workdir": workdir, "--python": python, "--venv": venv}
    for what, path in named.items():
        if path is not None and not path.is_absolute() and not path.exists():
            words = f"warning: {what} {path} does not exist here; the hosts will search for {path.absolute()}"
            typer.echo(words, err=True)


def name_of(program: str) -> str:
    stem = re.sub(r"[^a-z0-9._-]+", "-", Path(program).stem.lower()).strip("._-")
    return stem[:63] or "job"


def program_of(
    words: list[str],
    env: list[str],
    python: Path | None,
    workdir: Path | None,
    around: dict[str, Any],
    *,
    is_command: bool,
) -> dict[str, Any]:
    """Return the program's fields. ``around``: its virtual environment or container, whose paths are not completed
    here, or its repository, to which script and working directory are relative.
    """
    is_contained = "container" in around
    is_elsewhere = is_contained or "git" in around
    shared = {
        "env": dict(pair_of(item) for item in env),
        "python": None if python is None else str(python if is_contained else python.absolute()),
        "working_dir": _working_dir(workdir, is_contained=is_elsewhere),
        **around,
    }
    if is_command:
        return {"launcher": "command", "argv": words, **shared}
    script = words[0].removeprefix("./") if is_elsewhere else str(Path(words[0]).resolve())
    return {"launcher": "torchrun", "script": script, "args": words[1:], **shared}


def _working_dir(workdir: Path | None, *, is_contained: bool) -> str | None:
    if is_contained:
        return None if workdir is None else str(workdir)
    return str((workdir or Path.cwd()).resolve())


def pair_of(item: str) -> tuple[str, str]:
    key, separator, value = item.partition("=")
    if not separator:
        raise unfit("--env", f"{item!r} is not KEY=VALUE")
    return key, value
