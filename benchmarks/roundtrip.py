"""A tenant's round trip: what a work folder costs the client, and what its upload costs the requests of others.

API, content store and PostgreSQL are processes, as on a control plane. The command is measured whole, in a new
interpreter. CPU of an upload is that of the uploading process, from the walk of the folder to the confirmed bundle, and
is divided by what the walk and the hashing of an equal folder take.

Requests of another tenant alternate with and without uploads. Their CPU is that of the whole API process, less what the
uploader's own requests take there. In each pair the upload continues for a while without the other tenant's requests:
what the API takes then for each byte that the store writes is, over all pairs, the uploader's part. The API has work of
its own without any request: what it takes in an idle window of the same length is not the uploader's. The ratio with
the uploader's part is a peer of the figure.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from benchmarks.console_stage import bytes_written, clock_s
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.roundtrip_client import WORDS
from benchmarks.roundtrip_plane import API, STORE, Member, Plane, shared_plane
from benchmarks.sizes import Sizes

RESUBMIT_BAR_S: Final = 1.0
UPLOAD_BAR: Final = 1.3
OTHERS_BAR: Final = 1.10


@dataclass(frozen=True, slots=True)
class Size:
    """``files`` of a folder that is submitted again ``times``. ``megabytes`` of one that is uploaded.

    ``pairs`` of ``requests`` each, of another tenant. ``upload_s``: how long an upload is measured without them.
    """

    files: int
    times: int
    megabytes: int
    uploads: int
    pairs: int
    requests: int
    upload_s: float


SIZES: Final = Sizes(full=Size(2_000, 7, 256, 7, 20, 400, 1.5), smallest=Size(20, 1, 8, 1, 1, 20, 0.3))


def measure(size: Size) -> Groups:
    plane = shared_plane()
    member, other = plane.new_member(), plane.new_member()
    yield [_resubmit(plane, member, size)]
    yield [_upload(member, size)]
    yield [_others(plane, member, other, size)]


def _resubmit(plane: Plane, member: Member, size: Size) -> Figure:
    work = plane.folder / "work"
    for number in range(size.files):
        path = work / f"package{number % 20}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {number}\n" * 100)
    (work / "train.py").write_text("print('hello')")
    took_s = [_submit(plane, member, work) for _ in range(size.times + 2)]
    # The second reads again what had just been written when the first read it.
    value = statistics.median(took_s[2:])
    peers = {"first s": round(took_s[0], 2), "second s": round(took_s[1], 2), "files": float(size.files)}
    return Figure("an unchanged folder again, to QUEUED", value, "s", RESUBMIT_BAR_S, peers=peers, basis=Basis.CLOCK)


def _submit(plane: Plane, member: Member, work: Path) -> float:
    words = [sys.executable, "-m", "muster", "job", "submit", "train.py"]
    began = time.monotonic()
    done = subprocess.run(words, cwd=work, env=_environment(plane, member), capture_output=True, text=True, check=False)  # noqa: S603
    took_s = time.monotonic() - began
    if "QUEUED" not in done.stdout:
        raise RuntimeError(f"the job was not submitted: {done.stderr}")
    return took_s


def _environment(plane: Plane, member: Member) -> dict[str, str]:
    """Return the variables of a tenant's shell."""
    home, key_file = plane.folder / "home", plane.folder / "tenant.key"
    home.mkdir(exist_ok=True)
    key_file.write_text(member.token)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "MUSTER_API_URL": member.url,
        "MUSTER_API_KEY_FILE": str(key_file),
    }


def _upload(member: Member, size: Size) -> Figure:
    hashed, uploaded = [], []
    for _ in range(size.uploads):
        with _client(member, "once", str(size.megabytes)) as process:
            hash_s, upload_s = (float(word) for word in process.communicate()[0].split())
        hashed.append(hash_s)
        uploaded.append(upload_s)
    ratio = statistics.median(one / other for one, other in zip(uploaded, hashed, strict=True))
    peers = {
        "hashing, CPU ms": round(1000 * statistics.median(hashed)),
        "upload, CPU ms": round(1000 * statistics.median(uploaded)),
        "MB": float(size.megabytes),
    }
    return Figure("CPU of an upload ÷ hashing alone", ratio, "×", UPLOAD_BAR, peers=peers, basis=Basis.RATIO)


