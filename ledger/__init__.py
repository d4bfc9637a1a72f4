"""The ledger: each GPU-millisecond of the fleet in exactly one account. Pure: plain data in, entries out."""
