"""Keys of objects: below their tenant, and never out of it."""

import pytest

from muster.domain.ids import TenantId
from muster.store.keys import chunk_key, chunks_prefix, key_fault, manifest_key, tenant_prefix

TENANT = TenantId(f"ten_{'0' * 26}")
DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def test_a_tenants_objects_stand_below_its_prefix() -> None:
    assert chunk_key(TENANT, DIGEST) == f"tenants/{TENANT}/chunks/9f/{DIGEST}"
    assert manifest_key(TENANT, DIGEST) == f"tenants/{TENANT}/manifests/{DIGEST}"
    assert chunk_key(TENANT, DIGEST).startswith(chunks_prefix(TENANT))
    assert all(key.startswith(tenant_prefix(TENANT)) for key in (chunks_prefix(TENANT), manifest_key(TENANT, DIGEST)))
    assert key_fault(chunk_key(TENANT, DIGEST)) is None
    assert key_fault(manifest_key(TENANT, DIGEST)) is None


@pytest.mark.parametrize("digest", ["", DIGEST[:-1], DIGEST.upper(), f"../{DIGEST[3:]}", f"{DIGEST}\n"])
def test_what_is_no_digest_makes_no_key(digest: str) -> None:
    for key in (chunk_key, manifest_key):
        with pytest.raises(ValueError, match="no SHA-256 in hexadecimal digits"):
            key(TENANT, digest)


@pytest.mark.parametrize("tenant", ["", "ten_", "../x", f"ten_{'0' * 25}/", f"job_{'0' * 26}"])
def test_what_is_no_tenant_has_no_prefix(tenant: str) -> None:
    with pytest.raises(ValueError, match="is no id of a tenant"):
        tenant_prefix(TenantId(tenant))
