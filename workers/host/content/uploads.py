"""Upload of a folder that this host has read, by a process that may wait for a network: a job's outputs, and others.

The control plane signs a request for each object that the store lacks, for the part of an attempt or preflight that the
folder belongs to. An upload that was broken off continues with what the store does not have yet.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

import msgspec

from muster.client.host import HostClient
from muster.client.transport import Problem, UnreachableError
from muster.client.uploads import FolderContent, FolderUpload, OnProgress
from muster.content.manifest import digest_of
from muster.store.faults import NOT_CONFIGURED, StoreError, StoreSlowError
from muster.wire.content import FolderUploadAnswer, FolderUploadsRequest
from muster.wire.host import PROTOCOL_VERSION

if TYPE_CHECKING:  # a host's start of a job would wait for them
    from muster import documents

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 30.0
_FINAL: Final = frozenset({400, 410, 413, 415, 422})
"""Statuses of answers that the same question gets again. Any other refusal may pass: while the control plane is
upgraded, a process of an earlier release has no such route; a token is renewed; space is made for the tenant.
"""
MOST_WITHOUT_STORE: Final = 20
"""Answers in a row that there is no content store, over about five minutes: then the control plane is to have none."""
_OVER: Final = "stale_fence"
_CONFLICT: Final = "conflict"


class UploadEndedError(Exception):
    """The folder is not in the store and will not be: the control plane does not take it, or the time is over."""


class StoredAlreadyError(UploadEndedError):
    """Another folder is complete in this one's place."""


class _BeginAgainError(Exception):
    """The control plane has given the upload up, or has begun another one in its place."""


class Sender(Protocol):
    """The calls of the control plane for one folder. Each raises ``UnreachableError`` or ``Problem``."""

    def begin(self, manifest: bytes) -> FolderUploadAnswer: ...

    def confirm(self, uploaded: Sequence[str]) -> FolderUploadAnswer: ...


class PartFolder:
    """A folder of one part of an attempt or preflight: ``kind`` and ``name`` say what it is."""

    def __init__(self, client: HostClient, part_id: str, fence: int, kind: str, name: str) -> None:
        self._client = client
        self._fence = fence
        self._place = (part_id, kind, name)
        self._digest = ""

    def begin(self, manifest: bytes) -> FolderUploadAnswer:
        self._digest = digest_of(manifest)
        return self._client.begin_folder(*self._place, manifest, fence=self._fence, protocol=PROTOCOL_VERSION)

    def confirm(self, uploaded: Sequence[str]) -> FolderUploadAnswer:
        request = FolderUploadsRequest(
            protocol=PROTOCOL_VERSION, fence=self._fence, digest=self._digest, uploaded=tuple(uploaded)
        )
        return self._client.confirm_folder(*self._place, request)


@dataclass(frozen=True, slots=True)
class HostUpload:
    """An upload that continues until the folder is in the store.

    ``note``: gets the newest fault, which is tried again. ``may_go_on``: asked before each pause.
    """

    sender: Sender
    content: FolderContent
    ca_file: Path | None = None
    note: Callable[[str], None] = lambda _: None
    may_go_on: Callable[[], bool] = lambda: True
    on_progress: OnProgress = lambda _done, _total: None
    pause: Callable[[float], None] = time.sleep

    def run(self) -> str:
        """Return the folder's digest, once the store has all of it.

        Raises:
            UploadEndedError: it will not be there. ``StoredAlreadyError``: another one is.
            FolderError: a file has changed since it was read; its text names it.
        """
        pauses = _Pauses(self)
        receiver = _Patient(self)
        while True:
            try:
                FolderUpload(receiver, self.content, self.ca_file, self.on_progress, self.pause).run()
            except StoreError as fault:
                pauses.wait(fault.detail, None if isinstance(fault, StoreSlowError) else LONGEST_PAUSE_S)
            except _BeginAgainError as fault:
                pauses.wait(str(fault))
            else:
                return digest_of(self.content.manifest)


class _Pauses:
    """Pauses between tries, which grow from one fault to the next."""

    def __init__(self, upload: HostUpload) -> None:
        self._upload = upload
        self._next_s = FIRST_PAUSE_S

    def wait(self, words: str, least_s: float | None = None) -> None:
        """Wait before the next try. Raises UploadEndedError: there is none."""
        self._upload.note(words)
        if not self._upload.may_go_on():
            raise UploadEndedError(words)
        spread = random.uniform(0.5, 1.0)  # noqa: S311  # spreads hosts, keeps no secret
        self._upload.pause(spread * max(self._next_s, min(least_s or 0.0, LONGEST_PAUSE_S)))
        self._next_s = min(2 * self._next_s, LONGEST_PAUSE_S)


class _Patient:
    """The control plane, asked again until it answers: what the store takes meanwhile is not lost."""

    def __init__(self, upload: HostUpload) -> None:
        self._upload = upload

    def begin(self, manifest: bytes) -> documents.BundleUpload:
        try:
            return self._answer(lambda: self._upload.sender.begin(manifest))
        except _BeginAgainError as fault:
            raise StoredAlreadyError(str(fault)) from fault

    def confirm(self, uploaded: Sequence[str]) -> documents.BundleUpload:
        return self._answer(lambda: self._upload.sender.confirm(uploaded))

    def _answer(self, ask: Callable[[], FolderUploadAnswer]) -> documents.BundleUpload:
        pauses, num_without_store = _Pauses(self._upload), 0
        while True:
            try:
                found = msgspec.to_builtins(ask())
            except UnreachableError as fault:
                pauses.wait(str(fault))
            except Problem as fault:
                num_without_store = num_without_store + 1 if NOT_CONFIGURED in fault.detail else 0
                if fault.status in _FINAL or fault.code == _OVER or num_without_store == MOST_WITHOUT_STORE:
                    raise UploadEndedError(fault.detail) from fault
                if fault.code == _CONFLICT and not num_without_store:
                    raise _BeginAgainError(fault.detail) from fault
                pauses.wait(fault.detail, fault.retry_after_s)
            else:
                # What an upload reads of it has the same members here.
                return cast("documents.BundleUpload", found)
