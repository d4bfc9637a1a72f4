"""Names of objects in the content store. A tenant's chunks stand below its own prefix and are shared with no other."""

import re
from typing import Final

from muster.domain.ids import TenantId, is_id
from muster.domain.stored_content import ObjectKind

MAX_KEY_BYTES: Final = 1024
"""Limit of the S3 protocol."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_FILES: Final = re.compile(r"tenants/([^/]+)/files/([0-9a-f]{64})")
_CHECKPOINT: Final = re.compile(r"tenants/([^/]+)/checkpoints/([0-9a-f]{64})")
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=-]{0,254}")


def object_key(tenant_id: TenantId, kind: ObjectKind, digest: str) -> str:
    """Return the key of an object by its SHA-256 in hexadecimal digits. Raises ValueError: it is none."""
    return chunk_key(tenant_id, digest) if kind is ObjectKind.CHUNK else manifest_key(tenant_id, digest)


def chunk_key(tenant_id: TenantId, digest: str) -> str:
    """Return the key of a chunk by its SHA-256 in hexadecimal digits. Raises ValueError: it is none."""
    return f"{chunks_prefix(tenant_id)}{_checked(digest)[:2]}/{digest}"


def manifest_key(tenant_id: TenantId, digest: str) -> str:
    """Return the key of a manifest by its SHA-256 in hexadecimal digits. Raises ValueError: it is none."""
    return f"{tenant_prefix(tenant_id)}manifests/{_checked(digest)}"


def files_key(tenant_id: TenantId, manifest: str) -> str:
    """Return the key below which files of a folder are read as a whole. No object has it. Raises ValueError."""
    return f"{tenant_prefix(tenant_id)}files/{_checked(manifest)}"


def manifest_of_files(key: str) -> tuple[TenantId, str] | None:
    """Return the tenant and the manifest's digest of a key that ``files_key`` made; None: it is another."""
    found = _FILES.fullmatch(key)
    return None if found is None or not is_id("tenant", found[1]) else (TenantId(found[1]), found[2])


def checkpoint_key(tenant_id: TenantId, manifest: str) -> str:
    """Return the key below which files of a checkpoint are read. No object has it. Raises ValueError.

    ``manifest``: the SHA-256 of the checkpoint's own manifest.
    """
    return f"{tenant_prefix(tenant_id)}checkpoints/{_checked(manifest)}"


def manifest_of_checkpoint(key: str) -> str | None:
    """Return the manifest's digest of a key that ``checkpoint_key`` made; None: it is another."""
    found = _CHECKPOINT.fullmatch(key)
    return None if found is None or not is_id("tenant", found[1]) else found[2]


def chunks_prefix(tenant_id: TenantId) -> str:
    """Return the prefix of all chunks of a tenant."""
    return f"{tenant_prefix(tenant_id)}chunks/"


def tenant_prefix(tenant_id: TenantId) -> str:
    """Return the prefix of all objects of a tenant. Raises ValueError: it is no tenant's id."""
    if not is_id("tenant", tenant_id):
        raise ValueError(f"{tenant_id!r} is no id of a tenant")
    return f"tenants/{tenant_id}/"


def key_fault(key: str) -> str | None:
    """Return why our own service keeps no object of this key; None if it does.

    A key becomes a path: each part begins with a letter, a digit or `_`, so that none is `..`, empty or hidden.
    """
    if len(key) > MAX_KEY_BYTES:
        return f"the key is longer than {MAX_KEY_BYTES} bytes"
    if not all(_PART.fullmatch(part) for part in key.split("/")):
        return "each part of the key must begin with a letter, a digit or _, and may also have . = and -"
    return None


def _checked(digest: str) -> str:
    if _DIGEST.fullmatch(digest) is None:
        raise ValueError(f"{digest!r} is no SHA-256 in hexadecimal digits")
    return digest
