"""Bundles, as the API answers them and as they are uploaded."""

from typing import Annotated

from typing_extensions import TypedDict

from muster.documents.effects import Trial
from muster.documents.fields import Moment, OneOf, Page
from muster.domain.stored_content import FolderState, ObjectKind


class Bundle(TypedDict):
    """A work folder in the content store. ``digest``: of its manifest. ``num_bytes``: of its files.

    ``active_at``: when it was last submitted with a job; of an upload, when it last made progress.
    """

    digest: str
    tenant_id: str
    state: Annotated[str, OneOf(FolderState)]
    num_bytes: int
    num_files: int
    created_by: str
    created_at: Moment
    active_at: Moment
    completed_at: Moment | None


class BundleFound(Bundle):
    """``num_live_jobs``: jobs that use it and have not ended."""

    num_live_jobs: int


class BundlePage(Page):
    items: list[BundleFound]


class ObjectUpload(TypedDict):
    """A request that uploads one object, to the store itself: with exactly these headers, within the hour.

    ``kind``: a chunk of a file, or the manifest, as it was sent.
    """

    kind: Annotated[str, OneOf(ObjectKind)]
    digest: str
    num_bytes: int
    method: str
    url: str
    headers: dict[str, str]


class BundleUpload(Bundle):
    """How far the upload of a bundle is. ``uploads``: the next objects, 500 at most.

    ``num_missing``, ``missing_bytes``: all that the store lacks. ``num_waiting``: the missing objects that are just
    being deleted: they are offered a few minutes later.
    """

    uploads: list[ObjectUpload]
    num_missing: int
    missing_bytes: int
    num_waiting: int


class BegunBundle(BundleUpload, Trial):
    """The bundle as it is begun, or continued."""


class Uploaded(TypedDict):
    """Digests of objects that the store has taken since the last request, 500 at most."""

    uploaded: list[str]


class DeletedBundle(Bundle, Trial):
    """The bundle that was deleted."""


class ContentLimits(TypedDict):
    """The limits of a tenant's content. ``has_store``: whether this control plane has a content store at all.

    ``used_bytes``: what the tenant stores, each chunk once. ``num_package_hosts``: hosts in contact that build
    environments from a package index or a wheelhouse. ``num_source_hosts``: of these, that build source distributions.
    """

    has_store: bool
    bundle_bytes: int
    bundle_files: int
    manifest_bytes: int
    tenant_bytes: int
    used_bytes: int
    num_package_hosts: int
    num_source_hosts: int
