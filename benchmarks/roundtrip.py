"""A tenant's round trip: what a work folder costs the client, and what its upload costs the requests of others.

API, content store and PostgreSQL are processes, as on a control plane. The command is measured whole, in a new
interpreter. CPU of an upload is that of the uploading process, from the walk of the folder to the confirmed bundle, and
is divided by what the walk and the hashing of an equal folder take. Requests of another tenant alternate with and
without uploads: the figure is the CPU of the whole API process, with the uploader's own requests in it.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from benchmarks.console_stage import wait_for
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.roundtrip_client import WORDS
from benchmarks.sizes import Sizes
from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants import keys, tenants
from local.children import Child, child_environment
from local.postgres import PostgresServer
from muster.db import migrate
from muster.domain.principals import Principal, Role
from muster.ports import free_port
from muster.settings import make_secret_key_file
from muster.store.key_file import make_key_file

RESUBMIT_BAR_S: Final = 1.0
UPLOAD_BAR: Final = 1.3
OTHERS_BAR: Final = 1.10
BUCKET: Final = "muster"
_OPERATOR: Final = Principal(name="operator:bench", role=Role.OPERATOR)


@dataclass(frozen=True, slots=True)
class Size:
    """``files`` of a folder that is submitted again ``times``. ``megabytes`` of one that is uploaded.

    ``pairs`` of ``requests`` each, of another tenant.
    """

    files: int
    times: int
    megabytes: int
    uploads: int
    pairs: int
    requests: int


SIZES: Final = Sizes(full=Size(2_000, 7, 256, 7, 20, 400), smallest=Size(20, 1, 8, 1, 1, 20))


@dataclass(frozen=True, slots=True)
class Plane:
    """A control plane with a content store, and the keys of two tenants."""

    folder: Path
    url: str
    api_pid: int
    token: str
    other_token: str

    def environment(self) -> dict[str, str]:
        key_file = self.folder / "tenant.key"
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "home"),
            "MUSTER_API_URL": self.url,
            "MUSTER_API_KEY_FILE": str(key_file),
        }


def measure(size: Size) -> Groups:
    with tempfile.TemporaryDirectory(prefix="muster-roundtrip-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o711)
        plane = stack.enter_context(_plane(folder))
        yield [_resubmit(plane, size)]
        yield [_upload(plane, size)]
        yield [_others(plane, size)]


def _resubmit(plane: Plane, size: Size) -> Figure:
    work = plane.folder / "work"
    for number in range(size.files):
        path = work / f"package{number % 20}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {number}\n" * 100)
    (work / "train.py").write_text("print('hello')")
    took_s = [_submit(plane, work) for _ in range(size.times + 2)]
    # The second reads again what had just been written when the first read it.
    value = statistics.median(took_s[2:])
    peers = {"first s": round(took_s[0], 2), "second s": round(took_s[1], 2), "files": float(size.files)}
    return Figure("an unchanged folder again, to QUEUED", value, "s", RESUBMIT_BAR_S, peers=peers, basis=Basis.CLOCK)


def _submit(plane: Plane, work: Path) -> float:
    words = [sys.executable, "-m", "muster", "job", "submit", "train.py"]
    began = time.monotonic()
    done = subprocess.run(words, cwd=work, env=plane.environment(), capture_output=True, text=True, check=False)  # noqa: S603
    took_s = time.monotonic() - began
    if "QUEUED" not in done.stdout:
        raise RuntimeError(f"the job was not submitted: {done.stderr}")
    return took_s


def _upload(plane: Plane, size: Size) -> Figure:
    hashed, uploaded = [], []
    for _ in range(size.uploads):
        with _client(plane, "once", str(size.megabytes)) as process:
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


def _others(plane: Plane, size: Size) -> Figure:
    headers = {"Authorization": f"Bearer {plane.other_token}"}
    with httpx.Client(base_url=plane.url, headers=headers) as client:
        _requests(plane, client, size.requests)
        ratios, alone, during, latest = [], [], [], []
        for number in range(size.pairs):
            costs = {}
            for is_during in (number % 2 == 0, number % 2 == 1):
                if not is_during:
                    costs[False] = _requests(plane, client, size.requests)
                    continue
                with _client(plane, "until", str(size.megabytes)) as process:
                    _wait_for_the_first_line(process)
                    costs[True] = _requests(plane, client, size.requests)
                    process.terminate()
                    latest.append(float(process.communicate()[0].split()[-1]))
            ratios.append(costs[True] / costs[False])
            alone.append(costs[False])
            during.append(costs[True])
    peers = {
        "alone, CPU ms": round(1000 * statistics.median(alone)),
        "during an upload, CPU ms": round(1000 * statistics.median(during)),
        "uploaded MB/s": round(statistics.median(latest)),
        "pairs": float(size.pairs),
    }
    name = "CPU of others' requests, during an upload ÷ alone"
    return Figure(name, statistics.median(ratios), "×", OTHERS_BAR, peers=peers, basis=Basis.RATIO)


def _wait_for_the_first_line(process: "subprocess.Popen[str]") -> None:
    """Wait until the client uploads."""
    if process.stdout is None or not process.stdout.readline():
        raise RuntimeError("the uploading client ended before it began")


def _requests(plane: Plane, client: httpx.Client, count: int) -> float:
    began = _cpu_s(plane.api_pid)
    for _ in range(count):
        client.get("/v1/jobs?limit=20").raise_for_status()
    return _cpu_s(plane.api_pid) - began


def _cpu_s(pid: int) -> float:
    """Return the seconds that all threads of the process ran, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def _client(plane: Plane, *words: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", WORDS, plane.url, plane.token, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def _plane(folder: Path) -> Iterator[Plane]:
    with ExitStack() as stack:
        postgres = PostgresServer(folder / "postgres")
        postgres.start()
        stack.callback(postgres.stop)
        migrate.upgrade(postgres.url())
        tokens = _tokens(postgres.url())
        make_secret_key_file(folder / "secret.key")
        make_key_file(folder / "store.keys")
        store_port, api_port = free_port(), free_port()
        key_file = folder / "store.keys"
        own = child_environment(
            store_key_file=key_file, store_dir=folder / "store", store_port=store_port, store_reserve_bytes=0
        )
        variables = child_environment(
            database_url=postgres.url(),
            secret_key_file=folder / "secret.key",
            api_port=api_port,
            store_url=f"http://127.0.0.1:{store_port}",
            store_bucket=BUCKET,
            store_key_file=key_file,
        )
        children = [
            Child("store", ["store", "serve"], own, folder / "store.log"),
            Child("api", ["api"], variables, folder / "api.log"),
        ]
        for child in children:
            child.start()
            stack.callback(child.stop)
        url = f"http://127.0.0.1:{api_port}"
        wait_for(f"{url}/readyz")
        wait_for(f"http://127.0.0.1:{store_port}/healthz")
        (folder / "home").mkdir()
        (folder / "tenant.key").write_text(tokens[0])
        yield Plane(folder, url, children[1].pid or 0, *tokens)


def _tokens(database_url: str) -> tuple[str, str]:
    units = UnitOfWorkFactory.connected(database_url, application_name="muster-bench", pool_size=1, max_overflow=1)
    made = []
    for name in ("uploader", "other"):
        with units.begin(_OPERATOR, tenants.CREATE) as unit:
            tenant_id = tenants.create(unit, name=name).id
        with units.begin(_OPERATOR, keys.CREATE) as unit:
            made.append(keys.create(unit, name=name, role=Role.TENANT_MEMBER, tenant_id=tenant_id).token.text)
    units.close()
    return made[0], made[1]
