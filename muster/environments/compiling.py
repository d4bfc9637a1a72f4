"""Compiles the modules of a folder to bytecode; run as a script by the interpreter that will import them.

It imports the standard library alone, and nothing of the folder is run. The bytecode of a package is the same in each
environment: paths in it are relative, and a new process compiles each part of a package, since the bytes depend on what
a process has compiled before. Source that no Python can compile, as templates of packages have, has none. Nor have the
tests that packages bring: no program imports them, and they are a third of the work.
"""

import contextlib
import gc
import importlib.util
import itertools
import marshal
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

_PACKAGE_DEPTH = 3
"""Parts of a path such as ``python3.11/site-packages/numpy``."""
_NOT_COMPILED = frozenset({"tests", "__pycache__"})
_UNCHECKED = b"\x01\x00\x00\x00"
"""Python trusts the bytecode unseen: no job can write an environment."""
_PART_BYTES = 512 << 10
"""Source that one process compiles: enough that its start does not count."""


def main() -> None:
    """Compile the modules below the folder that the first argument names, on all CPUs of this process."""
    os.chdir(sys.argv[1])
    warnings.simplefilter("ignore")
    gc.disable()  # nothing of it is ever thrown away
    num_free = len(os.sched_getaffinity(0))
    for part in sorted(_parts(), key=lambda part: -sum(path.stat().st_size for path in part)):
        if not num_free:
            os.wait()
            num_free += 1
        if os.fork() == 0:
            try:
                for path in part:
                    with contextlib.suppress(Exception):
                        _compile(path)
            finally:
                os._exit(0)
        num_free -= 1
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _parts() -> Iterator[list[Path]]:
    """Yield the modules in groups that depend on nothing but their own package."""
    for _, package in itertools.groupby(sorted(_modules()), lambda path: path.parts[:_PACKAGE_DEPTH]):
        part: list[Path] = []
        num_bytes = 0
        for path in package:
            part.append(path)
            num_bytes += path.stat().st_size
            if num_bytes >= _PART_BYTES:
                yield part
                part, num_bytes = [], 0
        if part:
            yield part


def _modules() -> Iterator[Path]:
    for folder, folders, names in os.walk("."):
        folders[:] = [name for name in folders if name not in _NOT_COMPILED]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _compile(path: Path) -> None:
    source = path.read_bytes()
    code = marshal.dumps(compile(source, str(path), "exec", dont_inherit=True))
    target = Path(importlib.util.cache_from_source(str(path)))
    target.parent.mkdir(exist_ok=True)
    draft = target.with_suffix(".draft")
    try:
        draft.write_bytes(importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source) + code)
        draft.replace(target)  # whole or not at all: a disk may be full, and this process may be killed
    except OSError:
        draft.unlink()


if __name__ == "__main__":
    main()
