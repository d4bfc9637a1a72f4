"""How much was stored of the reports of an attempt's program, against the policy's limits for one attempt."""

from sqlalchemy import BigInteger
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base
from muster.domain.ids import AttemptId


class AttemptUsage(Base):
    """``kind``: ``events``, ``checkpoints``, ``steps`` or ``log_bytes``; or ``log_cut``, with the stream in ``subject``
    and in ``amount`` the offset up to which its output beyond the limit was counted.

    ``num_dropped``: the reports, steps or bytes that were left out because a limit was reached. Attempts are never
    deleted, so no foreign key checks them.
    """

    __tablename__ = "attempt_usage"

    attempt_id: Mapped[AttemptId] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True, default="")
    amount: Mapped[int] = mapped_column(BigInteger, default=0)
    num_dropped: Mapped[int] = mapped_column(BigInteger, default=0)