@dataclass(frozen=True, slots=True)
class _Spent:
    """CPU of the API, and bytes that the store wrote meanwhile."""

    cpu_s: float
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Pair:
    """Equal requests of another tenant, ``alone`` and ``during`` an upload, and ``upload`` without any of them.

    ``idle``: for as long as ``upload``, with neither.
    """

    idle: _Spent
    alone: _Spent
    during: _Spent
    upload: _Spent
    megabytes_per_s: float


def _others(plane: Plane, member: Member, other: Member, size: Size) -> Figure:
    headers = {"Authorization": f"Bearer {other.token}"}
    with httpx.Client(base_url=plane.url, headers=headers) as client:

        def requests() -> None:
            for _ in range(size.requests):
                client.get("/v1/jobs?limit=20").raise_for_status()

        requests()
        pairs = [_pair(plane, member, size, requests, is_first=number % 2 == 0) for number in range(size.pairs)]
    num_bytes = sum(pair.upload.num_bytes for pair in pairs)
    own = sum(pair.upload.cpu_s - pair.idle.cpu_s for pair in pairs) / num_bytes if num_bytes else 0.0
    ratios = [(pair.during.cpu_s - own * pair.during.num_bytes) / pair.alone.cpu_s for pair in pairs]
    peers = {
        "alone, CPU ms": round(1000 * statistics.median(pair.alone.cpu_s for pair in pairs)),
        "during an upload, CPU ms": round(1000 * statistics.median(pair.during.cpu_s for pair in pairs)),
        "of that the uploader's own": round(1000 * own * statistics.median(pair.during.num_bytes for pair in pairs)),
        "÷ with the uploader's own": statistics.median(pair.during.cpu_s / pair.alone.cpu_s for pair in pairs),
        "idle, CPU ms a s": round(1000 * sum(pair.idle.cpu_s for pair in pairs) / (size.pairs * size.upload_s), 2),
        "uploaded MB/s": round(statistics.median(pair.megabytes_per_s for pair in pairs)),
        "pairs": float(size.pairs),
    }
    name = "CPU of others' requests, during an upload ÷ alone"
    return Figure(name, statistics.median(ratios), "×", OTHERS_BAR, peers=peers, basis=Basis.RATIO)


def _pair(plane: Plane, member: Member, size: Size, requests: Callable[[], None], *, is_first: bool) -> _Pair:
    """``is_first``: the upload comes before the requests alone."""
    idle = _spent(plane, lambda: time.sleep(size.upload_s))
    alone = None if is_first else _spent(plane, requests)
    with _client(member, "until", str(size.megabytes)) as process:
        _wait_for_the_first_line(process)
        during = _spent(plane, requests)
        upload = _spent(plane, lambda: time.sleep(size.upload_s))
        process.terminate()
        rate = float(process.communicate()[0].split()[-1])
    return _Pair(idle, alone or _spent(plane, requests), during, upload, rate)


def _spent(plane: Plane, work: Callable[[], None]) -> _Spent:
    cpu_s, num_bytes = clock_s(plane.pid(API)), bytes_written(plane.pid(STORE))
    work()
    return _Spent(clock_s(plane.pid(API)) - cpu_s, bytes_written(plane.pid(STORE)) - num_bytes)


def _wait_for_the_first_line(process: "subprocess.Popen[str]") -> None:
    """Wait until the client uploads."""
    if process.stdout is None or not process.stdout.readline():
        raise RuntimeError("the uploading client ended before it began")


@contextmanager
def _client(member: Member, *words: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", WORDS, member.url, member.token, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
    try:
        yield process
    finally:
        process.kill()
        process.wait()
