"""Calls for tenants, quotas, keys, and the caller's own identity."""

from collections.abc import Sequence
from typing import TypedDict, Unpack

from muster import documents
from muster.client.calls import Call, answered, change, change_once, etag, listed, pages, read


class AccessConditions(TypedDict, total=False):
    """Conditions on keys and persons. ``name``: a part of it. ``active``: only what counts now, or only others."""

    name: str | None
    role: Sequence[str] | None
    tenant_id: str | None
    active: bool | None


class TenantCalls:
    @answered
    def whoami(self) -> Call[documents.Whoami]:
        """Return the principal of this key, and its permissions."""
        return read("/v1/whoami", documents.Whoami)

    @answered
    def begin_login(self, device: str) -> Call[documents.StartedLogin]:
        """Ask for a code that a person confirms in the console; the secret is in this answer alone. It needs no key."""
        return Call("POST", "/v1/logins", documents.StartedLogin, body={"device": device}, is_repeatable=False)

    @answered
    def login_answer(self, login_token: str) -> Call[documents.LoginAnswer]:
        """Ask whether the code was confirmed; the first such answer has the key, and is never asked for twice."""
        body = {"login_token": login_token}
        return Call("POST", "/v1/logins/answer", documents.LoginAnswer, body=body, is_repeatable=False)

    @answered
    def sign_out(self) -> Call[documents.SignedOut]:
        """Revoke this key if a sign-in of the command made it."""
        return Call("POST", "/v1/sign-out", documents.SignedOut)

    @answered
    def create_key(self, wanted: documents.NewKey, *, dry_run: bool = False) -> Call[documents.CreatedKey]:
        """``token`` is in this answer alone, so it is never asked for twice."""
        return change_once("/v1/keys", documents.CreatedKey, body=wanted, dry_run=dry_run)

    @listed
    def keys(
        self, *, order: str | None = None, limit: int | None = None, **where: Unpack[AccessConditions]
    ) -> Call[documents.Key]:
        """Every key that this one may see, without its secret, the newest first."""
        query = {**where, "order": order, "limit": limit, "cursor": None}
        return pages("/v1/keys", documents.KeyPage, documents.Key, query=query)

    @answered
    def key(self, key_id: str) -> Call[documents.Key]:
        """One key, without its secret."""
        return read("/v1/keys/{key_id}", documents.Key, {"key_id": key_id})

    @answered
    def revoke_key(
        self, key_id: str, *, version: int | None = None, dry_run: bool = False
    ) -> Call[documents.ChangedKey]:
        """Revoke a key at once. ``version``: only if the key still is at that one."""
        path, path_values = "/v1/keys/{key_id}", {"key_id": key_id}
        if_match = etag(version) or "*"
        return change("DELETE", path, documents.ChangedKey, path_values, body=None, dry_run=dry_run, if_match=if_match)

    @answered
    def create_tenant(
        self, name: str, *, idempotency_key: str | None = None, dry_run: bool = False
    ) -> Call[documents.ChangedTenant]:
        """Create a customer organisation."""
        answer, body = documents.ChangedTenant, {"name": name}
        return change("POST", "/v1/tenants", answer, body=body, dry_run=dry_run, key=idempotency_key)

    @listed
    def tenants(
        self,
        *,
        name: str | None = None,
        parent_id: str | None = None,
        order: str | None = None,
        limit: int | None = None,
    ) -> Call[documents.Tenant]:
        """Every tenant for an operator, by name; a tenant sees itself. ``name``: a part of it."""
        query = {"name": name, "parent_id": parent_id, "order": order, "limit": limit, "cursor": None}
        return pages("/v1/tenants", documents.TenantPage, documents.Tenant, query=query)

    @answered
    def place_tenant(
        self, tenant_id: str, *, parent_id: str | None, weight: float, reason: str, dry_run: bool = False
    ) -> Call[documents.ChangedTenant]:
        """Place the tenant under another one, or under none, with its weight there."""
        body = {"parent_id": parent_id, "weight": weight, "reason": reason}
        path, path_values = "/v1/tenants/{tenant_id}/place", {"tenant_id": tenant_id}
        return change("PUT", path, documents.ChangedTenant, path_values, body=body, dry_run=dry_run)

    @answered
    def tenant_residency(self, tenant_id: str) -> Call[documents.TenantResidency]:
        """Return a tenant with its residency rule, and what is outside of it."""
        return read("/v1/tenants/{tenant_id}/residency", documents.TenantResidency, {"tenant_id": tenant_id})

    @answered
    def set_tenant_residency(
        self,
        tenant_id: str,
        reason: str,
        *,
        sites: Sequence[str] | None = None,
        stores: Sequence[str] | None = None,
        dry_run: bool = False,
    ) -> Call[documents.ChangedResidency]:
        """Set where a tenant's jobs may run and its data may be; None: anywhere, both None: no rule."""
        body = {
            "sites": None if sites is None else list(sites),
            "stores": None if stores is None else list(stores),
            "reason": reason,
        }
        path, path_values = "/v1/tenants/{tenant_id}/residency", {"tenant_id": tenant_id}
        return change("PUT", path, documents.ChangedResidency, path_values, body=body, dry_run=dry_run)

    @answered
    def set_quota(
        self,
        tenant_id: str,
        tier: str,
        ceiling_gpus: int | None,
        reason: str,
        *,
        guaranteed_gpus: int = 0,
        borrowable_gpus: int | None = None,
        dry_run: bool = False,
    ) -> Call[documents.ChangedQuota]:
        """Set the GPUs that one tenant, with all below it, may use in one tier; None: no limit."""
        path_values = {"tenant_id": tenant_id, "tier": tier}
        body = {
            "guaranteed_gpus": guaranteed_gpus,
            "borrowable_gpus": borrowable_gpus,
            "ceiling_gpus": ceiling_gpus,
            "reason": reason,
        }
        path = "/v1/tenants/{tenant_id}/quotas/{tier}"
        return change("PUT", path, documents.ChangedQuota, path_values, body=body, dry_run=dry_run)

    @listed
    def all_quotas(
        self, *, tenant_id: str | None = None, tier: str | None = None, limit: int | None = None
    ) -> Call[documents.Quota]:
        """List the quotas of all tenants that this key sees, by tenant and tier."""
        query = {"tenant_id": tenant_id, "tier": tier, "limit": limit, "cursor": None}
        return pages("/v1/quotas", documents.QuotaPage, documents.Quota, query=query)

    @listed
    def quotas(self, tenant_id: str) -> Call[documents.Quota]:
        """List a tenant's quotas; a tier that is not listed has none."""
        path = "/v1/tenants/{tenant_id}/quotas"
        return pages(path, documents.QuotaPage, documents.Quota, {"tenant_id": tenant_id})

    @listed
    def tenant_limits(self, tenant_id: str) -> Call[documents.TenantLimit]:
        """List how much a tenant has submitted, and how much it may."""
        path = "/v1/tenants/{tenant_id}/limits"
        return pages(path, documents.TenantLimitPage, documents.TenantLimit, {"tenant_id": tenant_id})
