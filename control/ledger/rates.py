"""Rate cards: one document is active, each version stays, and a price of the past changes only when that is asked."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from control.core.paging import ALWAYS, Part, Span
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.versions import (
    VersionRecord,
    active_version,
    hold_versions,
    orders_of,
    store_version,
    versions_in,
)
from control.policy.policies import active_policy
from muster.db.models import RateVersion
from muster.domain.errors import ConflictError, NotFoundError, ValidationFailedError
from muster.domain.principals import Permission
from muster.domain.rates import RateCards, changed_past
from muster.domain.strict import STORED

SET: Final = declare_action("rates.set")
READ: Final = declare_action("rates.read")
SORTS: Final = orders_of(RateVersion)


def active_rates(session: Session) -> RateCards | None:
    """Return the rate cards in force; None: none were ever set, and nothing has a price."""
    document = session.scalar(select(RateVersion.document).where(RateVersion.is_active))
    return None if document is None else RateCards.model_validate(document, strict=False, context=STORED)


def show(unit: UnitOfWork) -> VersionRecord | None:
    """Return the active version, or None. Tenants read it too: each card is what they pay in that tier."""
    unit.principal.require(Permission.TENANT_READ)
    row = active_version(unit.session, RateVersion)
    return None if row is None else record_of(row, VersionRecord)


def list_versions(unit: UnitOfWork, part: Part, *, span: Span = ALWAYS) -> Sequence[VersionRecord]:
    """Return the versions of ``span``, the newest first unless ``part`` says otherwise. For operators and auditors."""
    unit.principal.require(Permission.POLICY_READ)
    return versions_in(unit, RateVersion, part, span)


def get(unit: UnitOfWork, version: int) -> VersionRecord:
    """Return one version. Raises ``NotFoundError`` where there is none."""
    unit.principal.require(Permission.POLICY_READ)
    row = unit.session.get(RateVersion, version)
    if row is None:
        raise NotFoundError("there is no such version of the rate cards")
    return record_of(row, VersionRecord)


def set_rates(unit: UnitOfWork, cards: RateCards, *, reason: str, corrects_past: bool = False) -> VersionRecord:
    """Make ``cards`` the active ones, whole: a card that they leave out ends.

    Raises:
        ValidationFailedError: a card is for a tier that the policy does not define.
        ConflictError: bills of hours that have begun would change, and ``corrects_past`` does not allow it.
    """
    unit.principal.require(Permission.TENANT_WRITE)
    _require_tiers(unit.session, cards)
    hold_versions(unit.session, RateVersion)
    before = active_rates(unit.session)
    changed = [] if before is None else list(changed_past(before, cards, unit.now))
    if changed and not corrects_past:
        raise ConflictError(
            f"bills of hours that have begun would change: {'; '.join(changed)}",
            suggestion="Begin the new card at a later hour, or correct the past with `corrects_past`.",
        )
    row = store_version(unit, RateVersion, cards.model_dump(mode="json"), reason=reason)
    detail = {"version": row.version, "num_cards": len(cards.cards), "corrected": changed}
    unit.emit("rates.set", "rates", str(row.version), payload=detail)
    unit.audit("rates.set", "rates", str(row.version), reason=reason, detail=detail)
    return record_of(row, VersionRecord)


def _require_tiers(session: Session, cards: RateCards) -> None:
    tiers = active_policy(session).tiers
    for place, card in enumerate(cards.cards):
        if card.tier not in tiers:
            detail = f"the policy defines: {', '.join(sorted(tiers))}"
            raise ValidationFailedError.at(f"/document/cards/{place}/tier", "unknown_tier", detail)
