"""A tenant with secrets under keys of a file, and a key service that is played."""

import hmac
import os
from dataclasses import dataclass, field
from pathlib import Path

from control.core.unit_of_work import UnitOfWorkFactory
from control.secrets import tenant_secrets
from control.secrets.key_file import FileKeys
from control.secrets.key_wrapping import KeyWrapper, WrappedKey
from control.secrets.rewrapping import REWRAP, BatchDone, store_batch, wrap_batch
from control.secrets.tenant_secrets import SecretRecord
from muster.domain.errors import SecretKeyError
from muster.domain.ids import TenantId
from muster.domain.principals import Principal, Role
from tests.fleet_factory import OPERATOR


def admin_of(tenant_id: TenantId) -> Principal:
    return Principal(name="key:admin", role=Role.TENANT_ADMIN, tenant_id=tenant_id)


def key_file(path: Path, *ids: str, mode: int = 0o600) -> FileKeys:
    """Write a file with these keys, the same one for each id whenever it is written."""
    path.write_text("# keys\n" + "".join(f"{each} {each.encode().hex():0<64}  # {each}\n" for each in ids))
    path.chmod(mode)
    return FileKeys(path)


@dataclass
class KeyService:
    """A ``KeyWrapper`` as Vault's transit engine is: it keeps the keys, and answers with texts of its own.

    ``seen``: all that it was sent.
    """

    active: str = "vault:v1"
    keys: dict[str, bytes] = field(default_factory=lambda: {"vault:v1": os.urandom(32)})
    seen: list[bytes] = field(default_factory=list)
    is_sealed: bool = False

    def active_key_id(self) -> str:
        return self.active

    def key_ids(self) -> frozenset[str]:
        return frozenset(self.keys)

    def wrap(self, data_key: bytes, about: bytes) -> WrappedKey:
        self._note(data_key, about)
        return WrappedKey(
            self.active, bytes(a ^ b for a, b in zip(data_key, self._pad(self.active, about), strict=True))
        )

    def unwrap(self, wrapped: WrappedKey, about: bytes) -> bytes:
        self._note(wrapped.content, about)
        return bytes(a ^ b for a, b in zip(wrapped.content, self._pad(wrapped.key_id, about), strict=True))

    def rewrap(self, wrapped: WrappedKey, about: bytes) -> WrappedKey:
        return self.wrap(self.unwrap(wrapped, about), about)

    def _pad(self, key_id: str, about: bytes) -> bytes:
        return hmac.digest(self.keys[key_id], about, "sha256")

    def _note(self, *sent: bytes) -> None:
        if self.is_sealed:
            raise SecretKeyError("the key service is sealed")
        self.seen += sent


def set_secret(
    units: UnitOfWorkFactory, keys: KeyWrapper, tenant_id: TenantId, name: str, value: bytes, *jobs: str
) -> SecretRecord:
    first = tenant_secrets.seal_first(keys, admin_of(tenant_id), name, value, jobs=jobs)
    with units.begin(admin_of(tenant_id), tenant_secrets.CREATE) as unit:
        return tenant_secrets.create(unit, first)


def rotate_secret(units: UnitOfWorkFactory, keys: KeyWrapper, secret: SecretRecord, value: bytes) -> SecretRecord:
    admin = admin_of(secret.tenant_id)
    following = tenant_secrets.seal_next(units, keys, admin, secret.id, value)
    with units.begin(admin, tenant_secrets.ROTATE) as unit:
        return tenant_secrets.rotate(unit, following)


def rewrap_once(units: UnitOfWorkFactory, keys: KeyWrapper) -> BatchDone:
    batch = wrap_batch(units, keys, OPERATOR)
    with units.begin(OPERATOR, REWRAP) as unit:
        return store_batch(unit, batch)
