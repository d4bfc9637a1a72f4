"""Burn-in on the host: takes orders, computes on the GPUs in processes of their own, reports the measurements."""
