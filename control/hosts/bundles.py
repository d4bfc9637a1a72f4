"""Bundles of hosts: signed downloads for what a host is to run, and which bundles each host holds.

A host gets addresses of the objects of few folders alone: the bundle of a job whose attempt or preflight it has at this
moment, and the environments that this job was answered.
"""

from datetime import datetime
from typing import Final

from sqlalchemy import delete, exists, literal, or_, select, tuple_
from sqlalchemy.dialects.postgresql import insert

from control.attempts.git_bundles import git_of
from control.attempts.mapping import job_request
from control.content.reports import note_report
from control.content.rows import has_chunks
from control.core.unit_of_work import UnitOfWork, declare_action
from control.hosts.parts import job_of_part
from control.hosts.protocol import node_of
from muster.db.models import FolderJob, Job, Node, NodeBundle, StoredFolder
from muster.domain.errors import NoSuchBundleError, NotFoundError
from muster.domain.ids import TenantId
from muster.domain.stored_content import FolderKind
from muster.store.faults import NOT_CONFIGURED, StoreError
from muster.store.keys import chunk_key, manifest_key
from muster.store.objects import ObjectStore
from muster.wire.content import (
    BundleReport,
    BundleReportAnswer,
    Download,
    DownloadsAnswer,
    DownloadsRequest,
    LostObject,
    LostObjectAnswer,
)

DOWNLOADS: Final = declare_action("host.downloads")
LOST: Final = declare_action("host.lost_object")
HOLD: Final = declare_action("host.bundles")


def downloads(unit: UnitOfWork, part_id: str, request: DownloadsRequest, store: ObjectStore | None) -> DownloadsAnswer:
    """Return signed downloads of a folder, for the attempt or preflight ``part_id`` of the node that asks.

    Raises:
        StaleFenceError: the node has no such part now, or with another fence.
        NoSuchBundleError: the part's job uses no such bundle or environment, or the folder has no such chunk.
        StoreError: no content store is configured any more.
    """
    node_id = node_of(unit, request.protocol)
    job = job_of_part(unit, part_id, request.fence, node_id)
    folder_id = _folder_of(unit, job, request.bundle)
    if folder_id is None:
        raise NoSuchBundleError
    if store is None:
        raise StoreError(NOT_CONFIGURED)
    tenant_id, now = TenantId(job.tenant_id), unit.now
    if not has_chunks(unit, folder_id, request.chunks):  # a host reads no other content of the tenant
        raise NoSuchBundleError
    return DownloadsAnswer(
        manifest=_signed(store, manifest_key(tenant_id, request.bundle), now),
        chunks=tuple(_signed(store, chunk_key(tenant_id, digest), now) for digest in request.chunks),
    )


def report_lost(unit: UnitOfWork, part_id: str, report: LostObject) -> LostObjectAnswer:
    """Note that the node could not read an object of a folder. Begin the unit ``quiet``.

    Raises:
        StaleFenceError: the node has no such part now, or with another fence.
        NoSuchBundleError: the part's job uses no such folder, or the folder has no such object.
    """
    node_id = node_of(unit, report.protocol)
    job = job_of_part(unit, part_id, report.fence, node_id)
    folder_id = _folder_of(unit, job, report.bundle)
    found = None if folder_id is None else note_report(unit, folder_id, report.digest, node_id)
    if found is None:
        raise NoSuchBundleError
    return LostObjectAnswer(found=found, is_of_commit=git_of(unit, job) is not None)


def _folder_of(unit: UnitOfWork, job: Job, digest: str) -> int | None:
    """Return the folder that the job's hosts may read: its bundle, or an environment that it uses."""
    is_used = exists().where(FolderJob.job_id == job.id, FolderJob.folder_id == StoredFolder.id)
    is_bundle = literal(job_request(job).bundle == digest) & (StoredFolder.kind == FolderKind.BUNDLE)
    query = select(StoredFolder.id).where(
        StoredFolder.tenant_id == job.tenant_id,
        StoredFolder.digest == digest,
        or_(is_bundle, is_used & (StoredFolder.kind == FolderKind.ENVIRONMENT)),
    )
    return unit.session.scalars(query.limit(1)).one_or_none()


def _signed(store: ObjectStore, key: str, now: datetime) -> Download:
    signed = store.download(key, now)
    return Download(url=signed.url, headers=dict(signed.headers))


def hold(unit: UnitOfWork, report: BundleReport) -> BundleReportAnswer:
    """Store which bundles a node holds, in place of its last report. Begin the unit ``quiet``."""
    node_id = node_of(unit, report.protocol)
    if unit.session.scalar(select(Node.id).where(Node.id == node_id).with_for_update(key_share=True)) is None:
        raise NotFoundError
    named = (bundle.split("/") for bundle in dict.fromkeys(report.bundles))
    held = [(tenant_id, bytes.fromhex(digest)) for tenant_id, digest in named]
    is_held = tuple_(NodeBundle.tenant_id, NodeBundle.digest).in_(held)
    unit.session.execute(delete(NodeBundle).where(NodeBundle.node_id == node_id, ~is_held))
    if held:
        rows = [{"node_id": node_id, "tenant_id": tenant_id, "digest": digest} for tenant_id, digest in held]
        unit.session.execute(insert(NodeBundle).values(rows).on_conflict_do_nothing())
    return BundleReportAnswer(stored=len(held))
