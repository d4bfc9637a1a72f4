"""Lock files: ``uv.lock``, or ``requirements.txt`` with a hash for each package.

A lock pins each package to a version and each file to a SHA-256. So an index, or the way to it, can withhold a file and
cannot change one. Packages from elsewhere (a URL, a repository, a folder) are refused: the builder reaches the
operator's index alone.
"""

import fnmatch
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from muster.environments.faults import LockFaultError

MAX_LOCK_BYTES: Final = 16 << 20
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_COMMENT: Final = re.compile(r"(^|\s)#.*$")
_REGISTRY: Final = "registry"
_PROJECT_SOURCES: Final = frozenset({"virtual", "editable"})
"""Sources by which a uv.lock names the project itself, which is the work folder."""
_GLIBC_MINORS: Final = range(39, 4, -1)
"""Minor versions of glibc 2, newest first: wheels for an older one run on a newer one. Debian 13 has 2.41."""


class LockKind(StrEnum):
    UV = "uv.lock"
    REQUIREMENTS = "requirements.txt"


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """One package of a lock. ``name`` is normalised.

    ``line``: where it stands, from 1 on; None in a uv.lock. ``num_bytes``: of the wheel for the hosts' platform; None
    if the lock does not say, or has no such wheel.
    """

    name: str
    version: str
    line: int | None = None
    num_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Lock:
    kind: LockKind
    packages: tuple[LockedPackage, ...]

    @property
    def num_bytes(self) -> int | None:
        """Return the bytes of all packages, at most, since some may be for other platforms; None if one is unknown."""
        sizes = [package.num_bytes for package in self.packages]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

    def largest(self, most: int) -> list[LockedPackage]:
        """Return the packages with the largest files, the largest first."""
        return sorted(self.packages, key=lambda package: -(package.num_bytes or 0))[:most]

    def line_of(self, name: str) -> int | None:
        return next((one.line for one in self.packages if one.name == canonicalize_name(name)), None)


def read_lock(path: Path, *, python: tuple[int, int] = (3, 11), machine: str = "x86_64") -> Lock:
    """Return the lock in ``path``, whose name decides its kind.

    Raises:
        LockFaultError: it is missing or too large, pins a package to no version or hash, or names one from elsewhere.
    """
    _kind_of(path.name)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_LOCK_BYTES + 1)
    except OSError as error:
        raise LockFaultError(f"the lock file {path.name} cannot be read: {error.strerror}") from error
    return parse_lock(path.name, content, python=python, machine=machine)


def parse_lock(name: str, content: bytes, *, python: tuple[int, int] = (3, 11), machine: str = "x86_64") -> Lock:
    """Return the lock that a file of this name has; one byte more than ``MAX_LOCK_BYTES`` is enough to refuse it.

    Raises LockFaultError, as ``read_lock`` does.
    """
    kind = _kind_of(name)
    if len(content) > MAX_LOCK_BYTES:
        raise LockFaultError(f"the lock file {name} has more than the {MAX_LOCK_BYTES:,} bytes that are accepted")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise LockFaultError(f"the lock file {name} is not UTF-8") from error
    is_uv = kind is LockKind.UV
    packages = tuple(_uv_packages(text, _tags(python, machine)) if is_uv else _required_packages(text, name))
    if not packages:
        raise LockFaultError(f"the lock file {name} names no package; leave the environment out, or lock one")
    return Lock(kind, packages)


def _kind_of(name: str) -> LockKind:
    if name == LockKind.UV:
        return LockKind.UV
    if name.endswith(".txt"):
        return LockKind.REQUIREMENTS
    raise LockFaultError(f"{name} is no lock file: `uv.lock`, or a `.txt` of requirements with hashes")


