"""The ledger: hours are computed, closed and corrected, and read by operators and tenants."""
