"""Process that fetches a git commit in the sandbox of its job: as the job's user, without files or tokens of the host.

It reads its order from the descriptor that the first argument names, and writes one line of JSON: its end. The secret
of the repository comes with the order, is kept in memory alone, and reaches git by a descriptor of this process.
"""

import json
import os
import sys
from pathlib import Path

import msgspec

from muster.content.faults import shown
from muster.sizes import size_in_words
from workers.host.content.environment_build import BuildEnd
from workers.host.content.git_commands import FoundFile, Repository
from workers.host.content.git_faults import GitFaultError
from workers.host.content.whole_copy import FULL

_LFS: bytes = b"version https://git-lfs.github.com/spec/"
_LFS_BYTES = range(100, 1024)
_MOST_NAMED = 5
_WITHOUT = "Submit the work folder instead, without --git"


class GitBuildOrder(msgspec.Struct, frozen=True, kw_only=True):
    """``folder``: for the repository; it does not exist yet. ``target``: where the commit's files appear.

    ``max_bytes``, ``max_files``: of the commit. ``free_bytes``: of the disk must stay free.
    """

    url: str
    commit: str
    secret: bytes | None
    secret_name: str | None
    folder: str
    target: str
    log: str
    within_s: float
    max_bytes: int
    max_files: int
    free_bytes: int


def run(order: GitBuildOrder) -> BuildEnd:
    target = Path(order.target)
    try:
        target.mkdir()
        Path(order.folder).mkdir()
        repository = Repository(
            Path(order.folder),
            Path(order.log),
            url=order.url,
            secret=order.secret,
            secret_name=order.secret_name,
            within_s=order.within_s,
            max_bytes=2 * order.max_bytes,
            free_bytes=order.free_bytes,
        )
        repository.fetch(order.commit)
        files = repository.files_of(order.commit, order.max_files)
        _require_within(files, order)
        repository.check_out(order.commit, target)
        _require_no_pointers(files, target)
    except GitFaultError as fault:
        return BuildEnd(found=fault.found, words=str(fault))
    except OSError as fault:
        words = "this host's disk is full" if fault.errno in FULL else f"this host cannot fetch it: {fault}"
        return BuildEnd(found="host", words=words)
    return BuildEnd(found="built")


def _require_within(files: list[FoundFile], order: GitBuildOrder) -> None:
    """Raise GitFaultError: the commit has a submodule, or is larger than a bundle may be."""
    modules = [one.path for one in files if one.is_submodule]
    if modules:
        words = f"the commit has submodules, which are not fetched: {_named(modules)}"
        raise GitFaultError("final", f"{words}. {_WITHOUT}, or put their files into the repository")
    num_bytes = sum(one.num_bytes for one in files)
    if num_bytes > order.max_bytes:
        largest = sorted(files, key=lambda one: one.num_bytes, reverse=True)[:_MOST_NAMED]
        named = ", ".join(f"{shown(one.path)} ({size_in_words(one.num_bytes)})" for one in largest)
        has = f"the commit has {size_in_words(num_bytes)}, and {size_in_words(order.max_bytes)} are accepted"
        raise GitFaultError("final", f"{has} (content.bundle_bytes). The largest files: {named}")
    if len(files) > order.max_files:
        has = f"the commit has {len(files):,} files, and {order.max_files:,} are accepted"
        raise GitFaultError("final", f"{has} (content.bundle_files)")


def _require_no_pointers(files: list[FoundFile], target: Path) -> None:
    """Raise GitFaultError for files in Git LFS: the program would read pointers in their place."""
    pointers = [
        one.path for one in files if one.is_file and one.num_bytes in _LFS_BYTES and _is_pointer(target / one.path)
    ]
    if pointers:
        words = f"the commit has files in Git LFS, which are not fetched: {_named(pointers)}"
        raise GitFaultError("final", f"{words}. {_WITHOUT}, or keep them in a store that the job reads")


def _is_pointer(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_LFS)) == _LFS
    except FileNotFoundError:
        return False


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - _MOST_NAMED:,} more" if len(paths) > _MOST_NAMED else ""
    return ", ".join(shown(path) for path in paths[:_MOST_NAMED]) + more


def main() -> None:
    with open(int(sys.argv[1]), "rb") as asked:  # noqa: PTH123  # a descriptor
        order = msgspec.json.decode(asked.read(), type=GitBuildOrder)
    os.write(1, f"{json.dumps(msgspec.to_builtins(run(order)))}\n".encode())


if __name__ == "__main__":
    main()
