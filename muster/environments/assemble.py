"""A built environment with a host's interpreter: a virtual environment of this host, which no job may write.

The content is the tenant's, and this may run as root. So nothing of it is run here, and no file of it is replaced.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

from muster.environments.faults import EnvironmentFaultError
from muster.environments.lock_file import Lock, is_from_host

_PATIENCE_S: Final = 30.0
HOST_PACKAGES: Final = "zz_host_packages.pth"
"""Named to be read last: the environment's own packages come first."""
_QUESTION: Final = """
import json, os, sys, sysconfig
if sys.argv[1:]:
    import importlib.metadata
    versions = {one.name.lower().replace("_", "-"): one.version for one in importlib.metadata.distributions()}
else:
    versions = {}
print(json.dumps({
    "home": os.path.dirname(os.path.realpath(sys._base_executable)),
    "executable": os.path.realpath(sys._base_executable),
    "version": list(sys.version_info[:3]),
    "implementation": sys.implementation.name,
    "packages": sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}),
    "versions": versions,
}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python of this host. ``packages``: folders of its own packages. ``versions``: theirs by name, if asked."""

    executable: str
    home: str
    version: tuple[int, int, int]
    implementation: str
    packages: tuple[str, ...]
    versions: dict[str, str]

    @property
    def name(self) -> str:
        """Return its part of an environment's key, such as ``cpython-3.11``."""
        return f"{self.implementation}-{self.version[0]}.{self.version[1]}"


def ask_interpreter(python: str, *, with_versions: bool) -> Interpreter:
    """Return what an interpreter is. ``with_versions``: read what packages it has, which takes it a while.

    Raises EnvironmentFaultError: it cannot be run.
    """
    try:
        done = subprocess.run(  # noqa: S603  # the operator's interpreter, isolated from the caller's variables
            [python, "-I", "-c", _QUESTION, *(["versions"] if with_versions else [])],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=True,
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise EnvironmentFaultError(f"the interpreter {python} of this host cannot be run: {error}") from error
    return Interpreter(
        executable=found["executable"],
        home=found["home"],
        version=tuple(found["version"]),
        implementation=found["implementation"],
        packages=tuple(found["packages"]),
        versions=found["versions"],
    )


def check_host_packages(lock: Lock, patterns: Sequence[str], interpreter: Interpreter) -> None:
    """Check that the host has the packages that a job takes from it, in the locked versions.

    A package that only a pattern with ``*`` names may be missing: a torch without CUDA needs no ``nvidia-*``.

    Raises:
        EnvironmentFaultError: one is missing, or has another version.
    """
    exact = {pattern for pattern in patterns if "*" not in pattern and "?" not in pattern}
    for package in lock.packages:
        if not is_from_host(package.name, patterns):
            continue
        found = interpreter.versions.get(package.name)
        if found is None and package.name not in exact:
            continue
        if found is None or not _is_same(found, package.version):
            has = "no such package" if found is None else f"version {found}"
            raise EnvironmentFaultError(
                f"the lock names {package.name} {package.version}, taken from the host, which has {has};"
                f" lock that version, or take {package.name} out of `from_host`",
                line=package.line,
            )


def _is_same(found: str, locked: str) -> bool:
    """Return whether two versions are one release: ``2.13.0+cpu`` is a build of ``2.13.0``."""
    try:
        return Version(found).public == Version(locked).public
    except InvalidVersion:
        return found == locked


def assemble(
    unpack: Callable[[Path], None], target: Path, interpreter: Interpreter, *, has_host_packages: bool
) -> None:
    """Make ``target`` a virtual environment from the files of a built environment; it appears whole.

    ``unpack``: writes them into a folder: plain files that nothing else shares, and no links.
    ``has_host_packages``: what the environment lacks is found among the packages of the host's interpreter.

    Raises:
        EnvironmentFaultError: it was built for another version of Python, or has a file of an interpreter.
        FileExistsError: ``target`` exists.
        OSError: it cannot be written.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists")
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    _remove(draft)
    try:
        draft.mkdir(mode=0o755, parents=True)
        unpack(draft)
        library = _library_in(draft, interpreter)
        _add_interpreter(draft, interpreter)
        if has_host_packages:
            lines = "".join(f"import site; site.addsitedir({folder!r})\n" for folder in interpreter.packages)
            _write_new(library / "site-packages" / HOST_PACKAGES, lines)
        _close(draft)
        draft.rename(target)
    except BaseException:
        _remove(draft)
        raise


def _library_in(venv: Path, interpreter: Interpreter) -> Path:
    """Return the folder of the packages for the interpreter. Raises EnvironmentFaultError: they are for another one."""
    library = venv / "lib" / f"python{interpreter.version[0]}.{interpreter.version[1]}"
    if not library.is_dir():
        built_for = ", ".join(sorted(path.name for path in venv.glob("lib/python*"))) or "no Python"
        raise EnvironmentFaultError(f"the environment was built for {built_for}, and this host has {interpreter.name}")
    return library


def interpreter_names(version: tuple[int, int, int]) -> tuple[str, str, str]:
    """Return the names of an interpreter in ``bin``."""
    return "python", f"python{version[0]}", f"python{version[0]}.{version[1]}"


def _add_interpreter(venv: Path, interpreter: Interpreter) -> None:
    from importlib.metadata import version  # noqa: PLC0415  # slow, and a start from what is here needs none

    scripts = venv / "bin"
    scripts.mkdir(mode=0o755, exist_ok=True)
    first, *others = interpreter_names(interpreter.version)
    try:
        (scripts / first).symlink_to(interpreter.executable)
        for name in others:
            (scripts / name).symlink_to(first)
    except FileExistsError as error:
        raise EnvironmentFaultError(f"a package installs {Path(str(error.filename2)).name}, an interpreter") from error
    lines = (
        f"home = {interpreter.home}",
        "include-system-site-packages = false",
        f"version = {'.'.join(map(str, interpreter.version))}",
        f"made-by = muster {version('muster')}",
    )
    _write_new(venv / "pyvenv.cfg", "".join(f"{line}\n" for line in lines))


def _write_new(path: Path, text: str) -> None:
    """Write a file that is not there: none of the environment is replaced."""
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError as error:
        raise EnvironmentFaultError(f"the environment has a file {path.name}, which the host writes") from error


def _close(venv: Path) -> None:
    for root, _, _ in os.walk(venv):
        Path(root).chmod(0o555)
    venv.chmod(0o755)  # the rename of a folder writes its `..`


def _remove(venv: Path) -> None:
    if not venv.exists():
        return
    for root, _, _ in os.walk(venv):
        Path(root).chmod(0o700)
    shutil.rmtree(venv)
