"""The fleet page in headless Chromium: size of a first visit, time until huge fleets are drawn, cost of watching."""

import asyncio
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psutil
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, sync_playwright
from sqlalchemy import text

from benchmarks.console_stage import GPUS_A_NODE, Stage, shared_stage, stage
from benchmarks.figures import Basis, Figure, Groups, NothingToMeasureError
from benchmarks.sizes import Sizes
from muster.domain.gpu.metrics import INDEX
from tools.chromium import VARIABLE, arguments, executable

CHANGED_SHARE = 0.02
"""Share of all GPUs whose readings change each second."""
PATIENCE_MS = 120_000
SIZE: Final[ViewportSize] = {"width": 1280, "height": 900}

# Notes when the map says that it is drawn, in ms since the navigation began, and that it was painted.
READY = """
new MutationObserver((_, watching) => {
  if (!document.querySelector("[data-map][data-ready]")) return;
  watching.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.mapReadyMs = performance.now(); }));
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-ready"] });
"""
# A node's GPUs side by side, as `control.telemetry.node_readings` packs them.
_CHANGE = text(f"""
UPDATE node_latest SET
    gpu_readings = overlay(overlay(gpu_readings
        PLACING utilisation FROM 5 + {INDEX["utilisation_percent"]} * 8 * {GPUS_A_NODE} + 8 * slot)
        PLACING temperature FROM 5 + {INDEX["temperature_c"]} * 8 * {GPUS_A_NODE} + 8 * slot),
    received_at = now(), seq = seq + 1
FROM (
    SELECT DISTINCT ON (node_id) node_id, slot_index AS slot, float8send(round(random() * 100)) AS utilisation,
        float8send(round(30 + random() * 50)) AS temperature
    FROM gpus TABLESAMPLE BERNOULLI (:percent)
) AS changed
WHERE changed.node_id = node_latest.node_id
""")  # noqa: S608  # the positions of two metrics, from our own table


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``fleets``: numbers of GPUs, each with its map's bar in seconds; ``times``: drawings of a
    map.

    ``fetches_s``: time that a first visit has for further requests after its map is drawn. ``shares_stage``: use the
    same control plane as ``console_reads``, which runs afterwards and lets its tables grow.
    """

    fleets: tuple[tuple[int, float], ...]
    times: int
    fetches_s: float
    settles_s: float
    watched_s: float
    clients: int
    streams_s: float
    shares_stage: bool


SIZES: Final = Sizes(
    full=Size(
        ((10_000, 1.5), (100_000, 4.0)),
        times=5,
        fetches_s=2.0,
        settles_s=3.0,
        watched_s=30.0,
        clients=100,
        streams_s=15.0,
        shares_stage=False,
    ),
    smallest=Size(
        ((64, 1.5),),
        times=1,
        fetches_s=0.1,
        settles_s=0.1,
        watched_s=0.5,
        clients=2,
        streams_s=0.5,
        shares_stage=True,
    ),
)


def measure(size: Size) -> Groups:
    path = executable()
    if path is None:
        raise NothingToMeasureError(f"bench-console needs Chromium: install it, or name one in {VARIABLE}")
    for num_gpus, bar_s in size.fleets:
        with (shared_stage if size.shares_stage else stage)(num_gpus) as ours:
            with _chromium(path) as browser:
                yield [
                    _first_visit(browser, ours, num_gpus, size),
                    _readiness(browser, ours, num_gpus, bar_s, size.times),
                ]
                with changing(ours):
                    yield [_steady(browser, ours, num_gpus, size)]
            with changing(ours):
                yield [_memory(ours, num_gpus, size)]


@contextmanager
def _chromium(path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments())
        yield browser
        browser.close()


def _first_visit(browser: Browser, ours: Stage, num_gpus: int, size: Size) -> Figure:
    """Measure the sign-in page, the fleet, and all that it fetches until its map is drawn; nothing is cached."""
    with browser.new_context(viewport=SIZE) as context:
        page = context.new_page()
        traffic = _Traffic(context, page)
        page.goto(f"{ours.url}/console")
        page.fill("[name=password]", ours.key)
        page.press("[name=password]", "Enter")
        page.locator("[data-map][data-ready]").wait_for(timeout=PATIENCE_MS)
        page.wait_for_timeout(size.fetches_s * 1_000)
        kilobytes = traffic.received / 1_000
        peers = {f"{kind} KB": weight / 1_000 for kind, weight in sorted(traffic.by_kind().items())}
    name = f"first visit, {num_gpus:,} GPUs, on the wire"
    return Figure(name, kilobytes, "KB", 400.0, peers=peers, basis=Basis.COUNT)


def _readiness(browser: Browser, ours: Stage, num_gpus: int, bar_s: float, times: int) -> Figure:
    """Measure from navigation to a painted map, each time with an empty cache."""
    seconds = []
    for _ in range(times):
        with _person(browser, ours) as context:
            page = context.new_page()
            page.goto(f"{ours.url}/console")
            page.locator("[data-map][data-ready]").wait_for(timeout=PATIENCE_MS)
            while (ready_ms := page.evaluate("window.mapReadyMs")) is None:
                page.wait_for_timeout(20)
            seconds.append(ready_ms / 1_000)
    peers = {"slowest s": max(seconds), "first s": seconds[0]}
    name = f"{num_gpus:,} GPUs on the map"
    return Figure(name, statistics.median(seconds), "s", bar_s, peers=peers, basis=Basis.BUSY)


def _steady(browser: Browser, ours: Stage, num_gpus: int, size: Size) -> Figure:
    with _person(browser, ours) as context:
        page = context.new_page()
        traffic = _Traffic(context, page)
        page.goto(f"{ours.url}/console")
        page.locator("[data-map][data-ready]").wait_for(timeout=PATIENCE_MS)
        page.wait_for_timeout(size.settles_s * 1_000)
        before, began = traffic.received, time.monotonic()
        page.wait_for_timeout(size.watched_s * 1_000)
        rate = (traffic.received - before) / 1_000 / (time.monotonic() - began)
    peers = {"GPUs changed a second": num_gpus * CHANGED_SHARE}
    name = f"watching {num_gpus:,} GPUs that change"
    return Figure(name, rate, "KB/s", 5.0, peers=peers, basis=Basis.COUNT)


def _memory(ours: Stage, num_gpus: int, size: Size) -> Figure:
    """Measure the API's memory for a client with both streams of the fleet page."""
    process = psutil.Process(ours.pid)
    asyncio.run(_watch(ours, 1, size.streams_s / 3))
    before = process.memory_info().rss
    most, cpu_share = asyncio.run(_watch(ours, size.clients, size.streams_s))
    megabytes = max(0.0, (most - before) / 1e6 / size.clients)
    peers = {"process before MB": before / 1e6, "CPU % of a core": cpu_share * 100}
    name = f"server memory a client, {size.clients} at {num_gpus:,} GPUs"
    return Figure(name, megabytes, "MB", 1.0, peers=peers, basis=Basis.COUNT)


