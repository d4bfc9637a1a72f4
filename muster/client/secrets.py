"""Calls for tenants' secrets and for the keys that protect them."""

from muster import documents
from muster.client.calls import Call, answered, change, change_once, etag, listed, pages, read


class SecretCalls:
    @answered
    def create_secret(self, wanted: documents.NewSecret, *, dry_run: bool = False) -> Call[documents.ChangedSecret]:
        """Store a new secret. No key is kept for a request with a value, so it is never sent twice."""
        return change_once("/v1/secrets", documents.ChangedSecret, body=wanted, dry_run=dry_run)

    @listed
    def secrets(
        self,
        *,
        tenant_id: str | None = None,
        name: str | None = None,
        order: str | None = None,
        limit: int | None = None,
    ) -> Call[documents.Secret]:
        """Every secret that this key may know of, without its value, by tenant and name. ``name``: a part of it."""
        query = {"tenant_id": tenant_id, "name": name, "order": order, "limit": limit, "cursor": None}
        return pages("/v1/secrets", documents.SecretPage, documents.Secret, query=query)

    @answered
    def secret(self, secret_id: str) -> Call[documents.Secret]:
        """One secret, without its value."""
        return read("/v1/secrets/{secret_id}", documents.Secret, {"secret_id": secret_id})

    @answered
    def rotate_secret(
        self, secret_id: str, value: documents.SecretValue, *, version: int | None = None, dry_run: bool = False
    ) -> Call[documents.ChangedSecret]:
        """Give the secret its next value. It is never sent twice. ``version``: only if it still is at that one."""
        path, path_values = "/v1/secrets/{secret_id}/rotate", {"secret_id": secret_id}
        answer, if_match = documents.ChangedSecret, etag(version)
        return change_once(path, answer, path_values, body=value, dry_run=dry_run, if_match=if_match)

    @answered
    def delete_secret(
        self, secret_id: str, *, version: int | None = None, dry_run: bool = False
    ) -> Call[documents.ChangedSecret]:
        """Delete the secret with all its values. ``version``: only if it still is at that one."""
        path, path_values = "/v1/secrets/{secret_id}", {"secret_id": secret_id}
        answer, if_match = documents.ChangedSecret, etag(version)
        return change("DELETE", path, answer, path_values, body=None, dry_run=dry_run, if_match=if_match)

    @listed
    def secret_keys(self) -> Call[documents.SecretKey]:
        """Every key that protects secrets, the active one first."""
        return pages("/v1/secret-keys", documents.SecretKeyPage, documents.SecretKey)

    @answered
    def rewrap_secrets(self, *, dry_run: bool = False) -> Call[documents.ChangedSecretKeys]:
        """Wrap the next values again under the active key, 100 at most."""
        return change("POST", "/v1/secret-keys/rewrap", documents.ChangedSecretKeys, body=None, dry_run=dry_run)
