"""The environment of a program from a lock file of its work folder: its options, and its sizes before a submission."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import field_help
from muster.cli.framework.options import unfit
from muster.sizes import size_in_words

if TYPE_CHECKING:
    from muster import documents
    from muster.environments.lock_file import Lock as LockFile

Lock = Annotated[
    Path | None,
    typer.Option(
        "--lock",
        help=field_help("lock", "Hosts build an environment from it, once, and the program runs by its Python."),
    ),
]
Extras = Annotated[list[str] | None, typer.Option("--extra", help=field_help("extras", "May be repeated."))]
Groups = Annotated[list[str] | None, typer.Option("--group", help=field_help("Environment.groups", "May be repeated."))]
FromHost = Annotated[
    list[str] | None,
    typer.Option("--from-host", help=field_help("from_host", "May be repeated.")),
]
AllowSource = Annotated[bool, typer.Option("--allow-source", help=field_help("allows_source"))]


@dataclass(frozen=True)
class LockOptions:
    """The environment that is built for a program."""

    lock: Lock = None
    extras: Extras = None
    groups: Groups = None
    from_host: FromHost = None
    allow_source: AllowSource = False

    def environment_given(self, *, is_here: bool = True) -> dict[str, Any]:
        """Return the fields that options gave. The lock file's path is completed if its file ``is_here``."""
        lock = self.lock if self.lock is None or not is_here else Path.cwd() / self.lock
        given = {
            "lock": None if lock is None else str(lock),
            "extras": self.extras,
            "groups": self.groups,
            "from_host": self.from_host,
            "allows_source": self.allow_source,
        }
        return {name: value for name, value in given.items() if value}

    def environment_fields(
        self, around: Mapping[str, Any], python: Path | None, *, is_here: bool = True
    ) -> dict[str, Any]:
        """Return the program's field. Raises Typer's error: an option needs a lock, or the lock excludes another."""
        given = self.environment_given(is_here=is_here)
        if not given:
            return {}
        if "lock" not in given:
            option = {"extras": "--extra", "groups": "--group", "from_host": "--from-host"}.get(min(given))
            raise unfit(option or "--allow-source", "it is an option of environments: give --lock too")
        for name, is_given in (("--image", "container" in around), ("--venv", "venv" in around), ("--python", python)):
            if is_given:
                raise unfit("--lock", f"its environment has an interpreter and packages of its own: leave {name} out")
        return {"environment": given}


def locked_sizes(path: Path, shown_as: str, from_host: "list[str] | tuple[str, ...]") -> str:
    """Return what hosts install from a lock file, with its size. Raises CommandError: it is no lock that they take."""
    from muster.environments.faults import LockFaultError
    from muster.environments.lock_file import read_lock

    try:
        lock = read_lock(path)
    except LockFaultError as fault:
        raise CommandError(
            f"the lock file {shown_as}: {fault}", "Correct it, and submit again.", Exit.INVALID
        ) from fault
    return f"environment of {shown_as}: {_sizes_of(lock, from_host)}"


def environment_faults(content: "documents.ContentLimits | None", *, allows_source: bool) -> list[str]:
    """Return why hosts cannot build an environment; empty: they can, or the control plane does not say."""
    from muster.domain.job.environment_builds import PackageHosts

    num_hosts = None if content is None else content.get("num_package_hosts")
    if content is None or num_hosts is None:
        return []
    fault = PackageHosts(num_hosts, content["num_source_hosts"]).fault(allows_source=allows_source)
    return [] if fault is None else [fault]


def _sizes_of(lock: "LockFile", from_host: "list[str] | tuple[str, ...]") -> str:
    from muster.environments.lock_file import is_from_host

    taken = [one for one in lock.packages if not is_from_host(one.name, from_host)]
    known = [one for one in taken if one.num_bytes is not None]
    count = "1 package" if len(taken) == 1 else f"{len(taken):,} packages"
    of_hosts = len(lock.packages) - len(taken)
    more = [f"{of_hosts} from the hosts"] if of_hosts else []
    if not known:
        return "; ".join([f"{count} of sizes that the lock does not say", *more])
    largest = max(known, key=lambda one: one.num_bytes or 0)
    words = f"{count}, at most {size_in_words(sum(one.num_bytes or 0 for one in known))}"
    if len(known) < len(taken):
        words += f" and {len(taken) - len(known)} of unknown size"
    return "; ".join([words, f"largest {largest.name} {size_in_words(largest.num_bytes)}", *more])
