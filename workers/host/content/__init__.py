"""Bundles on a host: one read-only copy each, fetched once, and a folder of its own for each attempt."""
