"""Process that makes the work folder of one attempt, started by its supervisor, with which it ends.

It has a low priority, so that ranks and the launcher keep the host's CPUs. It writes lines of JSON: how far it is, that
it is done, or why not.
"""

import contextlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from muster.content.faults import DamagedError
from muster.content.manifest import MAX_MANIFEST_BYTES
from workers.host.content.faults import BrokenBundleError, FetchError, StoreError
from workers.host.content.fetch import Fetch, Limits, used_places
from workers.host.content.places import Place
from workers.host.supervisor.files import CLEAN, ORDER, read_json

if TYPE_CHECKING:
    from muster.wire.content import Download, DownloadsAnswer

NICE: Final = 10
REPORT_PAUSE_S: Final = 0.5


class FetchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher wrote of the bundle into the attempt's order.

    ``part_id``, ``fence``: of the attempt or preflight. ``folder``: its work folder. ``owner``: user and group of that;
    None: our own. ``api_url``, ``key_file``, ``ca_file``: the control plane's.
    """

    digest: str
    tenant_id: str
    part_id: str
    fence: int
    folder: str
    content_dir: str
    attempts_dir: str
    cache_bytes: int
    free_bytes: int
    are_linked: bool
    owner: tuple[int, int] | None
    api_url: str
    key_file: str
    ca_file: str | None = None

    @property
    def certificates(self) -> Path | None:
        return None if self.ca_file is None else Path(self.ca_file)


class Progress:
    """What the supervisor reads. ``failure``: the newest thing that is tried again."""

    def __init__(self) -> None:
        self._num_bytes = 0
        self._of_bytes = 0
        self._failure = ""
        self._next_s = 0.0
        self._lock = threading.Lock()

    def begin(self, of_bytes: int) -> None:
        self._of_bytes = of_bytes
        self._report()

    def advance(self, num_bytes: int) -> None:
        with self._lock:  # each connection has a thread
            self._num_bytes += num_bytes
            self._report()

    def note_failure(self, words: str) -> None:
        self._failure = words
        self._report()

    def _report(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + REPORT_PAUSE_S
            report({"have": self._num_bytes, "of": self._of_bytes, "failure": self._failure})


class ControlPlane:
    """The source of a bundle: its addresses come from the control plane, its content from the store."""

    def __init__(self, order: FetchOrder, progress: Progress) -> None:
        # Imported where something is missing alone: a start from a whole copy does without.
        from muster.client.host import HostClient  # noqa: PLC0415
        from muster.client.key_file import KeyFile  # noqa: PLC0415
        from workers.host.content.downloads import Downloads  # noqa: PLC0415

        self._order = order
        self._progress = progress
        self._client = HostClient(order.api_url, KeyFile(Path(order.key_file)), ca_file=order.certificates)
        self._downloads = Downloads(self._sign, progress.note_failure, order.certificates)

    def manifest(self) -> bytes:
        from workers.host.content.downloads import fetch_object  # noqa: PLC0415
        from workers.host.content.store_lines import RefusedError, StoreLine  # noqa: PLC0415

        with StoreLine(self._order.certificates) as line:
            try:
                download = self._ask(()).manifest
                return fetch_object(line, download, self._order.digest, MAX_MANIFEST_BYTES, self._progress.note_failure)
            except RefusedError as fault:
                raise StoreError(str(fault)) from fault

    def chunks(self, lacking: Mapping[str, int], save: Callable[[str, bytes], None]) -> None:
        def saved(digest: str, content: bytes) -> None:
            save(digest, content)
            self._progress.advance(len(content))

        self._progress.begin(sum(lacking.values()))
        self._downloads.fetch(lacking, saved)

    def _sign(self, digests: Sequence[str]) -> "tuple[Download, ...]":
        return self._ask(tuple(digests)).chunks

    def _ask(self, chunks: tuple[str, ...]) -> "DownloadsAnswer":
        """Ask for addresses, for as long as the control plane does not give them.

        Any other refusal is tried again: while it is upgraded, an API process of an earlier release has no such route.

        Raises:
            BrokenBundleError: the control plane knows no such bundle of the job's.
            StoreError: this part of the attempt is over.
        """
        from muster.client.transport import Problem, UnreachableError  # noqa: PLC0415
        from muster.wire.content import DownloadsRequest  # noqa: PLC0415
        from muster.wire.host import PROTOCOL_VERSION  # noqa: PLC0415

        order, pause_s = self._order, 0.2
        request = DownloadsRequest(protocol=PROTOCOL_VERSION, fence=order.fence, bundle=order.digest, chunks=chunks)
        while True:
            try:
                return self._client.downloads(order.part_id, request)
            except UnreachableError as fault:
                self._progress.note_failure(str(fault))
            except Problem as fault:
                if fault.code == "stale_fence":
                    raise StoreError("the control plane gives no addresses: the attempt is over") from fault
                if fault.code == "no_such_bundle":
                    raise BrokenBundleError(fault.detail) from fault
                self._progress.note_failure(fault.detail)
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  # spreads hosts, keeps no secret
            pause_s = min(2 * pause_s, 5.0)


class Lazy:
    """A source that is made with the first question."""

    def __init__(self, make: Callable[[], ControlPlane]) -> None:
        self._make = make
        self._made: ControlPlane | None = None

    @property
    def _source(self) -> ControlPlane:
        if self._made is None:
            self._made = self._make()
        return self._made

    def manifest(self) -> bytes:
        return self._source.manifest()

    def chunks(self, lacking: Mapping[str, int], save: Callable[[str, bytes], None]) -> None:
        if lacking:
            self._source.chunks(lacking, save)


def run(order: FetchOrder) -> dict[str, Any]:
    """Return the last line."""
    progress = Progress()
    others = [
        document
        for path in Path(order.attempts_dir).glob(f"*/{ORDER}")
        if (document := read_json(path)) is not None and not (read_json(path.with_name(CLEAN)) or {}).get("clean")
    ]
    fetch = Fetch(
        Place(Path(order.content_dir), order.tenant_id, order.digest),
        Lazy(lambda: ControlPlane(order, progress)),
        Path(order.folder),
        Limits(order.cache_bytes, order.free_bytes),
        used_places(Path(order.content_dir), others),
        are_linked=order.are_linked,
        owner=order.owner,
    )
    try:
        fetch.run()
    except FetchError as fault:
        return {"why": str(fault), "is_of_host": fault.IS_OF_HOST}
    except (DamagedError, OSError) as fault:
        return {"why": f"this host cannot keep it: {fault}", "is_of_host": True}
    return {"is_done": True}


def report(line: dict[str, Any]) -> None:
    os.write(1, f"{json.dumps(line)}\n".encode())


def main() -> None:
    """Read the order from the descriptor that the first argument names."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    with open(int(sys.argv[1]), "rb") as asked:  # noqa: PTH123  # a descriptor
        order = msgspec.json.decode(asked.read(), type=FetchOrder)
    report(run(order))


if __name__ == "__main__":
    main()
