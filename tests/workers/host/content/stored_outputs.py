"""What the control plane and the store have of a job's outputs."""

from typing import Any

from sqlalchemy import select

from muster.content.manifest import Kind, decode
from muster.db.models import Event, JobOutput, StoredFolder
from muster.domain.ids import JobId
from muster.domain.stored_content import FolderState
from muster.store.keys import chunk_key, manifest_key
from tests.fleet_factory import Fleet
from tests.store.stores import BUCKET

from .stores import S3

Files = dict[str, bytes]


def outputs_of(fleet: Fleet, s3: S3, job_id: JobId) -> dict[tuple[str, int | None], Files]:
    """Return the files of each complete folder, as the store has them, by attempt and step; a link's by its target."""

    def read(key: str) -> bytes:
        content: bytes = s3.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return content

    query = (
        select(JobOutput.attempt_id, JobOutput.step, StoredFolder.digest)
        .join(StoredFolder, StoredFolder.id == JobOutput.folder_id)
        .where(JobOutput.job_id == job_id, StoredFolder.state == FolderState.COMPLETE)
    )
    with fleet.units.read() as session:
        rows = session.execute(query).all()
    found: dict[tuple[str, int | None], Files] = {}
    for attempt_id, step, digest in rows:
        manifest = decode(read(manifest_key(fleet.tenant_id, digest)))
        found[attempt_id, step] = {
            entry.path: entry.parts[0].encode()
            if entry.kind is Kind.LINK
            else b"".join(read(chunk_key(fleet.tenant_id, part)) for part in entry.parts)
            for entry in manifest.entries
        }
    return found


def reports_of(fleet: Fleet, job_id: JobId) -> list[dict[str, Any]]:
    """Return what stands on the job's timeline of outputs that were not collected."""
    query = select(Event.payload).where(Event.subject_id == job_id, Event.kind == "job.outputs_noted")
    with fleet.units.read() as session:
        return [dict(payload) for payload in session.scalars(query.order_by(Event.id))]