def is_from_host(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a package is the host's own: its name matches one of ``patterns``, such as ``nvidia-*``."""
    return any(fnmatch.fnmatchcase(canonicalize_name(name), pattern.lower()) for pattern in patterns)


def requirement_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the logical lines of a requirements file with the number of their first line, without comments."""
    begun_at, parts = 0, list[str]()
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _COMMENT.sub("", raw).strip()
        begun_at = begun_at if parts else number
        parts.append(line.removesuffix("\\").strip())
        if not line.endswith("\\"):
            if joined := " ".join(filter(None, parts)):
                yield begun_at, joined
            parts = []
    if joined := " ".join(filter(None, parts)):
        yield begun_at, joined


def _required_packages(text: str, name: str) -> Iterator[LockedPackage]:
    for number, line in requirement_lines(text):
        try:
            package = _required(line, number)
        except LockFaultError as fault:
            raise LockFaultError(f"{name} line {number}: {fault}", line=number) from fault
        yield package


def _required(line: str, number: int) -> LockedPackage:
    if line.startswith("-"):
        option = line.split(maxsplit=1)[0].partition("=")[0]
        raise LockFaultError(
            f"the option {option} is not accepted: packages come from the operator's index alone; remove the line"
        )
    words = line.split(" --", 1)[0].strip()
    try:
        requirement = Requirement(words)
    except InvalidRequirement as error:
        raise LockFaultError(f"{words!r} is no requirement of the form `name==version`") from error
    if requirement.url is not None:
        raise LockFaultError(f"{requirement.name} comes from a URL, and packages come from the operator's index alone")
    pins = [one for one in requirement.specifier if one.operator in {"==", "==="} and not one.version.endswith(".*")]
    if len(pins) != 1 or len(list(requirement.specifier)) != 1:
        raise LockFaultError(f"{requirement.name} names no exact version; write `{requirement.name}==VERSION`")
    if not _HASH.search(line):
        raise LockFaultError(
            f"{requirement.name} has no `--hash=sha256:…`; make the file by `uv export` or `pip-compile"
            " --generate-hashes`"
        )
    return LockedPackage(canonicalize_name(requirement.name), pins[0].version, line=number)


def _uv_packages(text: str, tags: dict[Tag, int]) -> Iterator[LockedPackage]:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LockFaultError(f"uv.lock is not TOML: {error}") from error
    if found.get("version") != 1:
        raise LockFaultError(f"uv.lock has version {found.get('version')!r}, and 1 is accepted; renew it by `uv lock`")
    packages = found.get("package", [])
    if not isinstance(packages, list) or not all(isinstance(one, dict) for one in packages):
        raise LockFaultError("uv.lock has no list `package`; renew it by `uv lock`")
    for one in packages:
        package = _uv_package(one, tags)
        if package is not None:
            yield package


def _uv_package(one: dict[str, Any], tags: dict[Tag, int]) -> LockedPackage | None:
    """Return the package; None for the project itself."""
    name, source = one.get("name"), one.get("source")
    if not isinstance(name, str) or not isinstance(source, dict):
        raise LockFaultError("uv.lock has a package without `name` or `source`; renew it by `uv lock`")
    if _PROJECT_SOURCES & source.keys():
        return None
    if _REGISTRY not in source:
        kind = next(iter(source), "nothing")
        raise LockFaultError(f"{name} in uv.lock comes from {kind}, and packages come from the operator's index alone")
    wheels = [wheel for wheel in one.get("wheels", []) if isinstance(wheel, dict)]
    return LockedPackage(canonicalize_name(name), str(one.get("version", "")), num_bytes=_best_size(wheels, tags))


def _best_size(wheels: list[dict[str, Any]], tags: dict[Tag, int]) -> int | None:
    """Return the size of the wheel that the hosts would take: that with the first of their tags."""
    best: tuple[int, int | None] | None = None
    for wheel in wheels:
        try:
            *_, own = parse_wheel_filename(str(wheel.get("url", wheel.get("filename", ""))).rsplit("/", 1)[-1])
        except InvalidWheelFilename:
            continue
        rank = min((tags[tag] for tag in own if tag in tags), default=None)
        size = wheel.get("size")
        if rank is not None and (best is None or rank < best[0]):
            best = rank, size if isinstance(size, int) else None
    return None if best is None else best[1]


def _tags(python: tuple[int, int], machine: str) -> dict[Tag, int]:
    """Return the tags of wheels that a Linux host takes, with their rank: the first is the best."""
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC_MINORS]
    platforms += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}", f"linux_{machine}"]
    interpreter = f"cp{python[0]}{python[1]}"
    tags = (*cpython_tags(python, platforms=platforms), *compatible_tags(python, interpreter, platforms))
    return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}