async def _watch(ours: Stage, clients: int, seconds: float) -> tuple[int, float]:
    """Return (highest memory, share of a core) of the API while that many clients read their streams."""
    process = psutil.Process(ours.pid)
    readers = [
        asyncio.create_task(_read(ours, path))
        for _ in range(clients)
        for path in ("/console/fleet/stream", "/console/live?about=gpu.")
    ]
    most, before, began = 0, sum(process.cpu_times()[:2]), time.monotonic()
    while time.monotonic() - began < seconds:
        await asyncio.sleep(0.5)
        most = max(most, process.memory_info().rss)
        failed = [reader for reader in readers if reader.done()]
        if failed:
            message = f"{len(failed)} of {len(readers)} streams ended: {failed[0].exception()}"
            raise RuntimeError(message)
    share = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    return most, share


async def _read(ours: Stage, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", ours.port)
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{ours.port}\r\nCookie: {ours.by_cookie['Cookie']}\r\n\r\n"
    try:
        writer.write(head.encode())
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(status.decode())
        while await reader.read(1 << 16):
            pass
    finally:
        writer.close()


@contextmanager
def changing(ours: Stage) -> Iterator[None]:
    """Change the readings of a part of the fleet each second, as reports would."""
    over = threading.Event()

    def change() -> None:
        while not over.wait(1.0):
            with ours.engine.begin() as connection:
                connection.execute(_CHANGE, {"percent": CHANGED_SHARE * 100})

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _person(browser: Browser, ours: Stage) -> Iterator[BrowserContext]:
    """Yield the browser context of an operator with an empty cache."""
    with browser.new_context(viewport=SIZE) as context:
        context.add_init_script(READY)
        context.add_cookies(
            [
                {
                    "name": "__Host-muster",
                    "value": ours.session,
                    "domain": "127.0.0.1",
                    "path": "/",
                    "secure": True,
                    "httpOnly": True,
                }
            ]
        )
        yield context


class _Traffic:
    """Bytes that came over the wire, heads included, as the browser's network layer counts them.

    A request that has ended reports its total; a stream, which never does, reports piece by piece.
    """

    def __init__(self, context: BrowserContext, page: Page) -> None:
        self._weights: dict[str, int] = {}
        self._kinds: dict[str, str] = {}
        session = context.new_cdp_session(page)
        session.on("Network.responseReceived", self._head)
        session.on("Network.dataReceived", self._data)
        session.on("Network.loadingFinished", self._end)
        session.send("Network.enable")

    @property
    def received(self) -> int:
        return sum(self._weights.values())

    def by_kind(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for request_id, weight in self._weights.items():
            kind = self._kinds.get(request_id, "Other")
            found[kind] = found.get(kind, 0) + weight
        return found

    def _head(self, event: dict[str, Any]) -> None:
        self._kinds[event["requestId"]] = event["type"]
        self._add(event["requestId"], int(event["response"]["encodedDataLength"]))

    def _data(self, event: dict[str, Any]) -> None:
        self._add(event["requestId"], int(event["encodedDataLength"]))

    def _end(self, event: dict[str, Any]) -> None:
        so_far = self._weights.get(event["requestId"], 0)
        self._weights[event["requestId"]] = max(so_far, int(event["encodedDataLength"]))

    def _add(self, request_id: str, weight: int) -> None:
        self._weights[request_id] = self._weights.get(request_id, 0) + weight
