"""The declarative base: UTC timestamps, enums as checked text, and one naming convention for constraints."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypeVar, dataclass_transform

from sqlalchemy import (
    TIMESTAMP,
    BigInteger,
    CheckConstraint,
    Dialect,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    TypeDecorator,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, MappedAsDataclass, mapped_column, relationship

from muster.db.stored_values import member_of, stored_value
from muster.domain.ids import (
    AllocationId,
    AttemptId,
    CheckpointId,
    EventId,
    EvidenceId,
    Fence,
    GpuUuid,
    JobId,
    KeyId,
    NodeId,
    NotificationId,
    ReclaimId,
    RouteId,
    SecretId,
    TenantId,
    VerdictId,
)

NAMING: Final = {
    "pk": "pk_%(table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}

_TEXT_IDS: Final[tuple[Any, ...]] = (
    TenantId,
    KeyId,
    NodeId,
    GpuUuid,
    JobId,
    AttemptId,
    AllocationId,
    CheckpointId,
    EventId,
    EvidenceId,
    ReclaimId,
    RouteId,
    NotificationId,
    SecretId,
    VerdictId,
)

E = TypeVar("E", bound=StrEnum)


class UtcTimestamp(TypeDecorator[datetime]):
    """``timestamptz``. A datetime without a zone is refused, and every one read back is in UTC."""

    impl = TIMESTAMP(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        del dialect
        if value is not None and value.tzinfo is None:
            raise ValueError(f"{value.isoformat()} has no time zone; the database takes UTC timestamps only")
        return value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        del dialect
        return None if value is None else value.astimezone(UTC)


class EnumText(TypeDecorator[E]):
    """A ``StrEnum`` as text, stored as ``stored_values`` says: new values need a new check, never a new type."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: type[E]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: E | str | None, dialect: Dialect) -> str | None:
        del dialect
        return None if value is None else stored_value(self.kind(value))

    def process_result_value(self, value: str | None, dialect: Dialect) -> E | None:
        del dialect
        return None if value is None else member_of(self.kind, value)


def one_of(column: str, kind: type[StrEnum]) -> CheckConstraint:
    """Return the check that ``column`` holds a value of ``kind`` (or NULL where the column allows it)."""
    values = ", ".join(f"'{stored_value(member)}'" for member in kind)
    return CheckConstraint(f"{column} IN ({values})", name=column)


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(mapped_column, relationship))
class Base(MappedAsDataclass, DeclarativeBase, kw_only=True, eq=False, repr=False):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012  # SQLAlchemy reads this plain class attribute
        str: Text(),
        int: Integer(),
        bytes: LargeBinary(),
        datetime: UtcTimestamp(),
        dict[str, Any]: JSONB(none_as_null=True),
        list[str]: JSONB(none_as_null=True),
        list[int]: JSONB(none_as_null=True),
        Fence: BigInteger(),
        **{kind: Text() for kind in _TEXT_IDS},
    }
