"""An environment by its lock on hosts that have none of it: compared with `uv pip install` of the same lock.

Real wheels lie in a wheelhouse, downloaded once from the package index into `.artefacts/wheelhouse`. A cold start is
the whole of what a host's process does for a tenant with nothing in the store: bundle, claim, build in the sandbox with
bytecode, archives, upload, this host's copy, and the virtual environment from it. uv makes a virtual environment from
the same wheels with a cache that is empty as the build's, and compiles bytecode, since a job cannot write it: of all
modules, where a build leaves out the tests that packages bring. Both alternate, with the low priority that a host's
process has.
"""

import hashlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.console_stage import clock_s
from benchmarks.figures import Basis, Figure, Groups, NothingToMeasureError
from benchmarks.roundtrip_part_deaths import LOCK, environment_order
from benchmarks.roundtrip_plane import API, STORE, Part, Plane, end_of, shared_plane, start_fetch
from benchmarks.sizes import Sizes
from muster.environments.installer import uv_path
from muster.environments.recipe import PackageIndex
from workers.host.content.fetch_process import NICE

COLD_BAR: Final = 1.2
WARM_BAR_S: Final = 2.0
HOUSE: Final = Path(__file__).parents[1] / ".artefacts" / "wheelhouse"
_DOWNLOAD_S: Final = 300


@dataclass(frozen=True, slots=True)
class Size:
    """``packages`` with all that they need. ``times``: cold starts, and installations by uv."""

    packages: tuple[str, ...]
    times: int


SIZES: Final = Sizes(full=Size(("numpy", "httpx", "pydantic"), 5), smallest=Size(("idna",), 1))


@dataclass(frozen=True, slots=True)
class Took:
    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Starts:
    """Of one tenant: the first on a host that has nothing, the next one there, and the first on a host after it."""

    cold: Took
    warm: Took
    other: Took


def measure(size: Size) -> Groups:
    house = wheelhouse(size.packages)
    plane = shared_plane()
    lock = _locked(house)
    starts, installs, plain = [], [], []
    for number in range(size.times):
        for is_ours in (number % 2 == 0, number % 2 == 1):
            if is_ours:
                starts.append(_starts(plane, house, lock, number))
            else:
                installs.append(_install(plane, house, lock, "--compile-bytecode"))
                plain.append(_install(plane, house, lock))
    yield _figures(starts, installs, plain)


def _figures(starts: Sequence[Starts], installs: Sequence[Took], plain: Sequence[Took]) -> list[Figure]:
    cold, warm = [one.cold for one in starts], [one.warm for one in starts]
    ratio = statistics.median(one.wall_s / other.wall_s for one, other in zip(cold, installs, strict=True))
    cpu = statistics.median(one.cpu_s / other.cpu_s for one, other in zip(cold, installs, strict=True))
    peers = {
        "cold s": _median(cold),
        "uv with bytecode s": _median(installs),
        "uv without s": _median(plain),
        "first on another host s": _median([one.other for one in starts]),
    }
    cpus = {
        "cold, CPU s": statistics.median(one.cpu_s for one in cold),
        "uv with bytecode, CPU s": statistics.median(one.cpu_s for one in installs),
    }
    named = "cold environment"
    return [
        Figure(f"{named} ÷ uv pip install, time", ratio, "×", COLD_BAR, peers=peers, basis=Basis.RATIO),
        Figure(f"{named} ÷ uv pip install, CPU", cpu, "×", None, peers=cpus, basis=Basis.RATIO),
        Figure("warm environment", _median(warm), "s", WARM_BAR_S, basis=Basis.CLOCK),
    ]


def _median(tries: Sequence[Took]) -> float:
    return statistics.median(one.wall_s for one in tries)


def wheelhouse(packages: Sequence[str]) -> Path:
    """Return a folder with the wheels of these packages and of all that they need.

    Raises NothingToMeasureError: they cannot be downloaded.
    """
    house = HOUSE / "-".join(packages)
    if any(house.glob("*.whl")):
        return house
    draft = HOUSE / f".{house.name}.{os.getpid()}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", f"--dest={draft}", *packages]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_DOWNLOAD_S)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as fault:
        raise NothingToMeasureError(f"no package index gives {', '.join(packages)}: {fault}") from fault
    draft.rename(house)
    return house


def _locked(house: Path) -> str:
    """Return each wheel with its hash, as a lock names it."""
    lines = []
    for wheel in sorted(house.glob("*.whl")):
        name, version, *_ = wheel.name.split("-")
        lines.append(f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    return "".join(lines)


def _starts(plane: Plane, house: Path, lock: str, number: int) -> Starts:
    member = plane.new_member()
    own = plane.folder / f"locked-{number}"
    own.mkdir()
    (own / "main.py").write_text("print('hello')\n")
    (own / LOCK).write_text(lock)
    digest = member.upload(own).digest
    part = plane.preflight(member, digest, LOCK)
    first, second = part.state_dir, part.host.folder / f"other-{number}"
    found = Starts(*(_start(plane, part, where, digest, house) for where in (first, first, second)))
    for folder in (first, second):
        _remove(folder)
    return found


def _start(plane: Plane, part: Part, state_dir: Path, digest: str, house: Path) -> Took:
    order = part.order(state_dir, digest, environment_order(PackageIndex(wheelhouse=str(house))))

    def start() -> None:
        venv = Path(end_of(start_fetch(order))["venv"])
        if not (venv / "bin" / "python").exists():
            raise RuntimeError("the environment has no interpreter")

    return _measured(start, (plane.pid(API), plane.pid(STORE)))


def _install(plane: Plane, house: Path, lock: str, *words: str) -> Took:
    folder = plane.folder / "uv"
    folder.mkdir()
    (folder / LOCK).write_text(lock)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "UV_CACHE_DIR": str(folder / "cache")}
    venv = folder / "venv"
    fixed = ["--no-config", "--quiet", "--require-hashes", "--no-index", f"--find-links={house}"]

    def install() -> None:
        make = [str(uv_path()), "venv", "--no-config", "--quiet", f"--python={sys.executable}", str(venv)]
        fill = [str(uv_path()), "pip", "install", *fixed, f"--python={venv / 'bin' / 'python'}", *words]
        for command in (make, [*fill, f"--requirements={folder / LOCK}"]):
            low = ["nice", "-n", str(NICE), *command]
            subprocess.run(low, env=environment, check=True)  # noqa: S603  # uv's binary

    took = _measured(install, ())
    shutil.rmtree(folder)
    return took


def _measured(work: Callable[[], None], servers: Sequence[int]) -> Took:
    """Return the time, and the CPU of ended children and of ``servers``."""
    os.sync()  # what an earlier run has written is not counted here
    cpu_s, began = _cpu_s(servers), time.monotonic()
    work()
    return Took(time.monotonic() - began, _cpu_s(servers) - cpu_s)


def _cpu_s(servers: Sequence[int]) -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime + sum(map(clock_s, servers))


def _remove(folder: Path) -> None:
    for root, _, _ in os.walk(folder):
        Path(root).chmod(0o700)
    shutil.rmtree(folder)
