"""The control plane's part in one attempt's content: signed addresses, and answers."""

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from muster.client.host import HostClient
from muster.client.key_file import KeyFile
from muster.client.transport import Problem, UnreachableError
from muster.content.manifest import MAX_MANIFEST_BYTES
from muster.domain.stored_content import FolderKind
from muster.wire.content import Download, DownloadsAnswer, DownloadsRequest, LostObject
from muster.wire.host import PROTOCOL_VERSION
from workers.host.content.chunks import Piece, Save
from workers.host.content.downloads import Downloads, Wanted, fetch_object
from workers.host.content.faults import BrokenBundleError, FetchError, LostObjectError, StoreError
from workers.host.content.fetch_order import FetchOrder, Progress
from workers.host.content.store_lines import RefusedError, StoreLine

_Answer = TypeVar("_Answer")
VERDICT_S: Final = 30.0
"""A host waits so long for the control plane to read what it could not read."""
_VERDICT_PAUSE_S: Final = 0.5
_WHAT_FOLLOWS: Final = {
    FolderKind.BUNDLE: "; submit the same folder again, and this job continues by itself",
    FolderKind.ENVIRONMENT: "; it is built again",
    FolderKind.OUTPUTS: "",
}
_COMMIT_FOLLOWS: Final = "; a host fetches its commit again, and this job continues by itself"


def open_client(order: FetchOrder) -> HostClient:
    return HostClient(order.api_url, KeyFile(Path(order.key_file)), ca_file=order.certificates)


def answered(question: Callable[[], _Answer], progress: Progress) -> _Answer:
    """Return the answer, asked for as long as the control plane does not give it.

    Any other refusal is tried again: while it is upgraded, an API process of an earlier release has no such route.

    Raises:
        BrokenBundleError: the control plane knows no such folder of the job's.
        StoreError: this part of the attempt is over.
    """
    pause_s = 0.2
    while True:
        try:
            return question()
        except UnreachableError as fault:
            progress.note_failure(str(fault))
        except Problem as fault:
            if fault.code == "stale_fence":
                raise StoreError("the control plane gives no addresses: the attempt is over") from fault
            if fault.code == "no_such_bundle":
                raise BrokenBundleError(fault.detail) from fault
            progress.note_failure(fault.detail)
        time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  # spreads hosts, keeps no secret
        pause_s = min(2 * pause_s, 5.0)


class ContentSource:
    """The source of a folder: its addresses come from the control plane, its content from the store."""

    def __init__(self, order: FetchOrder, progress: Progress, digest: str, kind: FolderKind) -> None:
        self._order = order
        self._progress = progress
        self._digest = digest
        self._kind = kind
        self._client = open_client(order)
        self._downloads = Downloads(self._sign, progress.note_failure, order.certificates, kind)

    def manifest(self) -> bytes:
        with StoreLine(self._order.certificates) as line:
            try:
                download, note = self._ask(()).manifest, self._progress.note_failure
                return fetch_object(line, download, Wanted(self._digest, MAX_MANIFEST_BYTES, self._kind), note)
            except RefusedError as fault:
                raise StoreError(str(fault)) from fault
            except LostObjectError as fault:
                raise self._read_by_all(fault) from fault

    def chunks(self, lacking: Mapping[str, int], save: Save) -> None:
        @contextlib.contextmanager
        def counted(digest: str) -> Iterator[Callable[[Piece], None]]:
            with save.in_pieces(digest) as write:
                yield write
            self._progress.advance(lacking[digest])

        self._progress.begin(sum(lacking.values()))
        try:
            self._downloads.fetch(lacking, counted)
        except LostObjectError as fault:
            raise self._read_by_all(fault) from fault

    def _read_by_all(self, fault: LostObjectError) -> FetchError:
        """Report the object, and return what its loss means once the control plane has read it too.

        An answer that does not come in time leaves this host's own finding.
        """
        order, until_s, is_of_commit = self._order, time.monotonic() + VERDICT_S, False
        report = LostObject(protocol=PROTOCOL_VERSION, fence=order.fence, bundle=self._digest, digest=fault.digest)
        self._progress.note_failure(f"{fault}; the control plane reads it")
        while time.monotonic() < until_s:
            try:
                answer = self._client.lost_object(order.part_id, report)
                found, is_of_commit = answer.found, answer.is_of_commit
            except UnreachableError:
                found = "reading"
            except Problem as refusal:
                if refusal.code == "stale_fence":
                    return StoreError(f"{fault}, and the attempt is over")
                found = "reading"
            if found == "whole":
                return StoreError(
                    f"{fault}; the control plane reads it, so something between them and this host is wrong"
                )
            if found == "lost":
                return LostObjectError(f"{fault}{self._what_follows(is_of_commit)}", fault.digest)
            time.sleep(_VERDICT_PAUSE_S)
        return fault

    def _what_follows(self, is_of_commit: bool) -> str:  # noqa: FBT001  # as the answer has it
        is_made_again = self._kind is FolderKind.BUNDLE and is_of_commit
        return _COMMIT_FOLLOWS if is_made_again else _WHAT_FOLLOWS[self._kind]

    def _sign(self, digests: Sequence[str]) -> tuple[Download, ...]:
        return self._ask(tuple(digests)).chunks

    def _ask(self, chunks: tuple[str, ...]) -> DownloadsAnswer:
        """Ask for addresses. Raises as ``answered``."""
        order = self._order
        request = DownloadsRequest(protocol=PROTOCOL_VERSION, fence=order.fence, bundle=self._digest, chunks=chunks)
        return answered(lambda: self._client.downloads(order.part_id, request), self._progress)
