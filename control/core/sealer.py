"""The sealer: each audit entry is bound to all before it by a hash, so that no past can be edited unseen.

It cannot detect entries removed within the second before they are sealed, nor a forger that rewrites the whole chain
and its anchor. Against the second, keep an anchor (``AuditVerification.anchor``) outside and verify against it.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import inspect
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWorkFactory, declare_action
from muster.db.models import AuditEntry
from muster.db.queries.audit import num_unsealed, seal_anchor, sealed_entries
from muster.db.queries.sequences import lock_head, unsealed_entries
from muster.domain.principals import system_principal

ACTION: Final = declare_action("sealer.seal")
GENESIS: Final = bytes(32)
"""The hash before the first entry."""

_PRINCIPAL: Final = system_principal("sealer")
_UNSEALED: Final = "SELECT EXISTS (SELECT FROM audit_entries WHERE position IS NULL) AS is_pending"
_SEAL: Final = frozenset({"prev_hash", "hash"})
_SEALED_FIELDS: Final = tuple(
    sorted(attribute.key for attribute in inspect(AuditEntry).column_attrs if attribute.key not in _SEAL)
)


@dataclass(frozen=True, slots=True)
class Anchor:
    """The hash at a position, kept outside of the database."""

    position: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class AuditFault:
    """The first place where the chain does not hold."""

    position: int
    what: str


@dataclass(frozen=True, slots=True)
class AuditVerification:
    """Result of a verification.

    ``unsealed_tail`` entries wait for the sealer; keep ``anchor`` outside of the database.
    """

    entries: int
    sealed_to: int
    unsealed_tail: int
    anchor: Anchor
    first_fault: AuditFault | None

    @property
    def ok(self) -> bool:
        return self.first_fault is None


def entry_hash(entry: AuditEntry, prev_hash: bytes) -> bytes:
    """SHA-256 over ``prev_hash`` and the entry's canonical JSON: keys sorted, no spaces, UTF-8, times in UTC."""
    document = {name: _plain(getattr(entry, name)) for name in _SEALED_FIELDS}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(prev_hash + text.encode()).digest()


def _plain(value: Any) -> Any:
    return value.isoformat(timespec="microseconds") if isinstance(value, datetime) else value


def has_unsealed(units: UnitOfWorkFactory) -> bool:
    """Return whether a committed entry is not sealed yet. Raises ``UnavailableError``."""
    return bool(units.ask(_UNSEALED, {})[0].is_pending)


def seal_once(units: UnitOfWorkFactory, *, batch: int = 500) -> int:
    """Seal up to ``batch`` committed entries; return how many. Safe in any number of processes.

    Call it at least once a second. Raises ``UnavailableError``.
    """
    with units.begin(_PRINCIPAL, ACTION, quiet=True) as unit:
        head = lock_head(unit.session, "audit")
        entries = [] if head is None else unsealed_entries(unit.session, batch=batch)
        if head is not None and entries:
            head.position, head.hash = _link(entries, head.position, head.hash or GENESIS)
            head.updated_at = unit.now
    return len(entries)


def _link(entries: Iterable[AuditEntry], position: int, last_hash: bytes) -> tuple[int, bytes]:
    for entry in entries:
        position += 1
        entry.position, entry.prev_hash = position, last_hash
        last_hash = entry.hash = entry_hash(entry, last_hash)
    return position, last_hash


def verify_audit(session: Session, *, witness: Anchor | None = None) -> AuditVerification:
    """Walk the chain in one snapshot (``UnitOfWorkFactory.read``): edits, gaps, swaps and a cut-off end all show.

    ``witness`` is an anchor kept from an earlier verification: the chain must still pass through it.
    """
    sealed_to, head_hash = seal_anchor(session)
    position, last_hash, fault = 0, GENESIS, None
    entries = 0
    for entry in sealed_entries(session):
        entries += 1
        fault = fault or _fault_of(entry, position, last_hash, witness)
        position, last_hash = entry.position or 0, entry.hash or b""
    if fault is None and (position, last_hash) != (sealed_to, head_hash or GENESIS):
        fault = AuditFault(position + 1, f"the chain ends at {position}, but was sealed to {sealed_to}")
    if fault is None and witness is not None and witness.position > position:
        fault = AuditFault(position + 1, f"the witness saw position {witness.position}")
    return AuditVerification(entries, sealed_to, num_unsealed(session), Anchor(position, last_hash), fault)


def _fault_of(entry: AuditEntry, position: int, last_hash: bytes, witness: Anchor | None) -> AuditFault | None:
    """Return the fault of the entry that should follow ``position``, if it has one."""
    if entry.position != position + 1:
        return AuditFault(position + 1, f"entry {position + 1} is missing")
    if entry.prev_hash != last_hash:
        return AuditFault(entry.position, "it does not follow from the entry before it")
    if entry.hash != entry_hash(entry, last_hash):
        return AuditFault(entry.position, "its content is not what was sealed")
    if witness is not None and witness.position == entry.position and witness.hash != entry.hash:
        return AuditFault(entry.position, "it is not what the witness saw")
    return None
