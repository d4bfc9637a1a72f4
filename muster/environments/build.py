"""Build of an environment: its installed packages as a folder that is the same on each host.

The folder holds what a virtual environment has of its packages, and nothing of the host: no interpreter, no path.
``assemble`` puts a host's interpreter to it. Bytecode is compiled here, once for all hosts: a job cannot write it, and
would compile each module at each start.
"""

import contextlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from muster.environments.assemble import HOST_PACKAGES
from muster.environments.faults import BuildFaultError, LockFaultError
from muster.environments.installer import Installer
from muster.environments.lock_file import Lock, LockKind, is_from_host, read_lock, requirement_lines
from muster.environments.recipe import PackageIndex, Recipe

PROJECT_FILE: Final = "pyproject.toml"
_HOST_FILES: Final = frozenset({"pyvenv.cfg", ".gitignore", ".lock", "CACHEDIR.TAG", "lib64"})
_SHELL_FILES: Final = frozenset({"deactivate.bat", "pydoc.bat"})
_COMPILING: Final = Path(__file__).with_name("compiling.py")
_INTERPRETER: Final = re.compile(r"python(3(\.[0-9]+)?)?")


@dataclass(frozen=True, slots=True)
class Built:
    """A built environment. ``num_from_host``: packages of the lock that the host's interpreter has."""

    lock: Lock
    num_installed: int
    num_from_host: int


def build(
    recipe: Recipe,
    work: Path,
    target: Path,
    *,
    python: str,
    index: PackageIndex,
    cache: Path,
    log: Path,
    within_s: float = 900.0,
) -> Built:
    """Build ``recipe`` with the lock file in the folder ``work`` into ``target``, which appears whole or not at all.

    ``python``: the interpreter for which it is built. ``cache``: uv's, never shared between tenants, since a source
    distribution may have been built there. ``log``: gets uv's words; a file with lines from before is continued.

    Raises:
        LockFaultError: the lock is the tenant's to fix.
        BuildFaultError: a package cannot be installed; ``line`` is the lock's.
        IndexFaultError: the index does not answer, or the installer was ended; a later try may succeed.
        EnvironmentFaultError: this host is to blame: its disk is full, or it has no source of packages.
        FileExistsError: ``target`` exists.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists")
    lock_path = _lock_path(work, recipe)
    lock = read_lock(lock_path)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    scratch, venv = draft / "scratch", draft / "venv"
    scratch.mkdir(parents=True, mode=0o700)
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("a+b") as output:
            installer = Installer(scratch, cache, index, within_s=within_s, log=output)
            requirements = scratch / "requirements.txt"
            kept, dropped = _requirements(recipe, lock, lock_path, installer)
            requirements.write_text("\n".join(kept))
            installer.make_venv(venv, python)
            if kept:
                installer.install(venv, requirements, recipe, lock)
        _strip(venv)
        _check_content(venv)
        _compile(venv, python, within_s)
        venv.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Built(lock, len(kept), dropped)


def _lock_path(work: Path, recipe: Recipe) -> Path:
    """Return the lock file's path. Raises LockFaultError: it leads out of the work folder, or is not there."""
    root = work.resolve()
    path = (root / recipe.lock).resolve()
    if not path.is_relative_to(root):
        raise LockFaultError(f"the lock file {recipe.lock} leads out of the work folder")
    if not path.is_file():
        raise LockFaultError(f"the work folder has no file {recipe.lock}; is it named in `.gitignore`?")
    if path.name == LockKind.UV and not (path.parent / PROJECT_FILE).is_file():
        raise LockFaultError(f"{recipe.lock} has no {PROJECT_FILE} in its folder, which defines what the lock is for")
    return path


def _requirements(recipe: Recipe, lock: Lock, path: Path, installer: Installer) -> tuple[list[str], int]:
    """Return the lines to install, and how many packages are the host's own."""
    if lock.kind is LockKind.UV:
        text = installer.export(path.parent, recipe)
    else:
        if recipe.extras or recipe.groups:
            raise LockFaultError(f"extras and groups are of a uv.lock, and {recipe.lock} is none; leave them out")
        text = path.read_text()
    lines = [line for _, line in requirement_lines(text)]
    kept = [line for line in lines if not is_from_host(_name_of(line), recipe.from_host)]
    return kept, len(lines) - len(kept)


def _name_of(line: str) -> str:
    return canonicalize_name(line.split("=", 1)[0].split("[", 1)[0].strip())


def _check_content(venv: Path) -> None:
    """Raise BuildFaultError if packages have installed what no host could assemble."""
    if link := _link_in(venv):
        raise BuildFaultError(f"a package installs a link, {link}, and wheels have none")
    taken = [path.name for path in (venv / "bin").iterdir() if _INTERPRETER.fullmatch(path.name)]
    if taken:
        raise BuildFaultError(f"a package installs a program of the interpreter's name, bin/{taken[0]}")
    if found := next(venv.glob(f"lib/*/site-packages/{HOST_PACKAGES}"), None):
        raise BuildFaultError(f"a package installs {found.name}, a name that hosts use")


def _strip(venv: Path) -> None:
    """Remove what belongs to this host: links to its interpreter, its paths, and scripts for shells."""
    for name in _HOST_FILES:
        (venv / name).unlink(missing_ok=True)
    for path in list((venv / "bin").iterdir()):
        if path.is_symlink() or path.name.startswith("activate") or path.name in _SHELL_FILES:
            path.unlink()


def _link_in(folder: Path) -> str | None:
    """Return the path of a symbolic link in a folder, if there is one."""
    pending = [str(folder)]
    while pending:
        with os.scandir(pending.pop()) as listing:
            for child in listing:
                if child.is_symlink():
                    return Path(child.path).relative_to(folder).as_posix()
                if child.is_dir():
                    pending.append(child.path)
    return None


def _compile(venv: Path, python: str, within_s: float) -> None:
    """Compile all modules for the interpreter. Without ``site`` (``-S``), which runs lines of ``.pth`` files.

    An environment without some of its bytecode is right, and slower.
    """
    command = [python, "-I", "-S", str(_COMPILING), str(venv / "lib")]
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=within_s)  # noqa: S603  # our own words
