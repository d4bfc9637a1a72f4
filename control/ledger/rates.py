"""Rate cards: one document is active, each version stays, and a price of the past changes only when that is asked."""

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import msgspec
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from control.core.paging import ALWAYS, Part, SortKey, Span, TimeOrder, by_time, number_in
from control.core.records import record_of, records_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.policy.policies import active_policy
from muster.db.models import RateVersion
from muster.domain.errors import ConflictError, NotFoundError, ValidationFailedError
from muster.domain.principals import Permission
from muster.domain.rates import RateCards, changed_past
from muster.domain.strict import STORED

SET: Final = declare_action("rates.set")
READ: Final = declare_action("rates.read")
SORTS: Final = by_time(SortKey(RateVersion.version, attrgetter("version"), number_in))


class RateVersionRecord(msgspec.Struct, frozen=True):
    """A version of the rate cards as it was stored."""

    version: int
    document: dict[str, Any]
    is_active: bool
    created_at: datetime
    created_by: str
    reason: str


def active_rates(session: Session) -> RateCards | None:
    """Return the rate cards in force; None: none were ever set, and nothing has a price."""
    document = session.scalar(select(RateVersion.document).where(RateVersion.is_active))
    return None if document is None else RateCards.model_validate(document, strict=False, context=STORED)


def show(unit: UnitOfWork) -> RateVersionRecord | None:
    """Return the active version, or None. Tenants read it too: each card is what they pay in that tier."""
    unit.principal.require(Permission.TENANT_READ)
    row = unit.session.scalar(select(RateVersion).where(RateVersion.is_active))
    return None if row is None else record_of(row, RateVersionRecord)


def list_versions(unit: UnitOfWork, part: Part, *, span: Span = ALWAYS) -> Sequence[RateVersionRecord]:
    """Return the versions of ``span``, the newest first unless ``part`` says otherwise. For operators and auditors."""
    unit.principal.require(Permission.POLICY_READ)
    query = select(RateVersion).where(*span.conditions(RateVersion.created_at))
    return records_of(unit.session.scalars(part.of(query, SORTS[TimeOrder.NEWEST])), RateVersionRecord)


def get(unit: UnitOfWork, version: int) -> RateVersionRecord:
    """Return one version. Raises ``NotFoundError`` where there is none."""
    unit.principal.require(Permission.POLICY_READ)
    row = unit.session.get(RateVersion, version)
    if row is None:
        raise NotFoundError("there is no such version of the rate cards")
    return record_of(row, RateVersionRecord)


def set_rates(unit: UnitOfWork, cards: RateCards, *, reason: str, corrects_past: bool = False) -> RateVersionRecord:
    """Make ``cards`` the active ones, whole: a card that they leave out ends.

    Raises:
        ValidationFailedError: a card is for a tier that the policy does not define.
        ConflictError: a price of an hour that has begun would change, and ``corrects_past`` does not allow it.
    """
    unit.principal.require(Permission.TENANT_WRITE)
    _require_tiers(unit.session, cards)
    unit.session.execute(text("LOCK TABLE rate_versions IN SHARE ROW EXCLUSIVE MODE"))
    before = active_rates(unit.session)
    changed = [] if before is None else list(changed_past(before, cards, unit.now))
    if changed and not corrects_past:
        raise ConflictError(
            f"prices of hours that have begun would change, and with them bills: {'; '.join(changed)}",
            suggestion="Begin the new card at a later hour, or correct the past with `corrects_past`.",
        )
    for row in unit.session.scalars(select(RateVersion).where(RateVersion.is_active)):
        row.is_active = False
    unit.session.flush()
    row = RateVersion(
        document=cards.model_dump(mode="json"),
        is_active=True,
        created_at=unit.now,
        created_by=unit.principal.name,
        reason=reason,
    )
    unit.session.add(row)
    unit.session.flush()
    detail = {"version": row.version, "num_cards": len(cards.cards), "corrected": changed}
    unit.emit("rates.set", "rates", str(row.version), payload=detail)
    unit.audit("rates.set", "rates", str(row.version), reason=reason, detail=detail)
    return record_of(row, RateVersionRecord)


def _require_tiers(session: Session, cards: RateCards) -> None:
    tiers = active_policy(session).tiers
    for place, card in enumerate(cards.cards):
        if card.tier not in tiers:
            detail = f"the policy defines: {', '.join(sorted(tiers))}"
            raise ValidationFailedError.at(f"/document/cards/{place}/tier", "unknown_tier", detail)
