"""Folders that hosts upload for a job that they run or ran: they get addresses of what the store lacks, and no key.

A host may upload for a part of its own alone, by the part's fence; each folder is of the tenant of the part's job.
"""

from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from sqlalchemy import select

from control.content.folders import begin_folder, confirm_folder, upload_of
from control.content.manifests import Reading
from control.content.outputs import OUTPUTS_NOTICE, OutputsPlace, add_to_lineage, name_outputs, require_named, step_of
from control.content.types import Upload, WantedObject
from control.core.unit_of_work import UnitOfWork, declare_action
from control.hosts.environments import BuildPlace
from control.hosts.parts import EndedPart, part_of_attempt
from control.hosts.protocol import node_of
from control.policy.policies import active_policy
from muster.db.models import Event, StoredFolder
from muster.domain.errors import ConflictError, NotFoundError, StaleFenceError
from muster.domain.ids import JobId, NodeId, TenantId
from muster.domain.residency import StorePlace
from muster.domain.stored_content import FolderKind, FolderState
from muster.store.keys import object_key
from muster.store.objects import ObjectStore
from muster.wire.content import FolderUploadAnswer, FolderUploadsRequest, OutputsNote, OutputsNoteAnswer, SignedUpload

BEGIN: Final = declare_action("host.begin_folder")
CONFIRM: Final = declare_action("host.confirm_folder")
NOTE: Final = declare_action("host.note_outputs")
MOST_NOTES: Final = 100
"""Notes about one part of an attempt that are kept."""


class UploadPlace(Protocol):
    """What a folder is for: a part's outputs, or what it builds."""

    @property
    def tenant_id(self) -> TenantId: ...

    def begun(self, unit: UnitOfWork, folder: StoredFolder) -> None:
        """Store that the folder is for this; the tenant's row of content is locked."""

    def check(self, unit: UnitOfWork, digest: str) -> None:
        """Raise ConflictError unless the folder of this digest is for this."""

    def completed(self, unit: UnitOfWork, folder: StoredFolder) -> None:
        """Report that the folder is complete."""


class _Outputs:
    def __init__(self, unit: UnitOfWork, part_id: str, fence: int, node_id: NodeId, name: str) -> None:
        """Find the part. Raises StaleFenceError: the node never had it, or it ended too long ago."""
        step, found = step_of(name), _part_of_outputs(unit, part_id, fence, node_id)
        self.tenant_id = TenantId(found.job.tenant_id)
        self._number = found.number
        self._at = OutputsPlace(found.job.id, found.attempt_id, found.node_rank, step)

    def begun(self, unit: UnitOfWork, folder: StoredFolder) -> None:
        name_outputs(unit, self._at, folder)
        if folder.state is FolderState.COMPLETE:  # the same files were stored before
            add_to_lineage(unit, self._at, folder.digest)

    def check(self, unit: UnitOfWork, digest: str) -> None:
        require_named(unit, self._at, digest)

    def completed(self, unit: UnitOfWork, folder: StoredFolder) -> None:
        add_to_lineage(unit, self._at, folder.digest)
        payload = {
            "attempt_id": self._at.attempt_id,
            "attempt": self._number,
            "node_rank": self._at.node_rank,
            "step": self._at.step,
            "num_files": folder.num_files,
            "num_bytes": folder.num_bytes,
        }
        unit.emit("job.outputs_stored", "job", self._at.job_id, tenant_id=self.tenant_id, payload=payload)


def _place(unit: UnitOfWork, part_id: str, fence: int, protocol: int, kind: str, name: str) -> UploadPlace:
    """Return what the folder is for. Raises NotFoundError: hosts upload nothing of that kind or name."""
    node_id = node_of(unit, protocol)
    if kind == FolderKind.OUTPUTS:
        return _Outputs(unit, part_id, fence, node_id, name)
    if kind in {FolderKind.ENVIRONMENT, FolderKind.BUNDLE}:
        return BuildPlace(unit, part_id, fence, node_id, name)
    raise NotFoundError(f"hosts upload no folder of the kind {kind[:20]!r}")


