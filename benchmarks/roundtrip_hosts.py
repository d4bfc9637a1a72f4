"""One bundle to many hosts at once, whose folders share nothing: what each reads of the store, and what it costs.

Each host runs the process that a supervisor starts, with addresses from the real API and content from the real store.
The plain copy in the same run gets the same bytes from the same store process into as many folders, over one
connection a host, and checks nothing. Both alternate. Reading is what the store's process has read by the kernel's
count.
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.console_stage import bytes_read, clock_s
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.roundtrip_client import fill
from benchmarks.roundtrip_copy import WORDS
from benchmarks.roundtrip_plane import STORE, Part, Plane, end_of, shared_plane, start_fetch
from benchmarks.sizes import Sizes
from muster.content.manifest import Kind, Manifest
from muster.content.read import Bundle
from muster.content.tree import verify_folder
from muster.store.keys import chunk_key

READS_BAR: Final = 1.01
"""The manifest and the heads of requests are read besides the chunks."""
COPY_BAR: Final = 1.5


@dataclass(frozen=True, slots=True)
class Size:
    """``pairs`` of a fetch and a plain copy, each to ``hosts`` of ``megabytes``."""

    megabytes: int
    hosts: int
    pairs: int


SIZES: Final = Sizes(full=Size(500, 8, 5), smallest=Size(8, 2, 1))


@dataclass(frozen=True, slots=True)
class Cost:
    """Of all hosts together. ``cpu_s``: of their processes and of the store's. ``read_bytes``: by the store."""

    wall_s: float
    cpu_s: float
    read_bytes: int


def measure(size: Size) -> Groups:
    plane = shared_plane()
    member = plane.new_member()
    own = plane.folder / "many"
    own.mkdir()
    fill(own / "data", size.megabytes * 1_000_000)
    (own / "main.py").write_text("print('hello')\n")
    bundle = member.upload(own)
    shutil.rmtree(own)
    parts = plane.parts(member, bundle.digest, size.hosts)
    fetched, copied, again = [], [], []
    for number in range(size.pairs):
        for is_fetch in (number % 2 == 0, number % 2 == 1):
            if is_fetch:
                first, second = _fetch(plane, parts, bundle, is_checked=number == 0)
                fetched.append(first)
                again.append(second)
            else:
                copied.append(_copy(plane, parts, bundle.manifest))
    yield _figures(size, bundle, fetched, copied, again)


def _figures(
    size: Size, bundle: Bundle, fetched: Sequence[Cost], copied: Sequence[Cost], again: Sequence[Cost]
) -> list[Figure]:
    pairs = list(zip(fetched, copied, strict=True))
    each = size.hosts * bundle.manifest.num_bytes
    reads = max(one.read_bytes for one in fetched) / each
    second = max(one.read_bytes for one in again) / each
    wall = statistics.median(one.wall_s / other.wall_s for one, other in pairs)
    cpu = statistics.median(one.cpu_s / other.cpu_s for one, other in pairs)
    walls = {
        "fetch s": statistics.median(one.wall_s for one in fetched),
        "plain copy s": statistics.median(one.wall_s for one in copied),
        "hosts": float(size.hosts),
        "MB": float(size.megabytes),
    }
    cpus = {
        "fetch, CPU s": statistics.median(one.cpu_s for one in fetched),
        "plain copy, CPU s": statistics.median(one.cpu_s for one in copied),
    }
    name = f"{size.megabytes} MB to {size.hosts} hosts"
    reading = {"read again for a second start": second}
    return [
        Figure(f"{name}: read of the store a host", reads, "times", READS_BAR, peers=reading, basis=Basis.COUNT),
        Figure(f"{name}, time ÷ a plain copy's", wall, "×", COPY_BAR, peers=walls, basis=Basis.RATIO),
        Figure(f"{name}, CPU ÷ a plain copy's", cpu, "×", COPY_BAR, peers=cpus, basis=Basis.RATIO),
    ]


def _fetch(plane: Plane, parts: Sequence[Part], bundle: Bundle, *, is_checked: bool) -> tuple[Cost, Cost]:
    """Return what the first start costs on hosts that have nothing, and the next one on them."""
    orders = [part.order(part.host.folder / "state", bundle.digest) for part in parts]

    def fetch() -> None:
        for process in [start_fetch(order) for order in orders]:
            end_of(process)

    first, second = _measured(plane, fetch), _measured(plane, fetch)
    if is_checked:
        for order in orders:
            verify_folder(bundle.manifest, Path(order.content_dir) / order.tenant_id / order.digest)
    for part in parts:
        shutil.rmtree(part.host.folder / "state")
    return first, second


def _copy(plane: Plane, parts: Sequence[Part], manifest: Manifest) -> Cost:
    now, key_of = datetime.now(UTC), parts[0].tenant_id
    lines = "".join(
        f"{plane.store.download(chunk_key(key_of, digest), now).url}\t{entry.path}\n"
        for entry in manifest.entries
        if entry.kind <= Kind.PROGRAM
        for digest in entry.parts
    )

    def copy() -> None:
        command = [sys.executable, "-m", WORDS]
        running = []
        for part in parts:
            folder = part.host.folder / "plain"
            folder.mkdir()
            process = subprocess.Popen([*command, str(folder)], stdin=subprocess.PIPE, text=True)  # noqa: S603
            if process.stdin is not None:
                process.stdin.write(lines)
                process.stdin.close()
            running.append(process)
        codes = [process.wait(300) for process in running]
        if any(codes):
            raise RuntimeError("a plain copy failed")

    cost = _measured(plane, copy)
    for part in parts:
        shutil.rmtree(part.host.folder / "plain")
    return cost


def _measured(plane: Plane, work: Callable[[], None]) -> Cost:
    pid = plane.pid(STORE)
    os.sync()  # what an earlier run has written is not counted here
    read, cpu_s, began = bytes_read(pid), clock_s(pid) + _cpu_of_children_s(), time.monotonic()
    work()
    wall_s = time.monotonic() - began
    return Cost(wall_s, clock_s(pid) + _cpu_of_children_s() - cpu_s, bytes_read(pid) - read)


def _cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
