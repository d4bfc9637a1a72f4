"""Stored content as records."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import msgspec

from muster.domain.ids import TenantId
from muster.domain.job.environment_builds import PackageHosts
from muster.domain.stored_content import FolderKind, FolderState, ObjectKind


class StoredFolderRecord(msgspec.Struct, frozen=True):
    """One stored folder. Its columns' meanings are in ``muster.db.models.content``."""

    id: int
    tenant_id: TenantId
    kind: FolderKind
    digest: str
    num_bytes: int
    num_files: int
    state: FolderState
    created_by: str
    created_at: datetime
    active_at: datetime
    completed_at: datetime | None


@dataclass(frozen=True, slots=True)
class FolderFound:
    """A folder. ``num_live_jobs``: jobs that use it and have not ended."""

    folder: StoredFolderRecord
    num_live_jobs: int


class StoredAs(NamedTuple):
    """An object of the database at one time: its row, and how often the store had taken it."""

    number: int
    num_stored: int


@dataclass(frozen=True, slots=True)
class ObjectName:
    """An object of a tenant, with its size in the database, or in the store if only that has it.

    ``stored_as``: as it was read, and compared with the store; None: as it is when it is used.
    """

    tenant_id: TenantId
    kind: ObjectKind
    digest: str
    num_bytes: int
    stored_as: StoredAs | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WantedObject:
    """An object that is to be uploaded."""

    kind: ObjectKind
    digest: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Upload:
    """How far the upload of a folder is. ``wanted``: the next objects.

    ``num_missing``, ``missing_bytes``: all that the store lacks. ``num_waiting``: the missing objects that are just
    being deleted from the store: they can be uploaded again in a few minutes.
    """

    folder: StoredFolderRecord
    wanted: Sequence[WantedObject]
    num_missing: int
    missing_bytes: int
    num_waiting: int


@dataclass(frozen=True, slots=True)
class ContentLimits:
    """The limits of a tenant's content, and how much it stores. ``hosts``: the ones that build environments."""

    bundle_bytes: int
    bundle_files: int
    manifest_bytes: int
    tenant_bytes: int
    used_bytes: int
    hosts: PackageHosts
