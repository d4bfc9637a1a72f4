"""The git commit of a job, in place of its work folder: its options, and which commit a branch or tag is now."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import field_help
from muster.cli.framework.options import unfit, value_of

Git = Annotated[str | None, typer.Option("--git", metavar="URL", help=field_help("GitSource.url"))]
Commit = Annotated[str | None, typer.Option("--commit", help=field_help("GitSource.commit"))]
GitSecret = Annotated[str | None, typer.Option("--git-secret", help=field_help("GitSource.secret"))]
_NEEDS_GIT: Final = "it is of a repository: give --git too"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_QUERY_S: Final = 60


@dataclass(frozen=True)
class GitOptions:
    """The repository of a program."""

    git: Git = None
    commit: Commit = None
    git_secret: GitSecret = None

    def git_fields(self) -> dict[str, Any]:
        """Return the program's field; empty without a repository.

        Raises Typer's error about an option, or ``CommandError``: the repository has no such branch or tag.
        """
        if self.git is None:
            if self.commit is not None or self.git_secret is not None:
                raise unfit("--commit" if self.commit is not None else "--git-secret", _NEEDS_GIT)
            return {}
        if self.commit is None:
            raise unfit("--git", "name the commit too, such as --commit $(git rev-parse HEAD)")
        from muster.domain.job.git_spec import git_url

        with value_of("--git"):
            git_url(self.git)
        given = {"url": self.git, "commit": commit_named(self.git, self.commit)}
        return {"git": given if self.git_secret is None else {**given, "secret": self.git_secret}}


def commit_named(url: str, name: str) -> str:
    """Return the commit id: ``name`` itself, or what the repository has by that name. ``CommandError``: nothing."""
    if _COMMIT.fullmatch(name.lower()):
        return name.lower()
    if name.startswith("-"):
        raise unfit("--commit", f"{name!r} is no commit, branch or tag")
    advice = "Name the commit by its whole id: `git rev-parse HEAD` prints it."
    git = shutil.which("git")
    if git is None:
        raise CommandError(f"this machine has no git, which looks up {name}", advice, Exit.USAGE)
    try:
        done = subprocess.run(  # noqa: S603  # no shell; the URL was checked, and no name begins with a dash
            [git, "ls-remote", "--", url, name, f"{name}^{{}}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_QUERY_S,
        )
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise CommandError(f"--commit {name} could not be looked up at {url}: {fault}", advice, Exit.USAGE) from None
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or ["git printed nothing"])[0]
        raise CommandError(f"--commit {name} could not be looked up at {url}: {words}", advice, Exit.USAGE)
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        commit, is_line, ref = line.partition("\t")
        if is_line:
            found[ref] = commit
    # It also prints refs whose path just ends in the name: other branches. An annotated tag is an object of its own;
    # with ^{} it is the commit.
    refs = [ref for ref in (name, f"refs/{name}", f"refs/tags/{name}", f"refs/heads/{name}") if ref in found]
    ids = {found.get(f"{ref}^{{}}", found[ref]) for ref in refs}
    if len(ids) != 1:
        words = f"{url} has no branch or tag {name}" if not ids else f"{url} has several commits by the name {name}"
        raise CommandError(words, advice, Exit.USAGE)
    [found_id] = ids
    typer.echo(f"{name} is commit {found_id}", err=True)
    return found_id
