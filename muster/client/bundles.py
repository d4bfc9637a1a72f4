"""Bundles: the calls. ``muster.client.uploads`` uploads a folder with them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Unpack

from muster import documents
from muster.client.calls import Call, Within, answered, change, pages, post_query, read, walked

MANIFEST_S: Final = 120.0
"""The control plane reads one long manifest after the other, and stores up to 200,000 rows of each."""


class BundleCalls:
    @answered
    def content_limits(self, *, tenant_id: str | None = None) -> Call[documents.ContentLimits]:
        """Return the limits of a tenant's content, and how much it stores; whether there is a content store."""
        return read("/v1/content", documents.ContentLimits, query={"tenant_id": tenant_id})

    @answered
    def begin_bundle(
        self, manifest: bytes, *, tenant_id: str | None = None, dry_run: bool = False
    ) -> Call[documents.BegunBundle]:
        """Begin an upload by the manifest's bytes, or continue it. Twice is the same as once."""
        call = change("POST", "/v1/bundles", documents.BegunBundle, body=None, dry_run=dry_run)
        query = {**call.query, "tenant_id": tenant_id}
        return replace(call, query=query, content=manifest, answer_s=MANIFEST_S)

    @answered
    def confirm_uploads(
        self, digest: str, uploaded: Sequence[str], *, tenant_id: str | None = None
    ) -> Call[documents.BundleUpload]:
        """Confirm what the store has taken, and get the next uploads. Twice is the same as once."""
        body: documents.Uploaded = {"uploaded": list(uploaded)}
        call = post_query("/v1/bundles/{bundle}/uploads", documents.BundleUpload, body=body)
        return replace(call, path_values={"bundle": digest}, query={"tenant_id": tenant_id})

    @walked
    def bundles(
        self,
        *,
        tenant_id: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        **within: Unpack[Within],
    ) -> Call[documents.BundleFound]:
        """Bundles, the newest first. ``limit``: of a page. ``order``: newest, oldest or largest."""
        query = {"tenant_id": tenant_id, "state": state, "limit": limit, **within, "cursor": None}
        return pages("/v1/bundles", documents.BundlePage, documents.BundleFound, query=query)

    @answered
    def bundle(self, digest: str, *, tenant_id: str | None = None) -> Call[documents.BundleFound]:
        """One bundle."""
        path_values = {"bundle": digest}
        return read("/v1/bundles/{bundle}", documents.BundleFound, path_values, query={"tenant_id": tenant_id})

    @answered
    def delete_bundle(
        self, digest: str, *, tenant_id: str | None = None, dry_run: bool = False
    ) -> Call[documents.DeletedBundle]:
        """Delete a bundle that no job uses which has not ended."""
        path, path_values = "/v1/bundles/{bundle}", {"bundle": digest}
        call = change("DELETE", path, documents.DeletedBundle, path_values, body=None, dry_run=dry_run)
        return replace(call, query={**call.query, "tenant_id": tenant_id})
