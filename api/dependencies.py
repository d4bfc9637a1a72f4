"""Dependencies of the routes, made once at start and carried by the application."""

from dataclasses import dataclass, field
from pathlib import Path

from fastapi import Request
from prometheus_client import CollectorRegistry

from control.core.unit_of_work import UnitOfWorkFactory
from control.secrets.key_wrapping import KeyWrapper
from control.telemetry.reports import OnFlushed
from muster.domain.errors import ConflictError
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.limits import LimitPolicy
from muster.domain.residency import StorePlace
from muster.store.faults import NOT_CONFIGURED
from muster.store.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class AppDependencies:
    """Parts of the application. ``secret_key`` signs cursors; ``allowed_hosts``: accepted Host headers (empty: any).

    ``on_flushed`` is called with each group of telemetry reports once it is durable. ``store`` signs addresses of the
    content store; None: there is none. ``secret_keys`` protect the tenants' secrets; None: this control plane keeps
    none. ``bill_keys_file``: the keys that sign bills; None: it signs none.
    """

    units: UnitOfWorkFactory
    secret_key: bytes
    limits: LimitPolicy = field(default_factory=lambda: DEFAULT_POLICY.limits)
    allowed_hosts: frozenset[str] = frozenset()
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    on_flushed: OnFlushed | None = None
    store: ObjectStore | None = None
    secret_keys: KeyWrapper | None = None
    bill_keys_file: Path | None = None

    @property
    def store_place(self) -> StorePlace | None:
        """The name and site of the content store; None: none is configured."""
        return None if self.store is None else self.store.place

    def required_store(self, suggestion: str = "The operator configures a content store.") -> ObjectStore:
        """Return the content store. Raises ConflictError, which suggests what else to do: none is configured."""
        if self.store is None:
            raise ConflictError(NOT_CONFIGURED, suggestion=suggestion)
        return self.store


def dependencies_of(request: Request) -> AppDependencies:
    dependencies: AppDependencies = request.app.state.dependencies
    return dependencies