def begin(
    unit: UnitOfWork,
    part_id: str,
    kind: str,
    name: str,
    *,
    fence: int,
    protocol: int,
    manifest: Reading,
    store: StorePlace | None = None,
) -> Upload:
    """Begin the upload of a folder to ``store`` by its manifest, or continue it. Return what the store lacks.

    Begin the unit quiet.

    Raises:
        StaleFenceError: the node has no such part.
        ConflictError: another folder is complete in its place.
        ValidationFailedError: it is larger than a folder of its kind may be, or the tenant's residency rule excludes
            the store.
        TenantLimitError: the tenant would store more than it may.
    """
    place = _place(unit, part_id, fence, protocol, kind, name)
    policy = active_policy(unit.session).content
    folder = begin_folder(unit, place.tenant_id, FolderKind(kind), manifest, policy, store).folder
    place.begun(unit, folder)
    return upload_of(unit, folder)


def confirm(
    unit: UnitOfWork,
    part_id: str,
    kind: str,
    name: str,
    request: FolderUploadsRequest,
    *,
    store: StorePlace | None = None,
) -> Upload:
    """Note what was uploaded; the folder is complete with the last of it. Begin the unit quiet.

    Raises:
        StaleFenceError: the node has no such part.
        ConflictError: the folder is not the one that was begun, or its upload was given up.
        ValidationFailedError: the tenant's residency rule excludes ``store``.
    """
    place = _place(unit, part_id, request.fence, request.protocol, kind, name)
    found = confirm_folder(unit, place.tenant_id, FolderKind(kind), request.digest, request.uploaded, store)
    if found is None:
        raise ConflictError("the upload was given up", suggestion="Begin it again with its manifest.")
    place.check(unit, request.digest)
    if found.is_news:
        place.completed(unit, found.folder)
    return upload_of(unit, found.folder)


def note(unit: UnitOfWork, attempt_id: str, message: OutputsNote) -> OutputsNoteAnswer:
    """Note on the job's timeline what the host could not collect. A note that came before has no effect.

    Raises StaleFenceError: the node has no such part.
    """
    part = _part_of_outputs(unit, attempt_id, message.fence, node_of(unit, message.protocol))
    payload = {
        "attempt_id": part.attempt_id,
        "attempt": part.number,
        "node_rank": part.node_rank,
        "step": message.step,
        "found": message.found,
        "words": message.words,
        "num_paths": message.num_paths,
        "paths": list(message.paths),
    }
    if _is_kept(unit, part.job.id, payload):
        return OutputsNoteAnswer(stored=False)
    unit.emit(OUTPUTS_NOTICE, "job", part.job.id, tenant_id=TenantId(part.job.tenant_id), payload=payload)
    return OutputsNoteAnswer(stored=True)


def answer_of(found: Upload, store: ObjectStore, now: datetime) -> FolderUploadAnswer:
    """Return the answer, with the next uploads signed."""
    return FolderUploadAnswer(
        digest=found.folder.digest,
        state=found.folder.state.value,
        uploads=tuple(_signed(store, found.folder.tenant_id, one, now) for one in found.wanted),
        num_missing=found.num_missing,
        missing_bytes=found.missing_bytes,
        num_waiting=found.num_waiting,
    )


def _signed(store: ObjectStore, tenant_id: TenantId, one: WantedObject, now: datetime) -> SignedUpload:
    request = store.upload(object_key(tenant_id, one.kind, one.digest), one.num_bytes, one.digest, now)
    return SignedUpload(
        digest=one.digest,
        num_bytes=one.num_bytes,
        url=request.url,
        method=request.method,
        headers=dict(request.headers),
    )


def _part_of_outputs(unit: UnitOfWork, part_id: str, fence: int, node_id: NodeId) -> EndedPart:
    """Return the part. Raises StaleFenceError: the node never had it, or it ended too long ago for its outputs."""
    hours = active_policy(unit.session).content.outputs_upload_hours
    found = part_of_attempt(unit, part_id, fence, node_id, after_end=timedelta(hours=hours))
    if found is None:
        raise StaleFenceError
    return found


def _is_kept(unit: UnitOfWork, job_id: JobId, payload: dict[str, Any]) -> bool:
    """Return whether the part's notes have this one, or are as many as are kept."""
    query = select(Event.payload).where(
        Event.subject_id == job_id,
        Event.kind == OUTPUTS_NOTICE,
        Event.payload["attempt_id"].astext == payload["attempt_id"],
        Event.payload["node_rank"].astext == str(payload["node_rank"]),
    )
    known = unit.session.scalars(query.limit(MOST_NOTES)).all()
    return payload in known or len(known) >= MOST_NOTES
