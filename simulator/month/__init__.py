"""A month of a fleet as the trace simulator plays it, and what the ledger makes of the same month."""
