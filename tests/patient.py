"""Limits of the database for a machine that does ten things at once: what a test is not about must not run out."""

from typing import Final

from muster.db.engine import SessionLimits

PATIENT: Final = SessionLimits(
    statement_ms=60_000, lock_ms=30_000, idle_in_transaction_ms=60_000, connect_s=60, pool_s=60
)
